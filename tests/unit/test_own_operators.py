"""Operators of other domains in ONNX models: imported whole, taken by a compiler, or expanded by their definitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.frontends.onnx import walk  # noqa: F401 - loads the table
from tvm_byoc_dnnl.frontends.onnx.table import entries
from tvm_byoc_dnnl.ir.relax_utils import composite_of, ops_of
from tvm_byoc_dnnl.vendors import namespaces
from tvm_byoc_dnnl.whole.table import DECLARED_LATER

R = relax.op
DOMAIN = "ai.acme"
X = np.random.default_rng(0).standard_normal((5, 8)).astype("float32")
W = np.random.default_rng(1).standard_normal((8, 7)).astype("float32")
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test registers: TVM cannot forget an operator."""
    return f"Own{next(_numbers)}"


@pytest.fixture
def acme() -> Iterator[str]:
    """A compiler that the test gives its predicates."""
    yield "acme"
    namespaces.unregister_compiler("acme")


def gate(bb: relax.BlockBuilder, x: Any, w: Any = None, *, alpha: float = 1.0, mode: str = "relu") -> Any:
    if mode != "relu":
        raise byoc.UnsupportedError(f"the mode `{mode}`; expected relu")
    y = R.multiply(R.nn.relu(x), relax.const(alpha, "float32"))
    return [y if w is None else R.matmul(y, w), R.negative(x)]


def as_function(name: str) -> onnx.FunctionProto:
    """The same, without a product, by operators of ONNX."""
    nodes = [
        helper.make_node("Constant", [], ["factor"]),
        helper.make_node("Relu", ["x"], ["part"]),
        helper.make_node("Mul", ["part", "factor"], ["y"]),
        helper.make_node("Neg", ["x"], ["z"]),
    ]
    nodes[0].attribute.add(name="value_float", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_function(
        DOMAIN, name, ["x"], ["y", "z"], nodes, opsets, attribute_protos=[helper.make_attribute("alpha", 1.0)]
    )


def model(
    name: str,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    *,
    rows: int | str = "n",
    branch: bool = False,
    functions: Sequence[onnx.FunctionProto] = (),
    **attrs: Any,
) -> onnx.ModelProto:
    """One node, perhaps in both branches of an If."""
    wanted = [o for o in outputs if o]
    nodes = [helper.make_node(name, list(inputs), list(outputs), "the_node", domain=DOMAIN, **attrs)]
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8])]
    if branch:
        values.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
        inner = [helper.make_empty_tensor_value_info(o) for o in wanted]
        graph = helper.make_graph(nodes, "inner", [], inner)
        nodes = [helper.make_node("If", ["flag"], wanted, "if", then_branch=graph, else_branch=graph)]
    results = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in wanted]
    graph = helper.make_graph(nodes, "g", values, results, [numpy_helper.from_array(W, "w")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def run(onnx_model: onnx.ModelProto, compiler: str = "ccompiler") -> list[np.ndarray]:
    executable = byoc.compile(onnx_model, compiler)
    feeds = {"x": X, **({"flag": np.array(True)} if len(onnx_model.graph.input) > 1 else {})}
    found = byoc.Runner(executable)(**feeds)
    return found if isinstance(found, list) else [found]


@pytest.mark.native
@pytest.mark.parametrize("branch", [False, True], ids=["top", "branch"])
@pytest.mark.parametrize("rows", ["n", 5])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(["x"], ["y"]), (["x", "w"], ["y"]), (["x"], ["", "z"]), (["x", "w"], ["y", "z"]), (["x", ""], ["y"])],
    ids=str,
)
def test_a_node_is_expanded(inputs: list[str], outputs: list[str], rows: int | str, branch: bool, name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=gate)
    y = np.maximum(X, 0) * 2
    want = {"y": y @ W if "w" in inputs else y, "z": -X}
    got = run(model(name, inputs, outputs, rows=rows, branch=branch, alpha=2.0))
    for array, output in zip(got, filter(None, outputs), strict=True):
        np.testing.assert_allclose(array, want[output], rtol=1e-4, atol=1e-5)


