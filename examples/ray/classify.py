"""Classify a folder of images with Ray Data, on one machine or on a cluster: the script is the same.

    pip install 'tvm-byoc-dnnl[ray]'
    python examples/ray/classify.py model.so images/ result/ --workers 2 --threads 1
    RAY_ADDRESS=head:6379 python examples/ray/classify.py s3://b/model.so s3://b/images s3://b/result --resume

The model takes images as float32, N x 3 x height x width; N may be open or a number. The result is a Parquet file for
each block: path, class, score. Each worker reads the model from its address and loads it once. A run that was stopped
goes on with --resume: images that have a row in the result are left out.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import ray
from nodes import absolute, check_software, fetched, left, opened, start

MEAN = np.array([0.485, 0.456, 0.406], "float32")
DEVIATION = np.array([0.229, 0.224, 0.225], "float32")


class Classifier:
    """A worker: a process with the model, to which Ray hands batches.

    Parameters
    ----------
    address : str
        Of the compiled model.
    threads : int
        Of each call.
    """

    def __init__(self, address: str, threads: int) -> None:
        import tvm_byoc_dnnl as byoc

        self.run = byoc.load(fetched(address), threads=threads)
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


def images_of(address: str) -> tuple[Any, list[str]]:
    """The file system of a folder, and the files in it."""
    from pyarrow import fs

    system, root = opened(address)
    found = system.get_file_info(fs.FileSelector(root, recursive=True))
    return system, [each.path for each in found if each.is_file]


def done(address: str) -> list[str]:
    """The paths of the images that have a result."""
    import pyarrow.parquet as parquet

    system, files = images_of(address)
    files = [path for path in files if path.endswith(".parquet")]
    return [
        path
        for file in files
        for path in parquet.read_table(file, columns=["path"], filesystem=system)["path"].to_pylist()
    ]


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="its address, which all nodes can read")
    parser.add_argument("images", help="the address of a folder")
    parser.add_argument("result", help="the address of a folder for Parquet files")
    parser.add_argument("--workers", type=int, default=1, help="processes with the model, on all machines together")
    parser.add_argument("--threads", type=int, default=1, help="cores of each worker, and threads of each call")
    parser.add_argument("--batch", type=int, default=8, help="images at once; a model with a fixed N takes that many")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="leave out what the result has already")
    again.add_argument("--overwrite", action="store_true", help="remove the result that is there")
    arguments = parser.parse_args()
    import tvm_byoc_dnnl as byoc

    with byoc.load(fetched(arguments.model)) as run:
        size, _, height, width = run.inputs[0].shape
    system, root = opened(arguments.result)
    exists = system.get_file_info(root).type.name == "Directory" and bool(images_of(arguments.result)[1])
    if exists and arguments.overwrite:
        system.delete_dir_contents(root)
    elif exists and not arguments.resume:
        raise SystemExit(f"{arguments.result} has a result already; expected --resume or --overwrite")
    source, paths = images_of(arguments.images)
    paths = left(paths, done(arguments.result) if exists and arguments.resume else [])
    if not paths:
        print("every image has a result")
        return
    start()
    check_software()
    images = ray.data.read_images(paths, filesystem=source, size=(height, width), mode="RGB", include_paths=True)
    found = images.map_batches(
        Classifier,
        fn_constructor_args=[absolute(arguments.model), arguments.threads],
        batch_size=size if isinstance(size, int) else arguments.batch,
        num_cpus=arguments.threads,
        compute=ray.data.ActorPoolStrategy(size=arguments.workers),
    )
    found.write_parquet(absolute(arguments.result), mode="append")


if __name__ == "__main__":
    main()
