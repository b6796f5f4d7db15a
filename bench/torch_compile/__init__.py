"""torch.compile with this package as its backend, beside other ways to run a network of PyTorch.

The engines run the same network of `bench.zoo`, of the same seed, that the ONNX file given to them was exported from:
the file's name is the network's.
"""

from __future__ import annotations

from tvm_byoc_dnnl.testing.bench import ENGINES, Engine

__all__ = ["TORCH_ENGINES"]

_MODULE = f"{__name__}.engine"

#: name → engine; the first is what the others are compared with
TORCH_ENGINES: dict[str, Engine] = {
    "torch-byoc": Engine(_MODULE, 'torch.compile(backend="tvm_byoc_dnnl")', "torch", {"backend": "tvm_byoc_dnnl"}),
    "byoc": ENGINES["byoc"],
    "inductor": Engine(_MODULE, "inductor with freezing", "torch", {"backend": "inductor"}),
    "eager": Engine(_MODULE, "PyTorch", "torch", {"backend": "eager"}),
}
