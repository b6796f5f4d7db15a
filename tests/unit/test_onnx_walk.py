"""One walk reads graphs, branches and functions: what a node means does not depend on where it stands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_byoc_dnnl as byoc
from tests.unit.importing import node, onnx_model, rand
from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.frontends.onnx.table import NEWEST
from tvm_byoc_dnnl.ir.relax_utils import codegen_of

FLAG = {"c": TensorProto.BOOL, "d": TensorProto.BOOL}


def branch(nodes: Sequence[onnx.NodeProto], *results: str) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "branch", [], [helper.make_empty_tensor_value_info(r) for r in results])


def either(condition: str, then: onnx.GraphProto, other: onnx.GraphProto, *results: str) -> onnx.NodeProto:
    return node("If", [condition], list(results), then_branch=then, else_branch=other)


def outputs(model: onnx.ModelProto, *arrays: np.ndarray) -> list[np.ndarray]:
    made = byoc.Runner(byoc.compile(model))(*arrays)
    return [np.asarray(m) for m in (made if isinstance(made, (list, tuple)) else [made])]


@pytest.mark.native
@pytest.mark.parametrize(("opset", "axes"), [(11, (1, 2)), (13, (2,))], ids=["flattens", "one axis"])
def test_a_function_is_read_with_the_opset_that_it_imports(opset: int, axes: tuple[int, ...]) -> None:
    """Before opset 13, Softmax is over all axes from its own on."""
    softmax = helper.make_node("Softmax", ["a"], ["b"])
    softmax.attribute.append(onnx.AttributeProto(name="axis", ref_attr_name="along", type=onnx.AttributeProto.INT))
    function = helper.make_function(
        "own", "Smooth", ["a"], ["b"], [softmax], [helper.make_opsetid("", opset)], attributes=["along"]
    )
    axis = 1 if opset < 13 else 2
    model = onnx_model([node("Smooth", ["x"], ["y"], domain="own", along=axis)], {"x": (2, "n", 4)}, opset=17)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    x = rand(2, 3, 4)
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    np.testing.assert_allclose(outputs(model, x)[0], e / e.sum(axis=axes, keepdims=True), rtol=1e-5)


def nested() -> onnx.ModelProto:
    """Branches of other lengths, one of which has a branch, and which read what stands around all of them."""
    inner = either("d", branch([node("Relu", ["a"], ["p"])], "p"), branch([node("Neg", ["a"], ["q"])], "q"), "r")
    then = branch([inner, node("Concat", ["r", "x"], ["t"], axis=0)], "t")
    other = branch([node("Mul", ["a", "w"], ["m"]), node("Shape", ["m"], ["s"]), node("Exp", ["m"], ["e"])], "e")
    nodes = [node("Add", ["x", "w"], ["a"]), either("c", then, other, "y")]
    return onnx_model(nodes, {"c": (), "d": (), "x": ("n", 4)}, {"w": rand(4)}, dtypes=FLAG)


@pytest.mark.native
@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("d", [True, False])
def test_branches_in_branches_with_open_sizes(c: bool, d: bool) -> None:
    x, w = rand(3, 4, seed=2), rand(4)
    a = x + w
    want = np.concatenate([np.maximum(a, 0) if d else -a, x]) if c else np.exp(a * w)
    (got,) = outputs(nested(), np.array(c), np.array(d), x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.native
@pytest.mark.parametrize("c", [True, False])
def test_a_branch_reads_a_tensor_whose_sizes_nothing_else_gives(c: bool) -> None:
    """The branches know `n + 2` and `h + 2`, and need `h` for nothing else: behind the sum the dim is 6."""
    then = branch([node("Add", ["p", "w"], ["s"]), node("Relu", ["s"], ["t"])], "t")
    nodes = [node("Pad", ["x", "around"], ["p"]), either("c", then, branch([node("Sub", ["p", "w"], ["e"])], "e"), "y")]
    x, w = rand(3, 4), rand(6, seed=2)
    model = onnx_model(nodes, {"c": (), "x": ("n", "h")}, {"around": np.array([1, 1, 1, 1]), "w": w}, dtypes=FLAG)
    p = np.pad(x, 1)
    np.testing.assert_array_equal(outputs(model, np.array(c), x)[0], np.maximum(p + w, 0) if c else p - w)


@pytest.mark.native
def test_both_branches_have_regions() -> None:
    w = rand(16, 16)
    ways = [
        branch([node("MatMul", ["x", "w"], [n]), node(op, [n], [o])], o)
        for op, n, o in ("Relu mp p".split(), "Tanh mq q".split())
    ]
    model = onnx_model([either("c", *ways, "y")], {"c": (), "x": (8, 16)}, {"w": w}, dtypes=FLAG)
    module = byoc.partition(to_relax(model))
    regions = [gv.name_hint for gv, func in module.functions.items() if codegen_of(func)]
    assert len(regions) == 2


@pytest.mark.native
def test_the_branch_that_is_not_taken_is_not_computed() -> None:
    """An index beyond the data is an error in the one branch only."""
    ways = [branch([node("Gather", ["x", "i"], ["p"])], "p"), branch([node("Gather", ["x", "j"], ["q"])], "q")]
    types = {**FLAG, "i": TensorProto.INT64, "j": TensorProto.INT64}
    model = onnx_model([either("c", *ways, "y")], {"c": (), "x": (3, 4), "i": (1,), "j": (1,)}, dtypes=types)
    runner, x, one, far = byoc.Runner(byoc.compile(model)), rand(3, 4), np.array([1]), np.array([7])
    np.testing.assert_array_equal(np.asarray(runner(np.array(True), x, one, far)), x[[1]])
    with pytest.raises(IndexError):
        runner(np.array(False), x, one, far)


def test_a_condition_that_is_known_leaves_no_branch() -> None:
    """Of a shape, and of an input's own size; the other branch is not even read."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["size"]),
        node("Equal", ["size", "three"], ["c"]),
        either("c", branch([node("Relu", ["x"], ["p"])], "p"), branch([node("Det", ["x"], ["q"])], "q"), "y"),
    ]
    constants = {"zero": np.array(0), "three": np.array(3)}
    module = to_relax(onnx_model(nodes, {"x": (3, 4)}, constants))
    assert len(module.functions) == 1
    with pytest.raises(InputError, match=r"Det \(node `q`\) needs sizes that are equal, and they are 2 and 4"):
        to_relax(onnx_model(nodes, {"x": (2, 4)}, constants))


