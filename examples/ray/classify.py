"""Classify a folder of images with Ray Data, on one machine or on a cluster: the script is the same.

    pip install 'tvm-byoc-dnnl[ray]'
    python examples/ray/classify.py model.so images/ result/ --workers 2 --threads 1
    RAY_ADDRESS=head:6379 python examples/ray/classify.py model.so s3://bucket/images s3://bucket/result

The model takes images as float32, N x 3 x height x width; N may be open or a number. The result is a Parquet file for
each block: path, class, score. Each worker loads the model once; the file travels to it through Ray, so no other
machine needs a copy.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray

MEAN = np.array([0.485, 0.456, 0.406], "float32")
DEVIATION = np.array([0.229, 0.224, 0.225], "float32")


class Classifier:
    """A worker: a process with the model, to which Ray hands batches.

    Parameters
    ----------
    library : ray.ObjectRef
        The bytes of the compiled model.
    """

    def __init__(self, library: Any) -> None:
        import tvm_byoc_dnnl as byoc

        with tempfile.TemporaryDirectory() as folder:  # a loaded file may be deleted
            path = Path(folder) / "model.so"
            path.write_bytes(ray.get(library))
            self.run = byoc.load(str(path))
        self.size = self.run.inputs[0].shape[0]

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        images = (np.stack(list(batch["image"])).astype("float32") / 255 - MEAN) / DEVIATION
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        count = len(images)
        if isinstance(self.size, int):  # the last batch of a block may be shorter than the model's
            images = np.concatenate([images, np.zeros((self.size - count, *images.shape[1:]), "float32")])
        logits = np.asarray(self.run(images))[:count]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return {"path": batch["path"], "class": shares.argmax(axis=1), "score": shares.max(axis=1)}


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", help="a folder, or an address that Ray can read")
    parser.add_argument("result", help="a folder for Parquet files")
    parser.add_argument("--workers", type=int, default=1, help="processes with the model, on all machines together")
    parser.add_argument("--threads", type=int, default=1, help="cores of each worker; Ray sets OMP_NUM_THREADS so")
    parser.add_argument("--batch", type=int, default=8, help="images at once; a model with a fixed N takes that many")
    arguments = parser.parse_args()
    import tvm_byoc_dnnl as byoc

    with byoc.load(str(arguments.model)) as run:
        size, _, height, width = run.inputs[0].shape
    ray.init()  # a cluster, if RAY_ADDRESS names one
    images = ray.data.read_images(arguments.images, size=(height, width), mode="RGB", include_paths=True)
    found = images.map_batches(
        Classifier,
        fn_constructor_args=[ray.put(arguments.model.read_bytes())],
        batch_size=size if isinstance(size, int) else arguments.batch,
        num_cpus=arguments.threads,
        compute=ray.data.ActorPoolStrategy(size=arguments.workers),
    )
    found.write_parquet(arguments.result)


if __name__ == "__main__":
    main()
