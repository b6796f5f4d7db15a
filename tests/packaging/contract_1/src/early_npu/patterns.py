"""Which subgraphs early_npu takes as one: a sum, with the product before it or the relu after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc

from .ops import takes

__all__ = ["register"]


def register(namespace: str) -> None:
    """Register ``a·b + c`` and ``max(a + b, 0)``; where both fit, the one that is registered first is taken."""
    product, total = is_op("relax.multiply")(wildcard(), wildcard()), is_op("relax.add")(wildcard(), wildcard())
    byoc.register_pattern(
        namespace,
        "multiply_add",
        is_op("relax.add")(product, wildcard()),
        annotations={"inner": product},
        check=check,
        example=byoc.pattern_example(multiply_add, (3, 5), (3, 5), (3, 5)),
    )
    byoc.register_pattern(
        namespace,
        "add_relu",
        is_op("relax.nn.relu")(total),
        annotations={"inner": total},
        check=check,
        example=byoc.pattern_example(add_relu, (3, 5), (3, 5)),
    )


def check(match: Mapping[str, Any]) -> bool | byoc.Reject:
    """The rule for single operators, for both. A match whose inner result is used elsewhere never gets here."""
    verdict = takes(None, match["inner"].args)
    return takes(None, match["root"].args) if verdict is True else verdict


def multiply_add(a: Any, b: Any, c: Any) -> relax.Expr:
    """What the first pattern matches, for the conformance kit."""
    return relax.op.add(relax.op.multiply(a, b), c)


def add_relu(a: Any, b: Any) -> relax.Expr:
    """What the second pattern matches, for the conformance kit."""
    return relax.op.nn.relu(relax.op.add(a, b))