@pytest.mark.parametrize("operator", ["Add", "PRelu"])
def test_sizes_that_do_not_broadcast(operator: str) -> None:
    model = onnx_model([node(operator, ["x", "z"], ["y"])], {"x": ("n", 3), "z": (4,)})
    with pytest.raises(InputError, match=r"\(node `y`\) needs sizes that are equal or 1, and they are 3 and 4"):
        to_relax(model)


def test_branches_of_different_dtypes_are_refused() -> None:
    ways = [branch([node("Relu", ["x"], ["p"])], "p"), branch([node("Shape", ["x"], ["q"])], "q")]
    with pytest.raises(UnsupportedError, match=r"If \(node `y`\) has branches whose result 0"):
        to_relax(onnx_model([either("c", *ways, "y")], {"c": (), "x": (2,)}, dtypes=FLAG))


def test_an_opset_that_nobody_has_compared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEWEST, "", 16)
    with pytest.raises(UnsupportedError, match="opset 17"):
        to_relax(onnx_model([node("Relu", ["x"], ["y"])], {"x": (2,)}, opset=17))


def test_an_attribute_that_an_operator_does_not_have_is_refused() -> None:
    with pytest.raises((InputError, UnsupportedError), match="sharpness"):
        to_relax(onnx_model([node("Sigmoid", ["x"], ["y"], sharpness=2.0)], {"x": (2,)}))


def test_of_several_results_the_last_alone() -> None:
    """An entry that knows no numbers of the first one says nothing of the others."""
    module = to_relax(onnx_model([node("Split", ["x"], ["u", "y"], axis=0)], {"x": (4, 3)}))
    assert module["main"].ret_ty.shape[0] == 2


def test_arithmetic_on_shapes_leaves_nothing() -> None:
    """Known numbers are emitted where something reads them as a tensor, and nowhere else."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "zero", "one"], ["n"]),
        node("Mul", ["n", "two"], ["double"]),
        node("Div", ["double", "two"], ["same"]),
        node("Concat", ["same", "rest"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    constants = {"zero": [0], "one": [1], "two": [2], "rest": [2, -1]}
    model = onnx_model(nodes, {"x": ("n", 4)}, {k: np.array(v) for k, v in constants.items()})
    (block,) = to_relax(model)["main"].body.blocks
    assert [getattr(b.value.op, "name", "") for b in block.bindings if hasattr(b.value, "op")] == ["relax.reshape"]
