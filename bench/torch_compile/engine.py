"""A network of `bench.zoo` by PyTorch, with a backend of torch.compile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch._inductor.config
from torch.utils import _pytree

from bench.zoo.built import build
from tvm_byoc_dnnl.testing.bench.engines import Run

__all__ = ["load"]


def load(path: str, threads: int, backend: str) -> tuple[Run, str]:
    """The network that the ONNX file at ``path`` is named after."""
    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True
    net, _ = build(Path(path).stem)
    fast = torch.compile(net, backend=backend)

    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():  # freezing needs it
            result = fast(*map(torch.from_numpy, inputs))
        return [np.asarray(leaf) for leaf in _pytree.tree_leaves(result)]

    return run, torch.__version__
