"""torch.compile with this package as its backend, beside other ways to run a network of PyTorch.

The engines run the same network of `bench.zoo`, of the same seed, that the ONNX file given to them was exported from:
the file's name is the network's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tvm_byoc_dnnl.testing.bench.engines import ENGINES, Engine, Load, Run

__all__ = ["TORCH_ENGINES"]


def _loader() -> Load:
    import torch
    import torch._inductor.config
    from torch.utils import _pytree

    from bench.zoo.built import build

    def load(path: str, threads: int, backend: str) -> tuple[Run, str]:
        torch.set_num_threads(threads)
        torch._inductor.config.freezing = True
        net, _ = build(Path(path).stem)
        fast = torch.compile(net, backend=backend)

        def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
            with torch.no_grad():  # freezing needs it
                result = fast(*map(torch.from_numpy, inputs))
            return [np.asarray(leaf) for leaf in _pytree.tree_leaves(result)]

        return run, torch.__version__

    return load


#: name → engine; the first is what the others are compared with
TORCH_ENGINES: dict[str, Engine] = {
    "torch-byoc": Engine(_loader, 'torch.compile(backend="tvm_byoc_dnnl")', "torch", {"backend": "tvm_byoc_dnnl"}),
    "byoc": ENGINES["byoc"],
    "inductor": Engine(_loader, "inductor with freezing", "torch", {"backend": "inductor"}),
    "eager": Engine(_loader, "PyTorch", "torch", {"backend": "eager"}),
}
