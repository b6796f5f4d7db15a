"""Sequences that loops carry, and maps of them, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.importing import node, onnx_model, rand
from tests.unit.loops import FLAG, NUMBER, TYPES, agree, body, goes_on, loop
from tvm_byoc_dnnl import compile
from tvm_byoc_dnnl.core.errors import UnsupportedError

pytestmark = pytest.mark.native


def test_a_sequence_is_carried_by_a_loop() -> None:
    """Of a known number of items; they may change."""
    nodes = [
        goes_on(),
        node("SequenceAt", ["q", "zero"], ["a"]),
        node("SequenceAt", ["q", "one"], ["b"]),
        node("Add", ["a", "b"], ["s"]),
        node("SequenceConstruct", ["b", "s"], ["r"]),
    ]
    sequence = helper.make_tensor_sequence_value_info
    values = [
        helper.make_tensor_value_info(name, TYPES.get(name, kind), []) for name, kind in (("k", NUMBER), ("go", FLAG))
    ]
    inner = helper.make_graph(
        nodes,
        "body",
        [*values, sequence("q", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("on", FLAG, []), sequence("r", TensorProto.FLOAT, None)],
    )
    model = onnx_model(
        [
            node("SequenceConstruct", ["x", "x"], ["p"]),
            loop(inner, ["n", "", "p"], ["r"]),
            node("SequenceAt", ["r", "one"], ["y"]),
        ],
        {"n": (), "x": (3,)},
        {"zero": np.array(0), "one": np.array(1)},
        dtypes=TYPES,
    )
    agree(model, *({"n": n, "x": rand(3)} for n in (0, 1, 6)))


def carrying(nodes: Sequence[onnx.NodeProto], after: Sequence[onnx.NodeProto], start: Sequence[str]) -> onnx.ModelProto:
    """A loop over a state ``v`` and a sequence ``q`` that becomes ``r``; ``after`` reads the last one, ``s``."""
    sequence = helper.make_tensor_sequence_value_info
    tensor = helper.make_tensor_value_info
    inner = helper.make_graph(
        [goes_on(), *nodes],
        "body",
        [tensor("k", NUMBER, []), tensor("go", FLAG, []), tensor("v", 1, None), sequence("q", 1, None)],
        [tensor("on", FLAG, []), tensor("w", 1, None), sequence("r", 1, None)],
    )
    first = node("SequenceConstruct", start, ["p"]) if start else node("SequenceEmpty", [], ["p"])
    constants = {"zero": np.array(0), "last": np.array(-1), "two": np.array(2)}
    graph = [first, loop(inner, ["n", "", "x", "p"], ["u", "s"]), *after]
    return onnx_model(graph, {"n": (), "x": ("b", 3)}, constants, dtypes={**TYPES, "z": NUMBER}, outputs=["y", "z"])


LENGTH = node("SequenceLength", ["s"], ["z"])
JOINED = [node("ConcatFromSequence", ["s"], ["y"], axis=0), LENGTH]
#: what a round does with the sequence, what follows the loop, and how the sequence starts
SEQUENCES: dict[str, tuple[list[onnx.NodeProto], list[onnx.NodeProto], list[str]]] = {
    "it grows from nothing": (
        [node("Mul", ["v", "v"], ["w"]), node("SequenceInsert", ["q", "w"], ["r"])],
        JOINED,
        [],
    ),
    "its parts are stacked": (
        [node("Mul", ["v", "v"], ["w"]), node("SequenceInsert", ["q", "w"], ["r"])],
        [node("ConcatFromSequence", ["s"], ["y"], axis=1, new_axis=1), LENGTH],
        [],
    ),
    "it grows in front by items of other sizes": (
        [node("Concat", ["v", "x"], ["w"], axis=0), node("SequenceInsert", ["q", "w", "zero"], ["r"])],
        JOINED,
        ["x"],
    ),
    "it shrinks": (
        [
            node("SequenceAt", ["q", "last"], ["a"]),
            node("Add", ["v", "a"], ["w"]),
            node("SequenceErase", ["q", "zero"], ["r"]),
        ],
        [node("SequenceAt", ["s", "zero"], ["e"]), node("Add", ["e", "u"], ["y"]), LENGTH],
        ["x", "x", "x", "x", "x"],
    ),
    "an item is chosen by a number of the call": (
        [
            node("Mod", ["k", "two"], ["m"]),
            node("SequenceAt", ["q", "m"], ["a"]),
            node("Sub", ["a", "v"], ["w"]),
            node("SequenceErase", ["q", "m"], ["f"]),
            node("SequenceInsert", ["f", "w", "m"], ["r"]),
        ],
        JOINED,
        ["x", "x"],
    ),
}


@pytest.mark.parametrize("what", SEQUENCES)
def test_a_sequence_whose_length_a_call_knows(what: str) -> None:
    model = carrying(*SEQUENCES[what])
    agree(model, *({"n": n, "x": rand(b, 3)} for n, b in ((1, 2), (3, 1), (4, 5))))


def test_elements_that_are_repeated_as_a_call_says() -> None:
    """PyTorch writes ``repeat_interleave`` so: the loop sees that each part has one element."""
    tensor = helper.make_tensor_value_info
    inner = helper.make_graph(
        [
            goes_on(),
            node("SequenceAt", ["parts", "k"], ["part"]),
            node("SequenceAt", ["counts", "k"], ["count"]),
            node("Concat", ["count", "three"], ["shape"], axis=0),
            node("Expand", ["part", "shape"], ["w"]),
            node("SequenceInsert", ["q", "w"], ["r"]),
        ],
        "body",
        [tensor("k", NUMBER, []), tensor("go", FLAG, []), helper.make_tensor_sequence_value_info("q", 1, None)],
        [tensor("on", FLAG, []), helper.make_tensor_sequence_value_info("r", 1, None)],
    )
    nodes = [
        node("Shape", ["v"], ["length"]),
        node("Squeeze", ["length"], ["n"]),
        node("ConstantOfShape", ["length"], ["ones"], value=numpy_helper.from_array(np.array([1]))),
        node("SplitToSequence", ["v", "ones"], ["counts"], axis=0),
        node("SplitToSequence", ["x", "ones"], ["parts"], axis=0),
        node("SequenceEmpty", [], ["p"]),
        loop(inner, ["n", "", "p"], ["s"]),
        node("ConcatFromSequence", ["s"], ["repeated"], axis=0),
        node("MatMul", ["repeated", "square"], ["y"]),
    ]
    constants = {"three": np.array([3]), "square": rand(3, 3)}
    model = onnx_model(nodes, {"x": ("t", 3), "v": ("t",)}, constants, dtypes={"v": NUMBER})
    counts = ([2], [1, 0, 3, 2, 0], [4, 4])
    agree(model, *({"x": rand(len(v), 3), "v": np.array(v)} for v in counts))


def test_sequence_map() -> None:
    inner = body([node("Mul", ["a", "b"], ["m"]), node("Neg", ["a"], ["o"])], ["a", "b"], ["m", "o"])
    nodes = [
        node("SequenceConstruct", ["x", "v"], ["p"]),
        node("SequenceMap", ["p", "x"], ["q", "r"], body=inner),
        node("SequenceAt", ["q", "one"], ["y"]),
        node("ConcatFromSequence", ["r"], ["z"], axis=0),
    ]
    model = onnx_model(nodes, {"x": (2, 3), "v": (1, 3)}, {"one": np.array(1)}, outputs=["y", "z"])
    agree(model, {"x": rand(2, 3), "v": rand(1, 3, seed=2)})


def test_emitted_source_has_no_sequences() -> None:
    model = carrying(*SEQUENCES["it shrinks"])
    with pytest.raises(UnsupportedError, match=r"a sequence.* compile without output"):
        compile(model, output="source")


@pytest.mark.parametrize(("split", "keepdims"), [((2, 0, 3), 1), ((), 1), (None, 0)])
def test_parts_of_a_number_that_a_call_knows(split: tuple[int, ...] | None, keepdims: int) -> None:
    given = [] if split is None else ["p"]
    nodes = [
        node("SplitToSequence", ["x", *given], ["s"], axis=1, keepdims=keepdims),
        node("SequenceAt", ["s", "i"], ["y"]),
        LENGTH,
    ]
    shapes = {"x": (2, "n", 3), "i": ()} | dict.fromkeys(given, ("k",) if split else ())
    dtypes = {**TYPES, "z": NUMBER, "i": NUMBER, "p": NUMBER}
    model = onnx_model(nodes, shapes, dtypes=dtypes, outputs=["y", "z"])
    parts = {} if split is None else {"p": np.array(split or 2)}
    agree(model, *({"x": rand(2, 5, 3), "i": np.array(i)} | parts for i in (0, -1)))
