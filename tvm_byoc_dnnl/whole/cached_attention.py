"""The operator of attention over a cache, whose meaning the importer of ONNX declares."""

from .table import reserve

__all__ = ["CACHED_ATTENTION", "DOMAIN", "NAME"]

DOMAIN, NAME = "tvm_byoc_dnnl", "CachedAttention"
#: the Relax operator
CACHED_ATTENTION = reserve(DOMAIN, NAME)
