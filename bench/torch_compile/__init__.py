"""torch.compile with this package as its backend, beside other ways to run a network of PyTorch.

The engines run the same network of `bench.zoo`, of the same seed, that the ONNX file given to them was exported from:
the file's name is the network's.
"""

from __future__ import annotations

from tvm_byoc_dnnl.testing.bench.engines import ENGINES, Engine, Load

__all__ = ["TORCH_ENGINES"]


def _loader() -> Load:
    from .engine import load

    return load


#: name → engine; the first is what the others are compared with
TORCH_ENGINES: dict[str, Engine] = {
    "torch-byoc": Engine(_loader, 'torch.compile(backend="tvm_byoc_dnnl")', "torch", {"backend": "tvm_byoc_dnnl"}),
    "byoc": ENGINES["byoc"],
    "inductor": Engine(_loader, "inductor with freezing", "torch", {"backend": "inductor"}),
    "eager": Engine(_loader, "PyTorch", "torch", {"backend": "eager"}),
}
