"""Local response normalisation, which Relax writes as an average over neighbouring channels.

    x ──┬── multiply(x, x) ── expand_dims ── avg_pool3d ── squeeze ── multiply(α) ── add(k) ── power(β) ──┐
        └──────────────────────────────────────────────────────────────────────────────────────────── divide

The window of the pooling is n channels and nothing else; each count includes the padding, as oneDNN's sum does.
"""

from __future__ import annotations

from typing import Any

from tvm.relax.dpl import is_op, wildcard

from ...vendor import GraphBuilder, Value, register_pattern, require
from .common import ints, require_float
from .matching import Match, constant, number, require_shape
from .pattern_examples import EXAMPLES

__all__: list[str] = []


def _window(match: Match) -> int:
    """The number of channels that the pooling averages."""
    attrs = match["pool"].attrs
    expand, squeeze = match["expand"].attrs, match["squeeze"].attrs
    require(
        ints(expand.axis) == [1] and squeeze.axis is not None and ints(squeeze.axis) == [1],
        "the channels are not brought to an axis of their own in front of them",
    )
    require(str(attrs.layout) == str(attrs.out_layout) == "NCDHW", f"pooling in layout {attrs.layout}")
    size, *others = ints(attrs.pool_size)
    require(others == [1, 1], f"pooling over a window of {size} channels and {others} positions")
    require(size % 2 == 1, f"a window of {size} channels; oneDNN's has a middle")
    around = size // 2
    wanted = [around, 0, 0, around, 0, 0]
    require(ints(attrs.padding) == wanted, f"pooling with padding {ints(attrs.padding)}, expected {wanted}")
    plain = ints(attrs.strides) == ints(attrs.dilation) == [1, 1, 1] and not attrs.ceil_mode
    require(plain, "pooling with strides or dilation")
    require(bool(attrs.count_include_pad), "an average that leaves out the padding")
    return size


def _lrn(match: Match) -> bool:
    """``x / (k + α·average(x²))^β`` over neighbouring channels."""
    require_shape(match)
    for name in ("alpha", "k", "beta"):
        number(match, name)
    _window(match)
    return True


def _lower(g: GraphBuilder, match: Match) -> Value:
    src = g.value(match["x"])
    require_float("lrn", src)
    alpha, beta, k = (number(match, name) for name in ("alpha", "beta", "k"))
    attrs: dict[str, Any] = {"alg": "across_channels", "local_size": _window(match)}
    return g.emit("lrn", [src], src.shape, **attrs, alpha=alpha, beta=beta, k=k)


def _register() -> None:
    x, alpha, k, beta = wildcard(), constant(), constant(), constant()
    expand = is_op("relax.expand_dims")(is_op("relax.multiply")(x, x))
    pool = is_op("relax.nn.avg_pool3d")(expand)
    squeeze = is_op("relax.squeeze")(pool)
    scale = is_op("relax.add")(is_op("relax.multiply")(squeeze, alpha), k)
    root = is_op("relax.divide")(x, is_op("relax.power")(scale, beta))
    annotations = {"x": x, "expand": expand, "pool": pool, "squeeze": squeeze, "alpha": alpha, "k": k, "beta": beta}
    example = EXAMPLES["lrn"]
    register_pattern("dnnl", "lrn", root, annotations=annotations, check=_lrn, lower=_lower, example=example)


_register()
