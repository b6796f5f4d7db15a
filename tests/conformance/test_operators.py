"""No operator is imported on its entry's word alone: each entry of the table is compared, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tvm_byoc_dnnl as byoc
from tests.conformance.onnx_suite import read_record
from tests.conformance.operators import Case, f
from tests.conformance.operators_in_groups import GROUPS
from tests.harness import assert_right
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.frontends.onnx import walk  # noqa: F401 - the table
from tvm_byoc_dnnl.frontends.onnx.table import entries
from tvm_byoc_dnnl.testing.models import ort_run

pytestmark = pytest.mark.native

CASES = [case for group in GROUPS for case in group()]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_operator(case: Case) -> None:
    model, arrays = case.model(), case.feeds()
    if case.refused:
        with pytest.raises(UnsupportedError, match=case.refused):
            byoc.compile(model)
        return
    got = byoc.Runner(byoc.compile(model))(*arrays)
    results = got if isinstance(got, Sequence) else [got]
    for result, wanted in zip(results, judged(case, model), strict=True):
        rough = np.asarray(wanted).dtype == np.float16
        assert_right(np.asarray(result), np.asarray(wanted), 2e-3 if rough else 1e-5, least=1.0, elementwise=True)


def judged(case: Case, model: onnx.ModelProto) -> list[np.ndarray]:
    """The results as they should be."""
    feeds = dict(zip((i.name for i in model.graph.input), case.feeds(), strict=True))
    if case.judge == "ort":
        return list(ort_run(model, feeds))
    if case.judge == "onnx":
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(model).run(None, feeds))
    assert callable(case.judge)
    found = case.judge(*(given[0] if isinstance(given, tuple) else given for given in case.inputs if len(given)))
    return list(found) if isinstance(found, tuple) else [found]


def test_every_entry_is_compared() -> None:
    """In ONNX's suite, whose record says what does not pass, or in a case here."""
    from onnx.backend.test.case.node import collect_testcases

    failing = {name.removesuffix("_cpu") for name in read_record("ours")[1]}
    with np.errstate(all="ignore"):
        passing = [case.model for case in collect_testcases(None) if case.name not in failing]
    compared = {node.op_type for model in passing if model is not None for node in model.graph.node}
    compared |= {case.op for case in CASES if not case.refused}
    missing = {entry.op for entry in entries() if not entry.domain} - compared - {*SEQUENCES} - ELSEWHERE
    assert not missing, f"without a comparison: {sorted(missing)}"


#: whose distributions are judged in tests/unit/test_frontend_random.py, or which ONNX Runtime alone has
ELSEWHERE = {
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Affine", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh", "SimplifiedLayerNormalization"),
}
#: compared below, together
SEQUENCES = [
    *(f"Sequence{kind}" for kind in ("At", "Construct", "Empty", "Erase", "Insert", "Length")),
    *("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"),
]


@pytest.mark.parametrize(("position", "new_axis"), [(-1, 0), (0, 1), (1, 1)])
def test_sequences(position: int, new_axis: int) -> None:
    node, x, z = onnx.helper.make_node, f(2, 3), f(2, 3, seed=2)
    nodes = [
        node("SequenceConstruct", ["x", "z", "x"], ["s"]),
        node("SequenceInsert", ["s", "z", "position"], ["t"]),
        node("SequenceErase", ["t", "position"], ["u"]),
        node("SequenceAt", ["u", "last"], ["a"]),
        node("SequenceLength", ["t"], ["n"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=1, new_axis=new_axis),
        node("SequenceEmpty", [], ["e"]),
        node("SequenceInsert", ["e", "a"], ["w"]),
        node("SequenceAt", ["w", "position0"], ["b"]),
        node("Optional", ["b"], ["o"]),
        node("OptionalHasElement", ["o"], ["has"]),
        node("OptionalGetElement", ["o"], ["got"]),
    ]
    results = ["a", "n", "y", "b", "has", "got"]
    constants = {"position": position, "last": -1, "position0": 0}
    graph = onnx.helper.make_graph(
        nodes,
        "sequences",
        [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in ("x", "z")],
        [onnx.helper.make_empty_tensor_value_info(n) for n in results],
        [onnx.numpy_helper.from_array(np.array(v), k) for k, v in constants.items()],
    )
    assert {n.op_type for n in nodes} == {*SEQUENCES}
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    *want, _got = ReferenceEvaluator(model).run(None, {"x": x, "z": z})  # it keeps an optional as a list of one
    for result, wanted in zip(byoc.Runner(byoc.compile(model))(x, z), [*want, want[3]], strict=True):
        np.testing.assert_array_equal(np.asarray(result), wanted)


#: operators of ONNX Runtime, which the standard does not have
NOT_ONNX = ("BiasGelu", "EmbedLayerNormalization", "FastGelu", "MatMulInteger16", "SkipLayerNormalization")


@pytest.mark.parametrize("op", NOT_ONNX)
def test_what_is_no_operator_of_onnx_is_refused_in_its_domain(op: str) -> None:
    node = onnx.helper.make_node(op, ["x", "x"], ["y"])
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in ("x", "y")]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:]))
    with pytest.raises(UnsupportedError, match=op):
        byoc.to_relax(model)


def test_every_attribute_is_given_another_value_somewhere() -> None:
    """Of the operators that have cases here, whose attributes ONNX's own tests leave alone."""
    given = {(case.op, name) for case in CASES for name in case.attrs}
    wanted = {
        *(
            (f"Reduce{kind}", "noop_with_empty_axes")
            for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min")
        ),
        *(("RoiAlign", name) for name in ("mode", "spatial_scale", "sampling_ratio")),
        *(("EyeLike", name) for name in ("dtype", "k")),
        *(("LpPool", name) for name in ("ceil_mode", "dilations", "auto_pad", "p")),
        *(("TopK", name) for name in ("sorted", "largest", "k")),
        *(("Conv", "dilations"), ("MeanVarianceNormalization", "axes"), ("Upsample", "mode")),
    }
    assert wanted <= given
    assert len(list(chain.from_iterable(group() for group in GROUPS))) == len({case.name for case in CASES})