@pytest.mark.native
@pytest.mark.parametrize("branch", [False, True], ids=["top", "branch"])
@pytest.mark.parametrize(("attrs", "factor"), [({}, 1.0), ({"alpha": 3.0}, 3.0)])
def test_a_function_of_onnx_is_a_definition(attrs: dict[str, float], factor: float, branch: bool, name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=as_function(name))
    got = run(model(name, outputs=["y", "z"], branch=branch, **attrs))
    np.testing.assert_allclose(got[0], np.maximum(X, 0) * factor, rtol=1e-6)
    np.testing.assert_allclose(got[1], -X)


@pytest.mark.native
def test_a_registered_definition_is_preferred_to_the_models_own_function(name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=lambda bb, x, *, alpha=1.0: R.add(x, x))
    np.testing.assert_allclose(run(model(name, functions=[as_function(name)]))[0], 2 * X)


def test_a_compiler_takes_the_node(name: str, acme: str) -> None:
    op = byoc.register_onnx_operator(DOMAIN, name, definition=gate)
    byoc.register_annotate_compiler(acme, op)(lambda attrs, args: attrs["alpha"] == 2.0)
    mod = byoc.to_relax(model(name, ["x", "w"], alpha=2.0))
    assert ops_of(mod["main"]) == {op}
    annotated = byoc.AnnotateExternalCompiler(acme)(mod)
    assert [c for f in annotated.functions.values() if (c := composite_of(f))] == [f"acme.{op}"]


def test_reports_name_the_node(name: str, acme: str) -> None:
    op = byoc.register_onnx_operator(DOMAIN, name, definition=gate)
    byoc.register_annotate_compiler(acme, op)(lambda attrs, args: byoc.Reject("alpha is odd"))
    report = byoc.explain(model(name, ["x", "w"], alpha=2.0), compiler=acme)
    assert {call.onnx_node for call in report.calls} == {"the_node"}
    assert "alpha is odd" in str(report)


@pytest.mark.native
def test_sizes_are_shapes_of_numbers_or_of_the_model(name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=lambda bb, x, shape: R.reshape(x, shape), sizes=[1])
    nodes = [
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Gather", ["dims", "order"], ["turned"]),
        helper.make_node(name, ["x", "turned"], ["y"], "the_node", domain=DOMAIN),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([1, 0]), "order")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    got = run(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    np.testing.assert_array_equal(got[0], X.reshape(8, 5))


@pytest.mark.parametrize(
    ("attrs", "error", "message"),
    [
        ({"beta": 1.0}, byoc.InputError, r"\(node `the_node`\) has the attribute `beta`; .*: alpha, mode"),
        ({"mode": "tanh"}, byoc.UnsupportedError, r"\(node `the_node`\) has the mode `tanh`; expected relu"),
        (
            {"mode": helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])},
            byoc.UnsupportedError,
            r"\(node `the_node`\) has the attribute `mode`, which is no number",
        ),
    ],
)
def test_nodes_that_the_operator_cannot_have(attrs: dict[str, Any], error: type, message: str, name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=gate, types=lambda x, w=None, **_: [x.ty, x.ty])
    with pytest.raises(error, match=message):
        byoc.compile(model(name, **attrs), "ccompiler")


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (lambda bb, x: 1 / 0, "the definition of ai.acme.* raised ZeroDivisionError"),
        (lambda bb, x: None, "gives its output 0, which its definition does not compute"),
        (lambda bb, x: 3, "the definition of ai.acme.* returned 3; expected an expression"),
        (lambda bb: None, "the definition of ai.acme.* raised TypeError"),
    ],
)
def test_definitions_that_go_wrong(definition: Any, message: str, name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=definition, types=lambda x: x.ty)
    with pytest.raises(byoc.ByocError, match=message):
        byoc.compile(model(name), "ccompiler")


def test_an_operator_that_nobody_registered(name: str) -> None:
    with pytest.raises(byoc.UnsupportedError, match=rf"ai.acme.{name} \(node `the_node`\)"):
        byoc.to_relax(model(name))


def test_compilers_can_be_registered_for_what_an_importer_declares_later():
    page = (Path(__file__).parents[2] / "docs" / "own_operators.md").read_text()
    for domain, names in DECLARED_LATER.items():
        assert {entry.op for entry in entries() if entry.whole and entry.domain == domain} == set(names)
        assert all(f"`{name}`" in page for name in names)
        assert all(".".join(filter(None, ("onnx", domain, name))) in tvm.ir.Op.list_op_names() for name in names)
    assert {entry.domain for entry in entries() if entry.whole} == set(DECLARED_LATER)
