"""Every entry of the table of operators, on ONNX's own examples: alone, in a branch that a call chooses, and open.

The examples are those of one node. In a branch the same node stands in both branches, so either must give the
example's result. With every size open, equal sizes are one symbol, and sizes of 1 stay: a node may be refused then,
but it is never wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.frontends.onnx import ops  # noqa: F401  (which fills the table)
from tvm_byoc_dnnl.frontends.onnx.inputs import deciding_inputs, with_constants
from tvm_byoc_dnnl.frontends.onnx.table import entries, entry_of

pytestmark = pytest.mark.native
FLAG = "which_branch"
#: operators whose results nobody can say
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


@cache
def examples() -> dict[str, Any]:
    """Name → an example of one node that has an entry."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    found = {}
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain or not case.data_sets or nodes[0].op_type in RANDOM:
            continue
        opset = next(o.version for o in case.model.opset_import if not o.domain)
        if entry_of("", nodes[0].op_type, opset) is not None:
            found[case.name] = case
    return found


@cache
def sample() -> list[str]:
    """One example of each entry; the others are for `make test-onnx`."""
    first: dict[Any, str] = {}
    for name, case in examples().items():
        opset = next(o.version for o in case.model.opset_import if not o.domain)
        first.setdefault(entry_of("", case.model.graph.node[0].op_type, opset), name)
    return list(first.values())


def parameters() -> list[Any]:
    chosen = {*sample()}
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.onnx) for name in examples()]


def alone(model: onnx.ModelProto) -> onnx.ModelProto:
    return model


def in_a_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its node in both branches of an `If`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (node,) = copy.graph.node
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.output[:] = [f"{name}_{o}" if o else "" for o in node.output]
        results = [helper.make_empty_tensor_value_info(o) for o in inner.output if o]
        branches[name] = helper.make_graph([inner], name, [], results)
    del copy.graph.node[:]
    copy.graph.node.append(helper.make_node("If", [FLAG], [o for o in node.output if o], **branches))
    copy.graph.input.append(helper.make_tensor_value_info(FLAG, TensorProto.BOOL, []))
    return copy


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with symbols in the place of its inputs' sizes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"n{dim.dim_value}"
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return copy


def results(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    runner = byoc.Runner(byoc.compile(model))
    return flat([runner(*(feeds[i.name] for i in model.graph.input))])


def flat(values: Any) -> list[np.ndarray]:
    """The tensors of results, of which some are sequences."""
    parts = [flat(v) if isinstance(v, (list, tuple)) else [as_array(v)] for v in values]
    return [tensor for part in parts for tensor in part]


def compare(name: str, change: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    case = examples()[name]
    inputs, wanted = case.data_sets[0]
    feeds = {i.name: value for i, value in zip(case.model.graph.input, inputs, strict=False)}
    if not all(isinstance(v, (np.ndarray, np.generic)) for v in feeds.values()):
        pytest.skip("sequences and optionals are no inputs of a model")
    deciding = deciding_inputs(case.model)
    constants = {k: numpy_helper.from_array(np.asarray(feeds.pop(k)), k) for k in deciding}
    model = change(with_constants(case.model, constants) if constants else case.model)
    if not model.graph.input:
        pytest.skip("all of it is constant")
    for flag in (True, False) if change is in_a_branch else (True,):
        got = results(model, {k: np.asarray(v) for k, v in feeds.items()} | {FLAG: np.array(flag)})
        for one, other in zip(got, flat(wanted), strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            tolerance = max(getattr(case, "rtol", 1e-3), 2**-6 if other.dtype.name == "bfloat16" else 0)  # as ONNX's
            np.testing.assert_allclose(one.astype("float64"), other.astype("float64"), rtol=tolerance, atol=1e-6)


def as_array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def refused(name: str, change: Callable[[onnx.ModelProto], onnx.ModelProto] = alone) -> str:
    """Why an example is refused; nothing if it is right."""
    try:
        compare(name, change)
    except (InputError, UnsupportedError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", parameters())
def test_alone_and_in_a_branch(name: str) -> None:
    if refused(name):
        with pytest.raises(UnsupportedError):
            compare(name, in_a_branch)
    else:
        compare(name, in_a_branch)


@pytest.mark.parametrize("name", parameters())
def test_with_open_sizes(name: str) -> None:
    reason = refused(name, opened)
    op = examples()[name].model.graph.node[0].op_type
    needs_sizes = op in NEED_SIZES or any(words in reason for words in NEEDED_SIZES)
    assert not reason or needs_sizes or refused(name), reason


#: operators that need some sizes when they are compiled: of weights
NEED_SIZES = {"Attention", "DeformConv", "GatherND", "RotaryEmbedding"}
#: and reasons that say which size is needed
NEEDED_SIZES = ("expected an axis of a known size",)


def test_that_every_operator_of_the_table_has_an_example() -> None:
    without = {entry.op for entry in entries() if not entry.domain} - {
        case.model.graph.node[0].op_type for case in examples().values()
    }
    assert without - RANDOM == WITHOUT_EXAMPLE


#: operators whose examples have several nodes, or that have none
WITHOUT_EXAMPLE = {
    *("Affine", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"),  # which ONNX no longer has
    "ConcatFromSequence",
    "GlobalLpPool",
    "MaxRoiPool",
    "Optional",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceLength",
    "SimplifiedLayerNormalization",
}
