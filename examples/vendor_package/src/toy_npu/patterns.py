"""Which subgraphs the toy takes as one: a product and a sum are one instruction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        example=byoc.pattern_example(multiply_add, (3, 5), (3, 5), (3, 5)),
    )


def check(match: Mapping[str, Any]) -> bool | byoc.Reject:
    """The rule for single operators, for both. A match whose product is used elsewhere never gets here."""
    verdict = takes(None, match["product"].args)
    return takes(None, match["root"].args) if verdict is True else verdict


def multiply_add(a: Any, b: Any, c: Any) -> relax.Expr:
    """What the pattern matches, for the conformance kit."""
    return relax.op.add(relax.op.multiply(a, b), c)
