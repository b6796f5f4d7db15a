"""Large constant weights that a product reads transposed reach oneDNN as they are stored, and TVM as constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_byoc_dnnl as byoc
from tests.unit.importing import rand, run
from tvm_byoc_dnnl.ir.relax_utils import op_calls
from tvm_byoc_dnnl.partitioning.trial import PlacedBy
from tvm_byoc_dnnl.prepare import FoldTransposed, Prepare, constants

LARGE, SMALL = rand(521, 509), rand(13, 509)
X = rand(3, 509, seed=2)


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte is large here."""
    monkeypatch.setattr(constants, "_TRANSPOSED", 1 << 20)


def module(function: Callable[[Any, Any], Any], weights: np.ndarray = LARGE) -> tvm.IRModule:
    """``function(x, weights)`` as a module."""
    x = relax.Var("x", relax.TensorType((3, 509), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(function(x, relax.const(weights)))
        builder.emit_func_output(out)
    return builder.get()


def product(x: Any, w: Any) -> Any:
    return R.matmul(x, R.permute_dims(w))


def product_and_sum(x: Any, w: Any) -> Any:
    return R.add(product(x, w), R.sum(w, axis=1))


KEPT = {"product": product, "read as they are as well": product_and_sum}


def transposed(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """Shapes of the transposed tensors of all functions, composites included."""
    found: list[tuple[int, ...]] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.permute_dims":
            found.append(tuple(int(d) for d in expr.ty.shape))

    for func in mod.functions.values():
        relax.analysis.post_order_visit(func, visit)
    return found


@pytest.mark.parametrize("function", KEPT.values(), ids=KEPT)
def test_weights_stay_as_they_are_stored(function: Callable[[Any, Any], Any]) -> None:
    mod = byoc.partition(module(function), "dnnl")
    assert transposed(mod) == [LARGE.T.shape]
    assert not [call for _, call in op_calls(mod["main"])], "a region has all"


def test_other_compilers_get_constants() -> None:
    assert transposed(byoc.partition(module(product), ["dnnl", "ccompiler"])) == []


def test_small_weights_and_those_with_two_readers_are_constants() -> None:
    def twice(x: Any, w: Any) -> Any:
        turned = relax.BlockBuilder.current().emit(R.permute_dims(w))
        return R.add(R.matmul(x, turned), R.matmul(R.exp(x), turned))

    for mod in (module(product, SMALL), module(twice)):
        assert transposed(Prepare(keep_transposed=True)(mod)) == []


def test_preparing_alone_makes_constants() -> None:
    assert transposed(Prepare()(module(product))) == []


GIVEN_BACK: dict[str, tuple[dict[str, str], byoc.RegionPolicy | None]] = {
    "placed": ({"relax.matmul": "tvm"}, None),
    "excluded": ({}, byoc.RegionPolicy(exclude=["relax.matmul"])),
    "not worth a region": ({}, byoc.RegionPolicy(min_flops=1 << 40)),
}


@pytest.mark.parametrize(("placement", "policy"), GIVEN_BACK.values(), ids=GIVEN_BACK)
def test_weights_that_go_back_are_constants(placement: dict[str, str], policy: byoc.RegionPolicy | None) -> None:
    annotate = byoc.AnnotateExternalCompiler("dnnl", choice=PlacedBy(placement))
    mod = byoc.PartitionGraph(policy=policy)(annotate(module(product)))
    assert [call.op.name for _, call in op_calls(mod["main"])] == ["relax.matmul"]
    assert transposed(mod) == []


SCALED = {
    "a number": lambda x, w: R.multiply(product(x, w), relax.const(np.float32(0.3))),
    "columns": lambda x, w: R.multiply(product(x, w), relax.const(rand(521, seed=3))),
    "input": lambda x, w: product(R.multiply(x, relax.const(rand(509, seed=4))), w),
}


@pytest.mark.parametrize("function", SCALED.values(), ids=SCALED)
def test_scales_are_folded_into_transposed_weights(function: Callable[[Any, Any], Any]) -> None:
    mod = Prepare(keep_transposed=True)(module(function))
    names = [call.op.name for _, call in op_calls(mod["main"])]
    assert names == [call.op.name for _, call in op_calls(Prepare()(module(function))["main"])]
    np.testing.assert_allclose(run(mod, X)[0], run(module(function), X)[0], rtol=1e-4, atol=1e-3)


def test_what_is_left_is_transposed() -> None:
    kept = Prepare(keep_transposed=True)(module(product))
    assert transposed(kept) == [LARGE.T.shape]
    folded = FoldTransposed(kept)
    assert transposed(folded) == []
    np.testing.assert_array_equal(run(folded, X)[0], run(kept, X)[0])
