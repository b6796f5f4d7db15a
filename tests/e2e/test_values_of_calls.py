"""Every operator that takes indices, counts or sizes from a call, with values that have no result: docs/limits.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import helper

import tvm_byoc_dnnl as byoc
from tests.unit.importing import node, onnx_model, rand
from tvm_byoc_dnnl.core import limits
from tvm_byoc_dnnl.core.errors import InputIndexError, InputValueError

pytestmark = pytest.mark.native
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text()
X = rand(3, 4)
FAR = (-(2**63), -(2**31), 2**31, 10**12, 2**63 - 1)


class Row(NamedTuple):
    """Operands of one operator in order, the one that is changed, its wrong values, and what they give."""

    op: str
    operands: dict[str, np.ndarray]
    changed: str
    wrong: tuple[Any, ...]
    says: str
    error: type[Exception] = InputIndexError
    attrs: Mapping[str, Any] = MappingProxyType({})
    opset: int = 18
    outputs: int = 1


def _ints(*values: Any) -> np.ndarray:
    return np.array(values, "int64")


def _at(value: int) -> np.ndarray:
    return _ints([0, 1], [value, 0])


INDEX, SIZE, MANY, ZERO = "out of range", "below 0", "elements", "a divisor is 0"
NO_VALUE = InputValueError
ROWS = [
    Row("Gather", {"x": X, "i": _ints(0, 2)}, "i", tuple(_ints(0, v) for v in (3, -4, *FAR)), INDEX),
    Row("GatherElements", {"x": X, "i": _at(2)}, "i", tuple(map(_at, (3, -4, *FAR))), INDEX),
    Row("GatherND", {"x": X, "i": _at(2)}, "i", tuple(map(_at, (3, -4, *FAR))), INDEX),
    *(
        Row(op, {"x": X, "i": _at(2), "u": u}, "i", tuple(map(_at, (3, -4, *FAR))), INDEX, attrs={"reduction": kind})
        for op, u in (("ScatterElements", rand(2, 2)), ("ScatterND", rand(2)))
        for kind in ("none", "add", "max")
    ),
    Row(
        "RoiAlign",
        {"x": rand(2, 1, 8, 8), "r": np.array([[0, 0, 4, 4]], "f4"), "i": _ints(1)},
        "i",
        tuple(_ints(v) for v in (2, -1, *FAR)),
        INDEX,
        attrs={"output_height": 2, "output_width": 2},
    ),
    Row(
        "RoiAlign",
        {"x": rand(2, 1, 8, 8), "r": np.array([[0, 0, 4, 4]], "f4"), "i": _ints(1)},
        "r",
        tuple(np.array([[0, 0, v, 4]], "f4") for v in (np.nan, np.inf, -np.inf, 1e30, -1e30)),
        "a corner of a box is not a number from",
        NO_VALUE,
        {"output_height": 2, "output_width": 2},
    ),
    Row(
        "MaxRoiPool",
        {"x": rand(2, 1, 8, 8), "r": np.array([[1, 0, 0, 4, 4]], "f4")},
        "r",
        tuple(np.array([[v, 0, 0, 4, 4]], "f4") for v in (2, -1, 1e9, np.nan, np.inf)),
        INDEX,
        attrs={"pooled_shape": [2, 2]},
    ),
    *(
        Row(op, {"x": np.array([7], dtype), "i": np.array([2], dtype)}, "i", (np.array([0], dtype),), ZERO, NO_VALUE)
        for op in ("Div", "Mod")
        for dtype in ("int8", "uint16", "int32", "int64")
    ),
    Row("Range", {"s": np.array(0), "e": np.array(9), "i": np.array(2)}, "i", (np.array(0),), ZERO, NO_VALUE),
    Row(
        "Slice",
        {"x": X, "s": _ints(0), "e": _ints(2), "a": _ints(0), "i": _ints(1)},
        "i",
        (_ints(0),),
        "a step is 0",
        NO_VALUE,
    ),
    Row("Tile", {"x": X, "i": _ints(1, 2)}, "i", tuple(_ints(1, v) for v in (-1, -(2**31))), SIZE, NO_VALUE),
    Row("Tile", {"x": X, "i": _ints(1, 2)}, "i", tuple(_ints(1, v) for v in (10**12, 2**60)), MANY, NO_VALUE),
    *(
        Row("Expand", {"x": rand(1, 4), "i": _ints(2, 4)}, "i", tuple(_ints(v, 4) for v in wrong), why, NO_VALUE)
        for why, wrong in ((SIZE, (-2, -(2**63))), (MANY, (10**12, 2**62)))
    ),
    Row("ScatterElements", {"x": X, "i": _at(2), "u": rand(2, 2)}, "i", (_at(3),), INDEX, opset=11),
]


def _model(row: Row) -> Any:
    names = list(row.operands)
    given = [name for name in dict.fromkeys((names[0], row.changed)) if name in names]
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in row.operands.items()}
    outputs = [f"y{i}" for i in range(row.outputs)]
    attrs = {k: v for k, v in row.attrs.items() if not (k == "reduction" and (v == "none" or row.opset < 16))}
    return onnx_model(
        [node(row.op, names, outputs, **attrs)],
        {name: row.operands[name].shape for name in given},
        {name: a for name, a in row.operands.items() if name not in given},
        opset=row.opset,
        outputs=outputs,
        dtypes={**kinds, "y0": kinds[names[0]]},
    )


@pytest.mark.parametrize("row", ROWS, ids=[f"{r.op}-{r.changed}-{n}" for n, r in enumerate(ROWS)])
def test_a_value_without_a_result(row: Row) -> None:
    run = byoc.Runner(byoc.compile(_model(row)))
    good = {i.name: row.operands[i.name] for i in run.inputs}
    first = run(**good)
    for wrong in row.wrong:
        with pytest.raises(row.error, match=row.says):
            run(**{**good, row.changed: wrong})
        np.testing.assert_array_equal(run(**good), first)


def test_the_page_names_each_operator() -> None:
    table = PAGE.partition("## When the model is called")[2]
    missing = {row.op for row in ROWS if f"`{row.op}`" not in table}
    assert not missing


def test_the_page_has_each_limit() -> None:
    known = {name: value for name, value in vars(limits).items() if name.startswith("MOST_")}
    bits = re.search(r"kMostRounds = int64_t\{1\} << (\d+);", (ROOT / "codegen_src/runtime/loop.cc").read_text())
    assert bits is not None
    known["MOST_ROUNDS"] = 1 << int(bits[1])
    for name, value in known.items():
        assert f"| {name} | {value:,} |" in PAGE
    assert PAGE.count("| MOST_") == len(known)
