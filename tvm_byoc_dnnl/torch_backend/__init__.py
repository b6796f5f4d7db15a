"""``torch.compile(model, backend="tvm_byoc_dnnl")``; torch finds it by the entry point ``torch_dynamo_backends``."""

from .backend import compile_graph

__all__ = ["compile_graph"]
