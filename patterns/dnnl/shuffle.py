"""Channel shuffle, which Relax writes with three shape operators.

    reshape (N, a, b, H, W) ── permute_dims (0, 2, 1, 3, 4) ── reshape (N, a·b, H, W)      shuffle

One primitive that reads and writes the layouts of convolutions, where the views would need plain ones.
"""

from __future__ import annotations

from tvm.relax.dpl import is_op, wildcard

from ...vendor import GraphBuilder, Reject, Value, register_pattern, require, static_shape
from .common import ints, require_float
from .matching import Match
from .pattern_examples import EXAMPLES

__all__: list[str] = []


def _axis(match: Match) -> int:
    """The axis that is shuffled."""
    before, apart, after = (static_shape(match[key].ty) for key in ("x", "apart", "root"))
    if before is None or apart is None or after is None:
        raise Reject("a shuffle of a symbolic shape")
    require(before == after, f"a shape {before} becomes {after}; a shuffle keeps it")
    axes = match["permute"].attrs.axes
    order = ints(axes) if axes is not None else list(range(len(apart)))[::-1]
    for axis, dim in enumerate(before):
        swapped = list(range(len(apart)))
        swapped[axis : axis + 2] = swapped[axis : axis + 2][::-1]
        split = apart[:axis] == before[:axis] and apart[axis + 2 :] == before[axis + 1 :]
        if order == swapped and split and apart[axis] * apart[axis + 1] == dim:
            return axis
    raise Reject(f"axes {order} of {apart} swap no two parts of one axis of {before}")


def _channel_shuffle(match: Match) -> bool:
    """Two parts of one axis change places."""
    _axis(match)
    return True


def _lower(g: GraphBuilder, match: Match) -> Value:
    src, axis = g.value(match["x"]), _axis(match)
    require_float("shuffle", src)
    shape = static_shape(match["apart"].ty)
    assert shape is not None
    return g.emit("shuffle", [src], src.shape, axis=axis, group_size=shape[axis + 1])


def _register() -> None:
    x = wildcard()
    apart = is_op("relax.reshape")(x, wildcard())
    permute = is_op("relax.permute_dims")(apart)
    root = is_op("relax.reshape")(permute, wildcard())
    annotations = {"x": x, "apart": apart, "permute": permute}
    register_pattern(
        "dnnl",
        "channel_shuffle",
        root,
        annotations=annotations,
        check=_channel_shuffle,
        lower=_lower,
        example=EXAMPLES["channel_shuffle"],
    )


_register()
