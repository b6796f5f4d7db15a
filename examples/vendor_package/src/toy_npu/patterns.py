"""Which subgraphs the toy takes as one: a product and a sum are one instruction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc

from .ops import takes

__all__ = ["register"]


def register(namespace: str) -> None:
    """Register ``a·b + c``."""
    product = is_op("relax.multiply")(wildcard(), wildcard())
    byoc.register_pattern(
        namespace,
        "multiply_add",
        is_op("relax.add")(product, wildcard()),
        annotations={"product": product},
        check=check,
        example=example,
    )


def check(match: Mapping[str, Any]) -> bool | byoc.Reject:
    """The rule for single operators, for both. A match whose product is used elsewhere never gets here."""
    verdict = takes(None, match["product"].args)
    return takes(None, match["root"].args) if verdict is True else verdict


def example() -> tvm.IRModule:
    """A graph with one match, for the conformance kit."""
    a, b, c = (relax.Var(name, relax.TensorType((3, 5), "float32")) for name in "abc")
    builder = relax.BlockBuilder()
    with builder.function("main", [a, b, c]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(relax.op.multiply(a, b), c))
        builder.emit_func_output(result)
    return builder.get()
