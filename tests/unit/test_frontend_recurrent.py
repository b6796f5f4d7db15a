"""LSTM, GRU and RNN of ONNX: one call each, and what it computes, with the library and without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.unit.importing import node, onnx_model, ops, rand
from tests.unit.recurrent_reference import layer
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.runtime.comparison import differences
from tvm_byoc_dnnl.testing.models import ort_run

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
WAYS = {"forward": ["forward"], "reverse": ["reverse"], "bidirectional": ["forward", "reverse"]}
OPEN = ("steps", "batch")
#: name in ONNX → the name, alpha and beta of the reference
CURVES = {
    "Sigmoid": ("sigmoid", 0, 0),
    "Tanh": ("tanh", 0, 0),
    "Relu": ("relu", 0, 0),
    "Affine": ("affine", 0.7, 0.2),
    "LeakyRelu": ("leaky_relu", 0.1, 0),
    "ThresholdedRelu": ("thresholded_relu", 0.3, 0),
    "ScaledTanh": ("scaled_tanh", 0.9, 1.3),
    "HardSigmoid": ("hard_sigmoid", 0.3, 0.4),
    "Elu": ("elu", 0.6, 0),
    "Softsign": ("softsign", 0, 0),
    "Softplus": ("softplus", 0, 0),
}


class Case:
    """A model of one node, and its reference."""

    def __init__(
        self,
        op: str,
        *,
        direction: str = "forward",
        given: str = "B",
        wanted: str = "YHC",
        hidden: int = 5,
        dims: tuple[Any, Any] = OPEN,
        dtype: str = "float32",
        **attrs: Any,
    ) -> None:
        self.op, self.given, self.dtype, self.attrs, size = op, given, dtype, attrs, 3
        self.ways, self.batch_major = WAYS[direction], bool(attrs.get("layout"))
        count, gates, batch = len(self.ways), GATES[op] * hidden, dims[1]
        self.weights = {
            "w": rand(count, gates, size, seed=1, dtype=dtype),
            "r": rand(count, gates, hidden, seed=2, dtype=dtype) / np.asarray(hidden**0.5, dtype),
            "b": rand(count, 2 * gates, seed=3, dtype=dtype),
            "p": rand(count, 3 * hidden, seed=4, dtype=dtype),
        }
        order = (1, 0, 2) if self.batch_major else (0, 1, 2)
        state = tuple(np.array([count, batch, hidden], object)[list(order)])
        self.inputs: dict[str, Any] = {"x": tuple(np.array([*dims, size], object)[list(order)])}
        names = ["x", "w", "r", "b" if "B" in given else ""]
        for letter, name, shape in (("L", "lengths", (batch,)), ("H", "h", state), ("C", "c", state)):
            is_given = letter in given and (op == "LSTM" or letter != "C")
            names.append(name if is_given else "")
            if is_given:
                self.inputs[name] = shape
        names.append("p" if "P" in given else "")
        while not names[-1]:
            names.pop()
        self.wanted = [w for w in wanted if op == "LSTM" or w != "C"]
        outputs = [w if w in self.wanted else "" for w in "YHC"]
        while not outputs[-1]:
            outputs.pop()
        one = node(op, names, outputs, name="rnn", hidden_size=hidden, direction=direction, **attrs)
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        dtypes = {**dict.fromkeys([*self.inputs, *self.wanted], kind), "lengths": TensorProto.INT32}
        constants = {k: v for k, v in self.weights.items() if k in names}
        opset = 14 if self.batch_major else 17
        self.model = onnx_model([one], self.inputs, constants, outputs=self.wanted, dtypes=dtypes, opset=opset)

    def feeds(self, steps: int, batch: int, lengths: list[int] | None = None) -> dict[str, np.ndarray]:
        sizes = {"steps": steps, "batch": batch}
        shapes = {k: [sizes.get(d, d) for d in shape] for k, shape in self.inputs.items()}
        values = {k: rand(*shape, seed=9 + i, dtype=self.dtype) for i, (k, shape) in enumerate(shapes.items())}
        if "lengths" in values:
            values["lengths"] = np.resize(lengths or [steps, 0, (steps + 1) // 2], batch).astype("int32")
        return values

    def expected(self, feeds: Mapping[str, np.ndarray], curves: list[Any] | None = None) -> list[np.ndarray]:
        def first(name: str) -> np.ndarray | None:
            value = feeds.get(name)
            return value.swapaxes(0, 1) if value is not None and self.batch_major else value

        cell = self.op.lower()
        if self.attrs.get("linear_before_reset"):
            cell = "lbr_gru"
        if self.attrs.get("input_forget"):
            cell = "coupled_lstm"
        every, last, cells = layer(
            cell,
            first("x"),
            self.weights["w"],
            self.weights["r"],
            directions=self.ways,
            curves=curves or [CURVES[name] for name in USUAL[self.op] * len(self.ways)],
            bias=self.weights["b"] if "B" in self.given else None,
            lengths=feeds.get("lengths"),
            state=first("h"),
            memory=first("c"),
            peepholes=self.weights["p"] if "P" in self.given else None,
            clip=self.attrs.get("clip", np.inf),
        )
        results = {"Y": every, "H": last, "C": cells}
        if self.batch_major:
            results = {"Y": every.transpose(2, 0, 1, 3), "H": last.swapaxes(0, 1), "C": cells.swapaxes(0, 1)}
        return [results[w].astype(self.dtype) for w in self.wanted]


def stock(case: Case) -> Any:
    """The model by TVM alone, whose operators kept whole are expanded."""
    vm = relax.VirtualMachine(tvm.compile(to_relax(case.model), "llvm"), tvm.cpu())

    def call(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        result = vm["main"](*[tvm.runtime.tensor(v) for v in feeds.values()])
        return [result.numpy()] if hasattr(result, "numpy") else [r.numpy() for r in result]

    return call


def library(case: Case) -> Any:
    """The model by dnnl, which takes the node."""
    executable = byoc.compile(to_relax(case.model))
    runner = byoc.Runner(executable)

    def call(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        result = runner(*feeds.values())
        return [np.asarray(r) for r in (result if isinstance(result, (list, tuple)) else [result])]

    return call


WAYS_TO_RUN = [stock, pytest.param(library, marks=pytest.mark.native)]
#: steps and sequences that one compiled model gets
SIZES = [(0, 1), (1, 1), (5, 3), (37, 1), (64, 2)]


def compare(case: Case, run_by: Any, curves: list[Any] | None = None, sizes: Any = tuple(SIZES)) -> None:
    call = run_by(case)
    for steps, batch in sizes:
        feeds = case.feeds(steps, batch)
        wrong = differences(call(feeds), case.expected(feeds, curves), 1e-5, least=1.0)
        assert not wrong, (steps, batch, wrong)


def table() -> Iterator[Any]:
    for op in GATES:
        for direction in WAYS:
            yield pytest.param(Case(op, direction=direction, given="BHC"), id=f"{op}-{direction}")
            yield pytest.param(Case(op, direction=direction, given="LHC"), id=f"{op}-{direction}-lengths")
            layout = Case(op, direction=direction, given="BLHC", layout=1)
            yield pytest.param(layout, id=f"{op}-{direction}-layout")
        for hidden in (1, 16, 37):
            yield pytest.param(Case(op, hidden=hidden, direction="bidirectional"), id=f"{op}-hidden-{hidden}")
        for wanted in ("Y", "H", "YH"):
            case = Case(op, wanted=wanted, direction="bidirectional", layout=1)
            yield pytest.param(case, id=f"{op}-wants-{wanted}")
        yield pytest.param(Case(op, clip=0.4, given="BHC"), id=f"{op}-clip")
    yield pytest.param(Case("LSTM", wanted="C"), id="LSTM-wants-C")
    yield pytest.param(Case("LSTM", wanted="YC"), id="LSTM-wants-YC")
    yield pytest.param(Case("LSTM", given="BP"), id="LSTM-peepholes")
    yield pytest.param(Case("LSTM", given="BPHCL", clip=0.5, direction="bidirectional"), id="LSTM-peepholes-clip")
    yield pytest.param(Case("LSTM", given="BHC", input_forget=1), id="LSTM-input-forget")
    yield pytest.param(Case("LSTM", given="PBHC", input_forget=1, clip=0.5), id="LSTM-input-forget-peepholes")
    for given in ("", "B", "BH", "BLH"):
        case = Case("GRU", given=given, direction="bidirectional", linear_before_reset=1)
        yield pytest.param(case, id=f"GRU-linear-{given}")
    yield pytest.param(Case("GRU", given="BH", linear_before_reset=1, clip=0.3), id="GRU-linear-clip")


TABLE = list(table())


@pytest.mark.native
@pytest.mark.parametrize("case", TABLE)
def test_by_the_library(case: Case) -> None:
    compare(case, library)


@pytest.mark.parametrize("case", TABLE[::4])
def test_without_a_compiler(case: Case) -> None:
    compare(case, stock)


@pytest.mark.sweep
@pytest.mark.parametrize("case", TABLE)
def test_all_without_a_compiler(case: Case) -> None:
    compare(case, stock)


def activated(op: str) -> tuple[Case, list[Any]]:
    """Every activation somewhere in one layer of two directions: their numbers are counted through."""
    names = [name for name in CURVES if name not in ("Sigmoid", "Tanh")]
    count = 2 * len(USUAL[op])
    names = (names * 2)[:count] if op == "LSTM" else (names[::-1] * 2)[:count]
    curves = [CURVES[name] for name in names]
    takes = {"Affine": 2, "ScaledTanh": 2, "HardSigmoid": 2, "LeakyRelu": 1, "ThresholdedRelu": 1, "Elu": 1}
    alphas = [alpha for name, (_, alpha, _) in zip(names, curves, strict=True) if name in takes]
    betas = [beta for name, (_, _, beta) in zip(names, curves, strict=True) if takes.get(name) == 2]
    numbers = {f"activation_{name}": values for name, values in (("alpha", alphas), ("beta", betas)) if values}
    case = Case(op, direction="bidirectional", activations=names, clip=1.5, **numbers)
    return case, curves


@pytest.mark.parametrize("run_by", WAYS_TO_RUN)
@pytest.mark.parametrize("op", GATES)
def test_activations(op: str, run_by: Any) -> None:
    case, curves = activated(op)
    compare(case, run_by, curves, [(6, 2)])


@pytest.mark.parametrize("run_by", WAYS_TO_RUN)
@pytest.mark.parametrize("name", CURVES)
def test_one_activation(name: str, run_by: Any) -> None:
    _, alpha, beta = CURVES[name]
    numbers = {"activation_alpha": [alpha]} if alpha else {}
    numbers |= {"activation_beta": [beta]} if beta else {}
    compare(Case("RNN", activations=[name], **numbers), run_by, [CURVES[name]], [(6, 2)])


DEFAULTS = {
    "Affine": (1.0, 0.0), "LeakyRelu": (0.01, 0), "ThresholdedRelu": (1.0, 0), "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5), "Elu": (1.0, 0),
}  # fmt: skip


@pytest.mark.native
@pytest.mark.parametrize("name", DEFAULTS)
def test_numbers_that_an_activation_has_by_default(name: str) -> None:
    compare(Case("RNN", activations=[name]), library, [(CURVES[name][0], *DEFAULTS[name])], [(6, 2)])


@pytest.mark.parametrize("case", TABLE)
def test_onnx_runtime_agrees_with_the_reference(case: Case) -> None:
    if case.batch_major:  # which ONNX Runtime does not have
        return
    feeds = case.feeds(7, 3)
    wrong = differences(ort_run(case.model, feeds), case.expected(feeds), 1e-5, least=1.0)
    assert not wrong, wrong


@pytest.mark.parametrize("name", ["LeakyRelu", "HardSigmoid", "Elu"])  # the others have 0 there, not the standard's
def test_onnx_runtime_has_the_same_defaults(name: str) -> None:
    case = Case("RNN", activations=[name])
    feeds = case.feeds(6, 2)
    expected = case.expected(feeds, [(CURVES[name][0], *DEFAULTS[name])])
    wrong = differences(ort_run(case.model, feeds), expected, 1e-5, least=1.0)
    assert not wrong, wrong


@pytest.mark.parametrize("op", GATES)
def test_onnx_runtime_counts_the_numbers_of_activations_the_same(op: str) -> None:
    case, curves = activated(op)
    feeds = case.feeds(6, 2)
    wrong = differences(ort_run(case.model, feeds), case.expected(feeds, curves), 1e-5, least=1.0)
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"activations": ["Cube", "Tanh", "Tanh"]}, "LSTM has the activation 'cube'; expected one of sigmoid"),
        ({"activations": ["Tanh"]}, "LSTM has 1 activations; expected 3 for each of 1 direction"),
    ],
)
def test_what_the_standard_does_not_have(attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_relax(Case("LSTM", **attrs).model)


@pytest.mark.parametrize("role", ["w", "r", "b", "p"])
def test_weights_of_another_shape(role: str) -> None:
    case = Case("LSTM", given="BP")
    for tensor in case.model.graph.initializer:
        if tensor.name == role:
            tensor.CopyFrom(onnx.numpy_helper.from_array(case.weights[role][:, :-1], role))
    with pytest.raises(InputError, match=r"LSTM has .* of shape"):
        to_relax(case.model)


def test_another_hidden_size() -> None:
    case = Case("GRU")
    next(a for a in case.model.graph.node[0].attribute if a.name == "hidden_size").i = 6
    with pytest.raises(InputError, match="GRU has the hidden_size 6; expected that of its weights, 5"):
        to_relax(case.model)


@pytest.mark.parametrize("run_by", WAYS_TO_RUN)
def test_states_of_another_batch(run_by: Any) -> None:
    case = Case("GRU", given="H")
    case.model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "others"
    feeds = case.feeds(4, 2)
    call = run_by(case)
    wrong = differences(call(feeds), case.expected(feeds), 1e-5, least=1.0)
    assert not wrong, wrong
    with pytest.raises((InputError, RuntimeError)):  # of TVM's machine
        call({**feeds, "h": feeds["h"][:, :1]})


@pytest.mark.native
def test_in_a_branch() -> None:
    case = Case("LSTM", dims=("steps", 2))
    other = [node("ReduceSum", ["x", "last"], ["s"], keepdims=1), node("Expand", ["s", "shape"], ["e"])]
    graphs = [
        onnx.helper.make_graph(nodes, name, [], [onnx.helper.make_tensor_value_info(out, TensorProto.FLOAT, None)])
        for nodes, name, out in ((list(case.model.graph.node), "then", "H"), (other, "else", "e"))
    ]
    del graphs[0].node[0].output[:]
    graphs[0].node[0].output.extend(["", "H"])
    choose = node("If", ["flag"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    constants = {**case.weights, "last": np.array([0, 2]), "shape": np.array([1, 2, 5])}
    model = onnx_model([choose], {"x": ("steps", 2, 3), "flag": ()}, constants, dtypes={"flag": TensorProto.BOOL})
    runner = byoc.Runner(byoc.compile(to_relax(model)))
    for flag in (True, False):
        feeds = {"x": rand(7, 2, 3), "flag": np.array(flag)}
        wrong = differences([runner(feeds)], ort_run(model, feeds), 1e-5, least=1.0)
        assert not wrong, wrong


@pytest.mark.parametrize("run_by", WAYS_TO_RUN)
@pytest.mark.parametrize("length", [-1, 5, 2**31 - 1])
def test_lengths_that_are_none(run_by: Any, length: int) -> None:
    case = Case("GRU", given="L")
    with pytest.raises(IndexError, match="length"):
        run_by(case)(case.feeds(4, 1, [length]))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes_that_the_library_leaves(dtype: str) -> None:
    case = Case("LSTM", dtype=dtype, given="BHCP")
    feeds = case.feeds(4, 2)
    for run_by in (stock, library):
        for got, want in zip(run_by(case)(feeds), case.expected(feeds), strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, want, atol=1e-3 if dtype == "float16" else 1e-13)
    report = byoc.explain(to_relax(case.model)).to_text()
    assert f"source of dtype {dtype}; expected float32" in report


def test_a_definition_is_refused_for_the_reason_of_its_operator() -> None:
    """Also where other calls are taken, so that the operator is expanded when the report is made."""
    weights = {"w": rand(1, 16, 3).astype("float64"), "r": rand(1, 16, 4).astype("float64")}
    nodes = [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4), node("MatMul", ["a", "b"], ["z"])]
    sizes = {"x": (5, 2, 3), "a": (64, 64), "b": (64, 64)}
    model = onnx_model(nodes, sizes, weights, outputs=("y", "z"), dtypes={"x": TensorProto.DOUBLE})
    report = byoc.explain(model)
    reasons = {call.kernel: call.reasons for call in report.calls if not call.compiler}
    assert reasons == {"recurrent_loop": ["dnnl: source of dtype float64; expected float32"]}
    assert [call.op for call in report.calls if call.compiler] == ["relax.matmul"]


def test_a_node_is_one_call_whatever_its_length() -> None:
    for steps in (3, 20_000):
        mod = to_relax(Case("GRU", dims=(steps, 1), direction="bidirectional").model)
        assert ops(mod)["onnx.GRU"] == 1
        regions = [gv.name_hint for gv in byoc.partition(mod).get_global_vars() if gv.name_hint != "main"]
        assert regions == ["dnnl_0"]


@pytest.mark.native
def test_a_long_sequence() -> None:
    compare(Case("LSTM", given="BHC"), library, sizes=[(20_000, 1)])


@pytest.mark.native
def test_weights_that_are_inputs() -> None:
    """They are packed in each call."""
    case = Case("LSTM", given="BP", dims=(4, 2))
    for name in ("w", "r", "b", "p"):
        case.model.graph.input.append(
            onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, case.weights[name].shape)
        )
    del case.model.graph.initializer[:]
    call, feeds = library(case), case.feeds(4, 2)
    for _ in range(2):
        wrong = differences(call({**feeds, **case.weights}), case.expected(feeds), 1e-5, least=1.0)
        assert not wrong, wrong
        case.weights = {name: value * np.float32(0.7) for name, value in case.weights.items()}


@pytest.mark.native
def test_layers_between_other_operators(caplog: pytest.LogCaptureFixture) -> None:
    """Two layers as exporters write them: the directions are joined by a transposition and a reshape."""
    weights = {f"{k}{i}": v for i in range(2) for k, v in Case("LSTM", direction="bidirectional").weights.items()}
    weights["w1"] = rand(2, 20, 10, seed=8)
    steps = []
    for i, source in enumerate(("x", "j0")):
        names = [source, f"w{i}", f"r{i}", f"b{i}"]
        steps += [
            node("LSTM", names, [f"y{i}", f"h{i}"], hidden_size=5, direction="bidirectional"),
            node("Transpose", [f"y{i}"], [f"t{i}"], perm=[0, 2, 1, 3]),
            node("Reshape", [f"t{i}", "shape"], [f"j{i}"]),
        ]
    steps.append(node("Relu", ["j1"], ["y"]))
    constants = {**{k: v for k, v in weights.items() if k[0] != "p"}, "shape": np.array([0, 0, -1])}
    model = onnx_model(steps, {"x": ("steps", "batch", "width")}, constants, outputs=["y", "h1"])
    executable = byoc.compile(to_relax(model))
    assert "not offloaded" not in caplog.text
    for length in (1, 4, 9, 16, 33):
        x = rand(length, 2, 3)
        wrong = differences(byoc.Runner(executable)(x), ort_run(model, {"x": x}), 1e-5, least=1.0)
        assert not wrong, wrong
