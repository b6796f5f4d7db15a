"""A backend in a package of its own: a vector unit for float32, imitated by C.

ops.py       which calls it takes
patterns.py  which subgraphs it takes as one instruction
hooks.py     how a region becomes a runtime module
"""

from __future__ import annotations

import tvm_byoc_dnnl as byoc

from . import hooks, ops, patterns

__all__ = ["register"]


def register() -> None:
    """What the entry point calls, once, when the backends are first asked for."""
    byoc.register_namespace(hooks.NAMESPACE, api=1)
    ops.register(hooks.NAMESPACE)
    patterns.register(hooks.NAMESPACE)
    hooks.register()
