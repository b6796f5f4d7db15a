"""What may read beyond a tensor's end stays with TVM, whose functions here look at sizes and indices."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tvm import relax

from tests.harness import Case, Operand, const, data, refuse

op, pad = relax.op, relax.op.nn.pad
UNKNOWN = "indices that are known only at run time"
#: mode, widths, shape, what is said
PADS = [
    ("reflect", [3, 0], (3,), "of an axis of 3 elements: it reads 4"),
    ("circular", [0, 4], (3,), "of an axis of 3 elements: it reads 4"),
    ("replicate", [1, 0], (0,), "of an axis of 0 elements: it reads 1"),
    ("reflect", [0, 0, 0, 2], (2, "n"), "of an axis of n elements: it reads 3"),
]


def indices(*values: Any) -> Operand:
    return const(values=list(values), dtype="int64")


def given(*values: Any) -> Operand:
    return data(values=list(values), dtype="int64")


def row(name: str, reason: str, function: Any, *operands: Operand) -> Any:
    symbols = {"n": 5} if any("n" in operand.shape for operand in operands) else {}
    return refuse(name, reason, function, *operands, symbols=symbols, compiler="ccompiler", prepare=False)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        *(
            row(f"{mode}-{shape}", why, partial(pad, pad_width=widths, pad_mode=mode), data(*shape))
            for mode, widths, shape, why in PADS
        ),
        row("take-input", UNKNOWN, partial(op.take, axis=0), data(4, 5), given(1)),
        row("take-beyond", "out of range of [4]", partial(op.take, axis=0), data(4, 5), indices(3, 4)),
        row("take-before", "out of range of [4]", partial(op.take, axis=0), data(4, 5), indices(0, -1)),
        row("take-flat", "out of range of [20]", partial(op.take, axis=None), data(20), indices(20)),
        row("take-open", "an axis of [n]", partial(op.take, axis=0), data("n", 5), indices(0)),
        row("gather-input", UNKNOWN, op.gather_elements, data(4), given(1)),
        row("gather-beyond", "out of range of [5]", partial(op.gather_elements, axis=1), data(1, 5), indices([5])),
        row("gather-nd-input", UNKNOWN, op.gather_nd, data(4, 5), given([1, 1])),
        row("gather-nd-beyond", "out of range of [4, 5]", op.gather_nd, data(4, 5), indices([3, 4], [4, 0])),
        row(
            "gather-nd-batch", "out of range of [3]", partial(op.gather_nd, batch_dims=1), data(2, 3), indices([0], [3])
        ),
    ],
)
def test_refused(case: Case, reason: str) -> None:
    case.is_refused(reason)
