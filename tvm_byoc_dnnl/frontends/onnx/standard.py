"""What ONNX says of an operator: its definition by others, and its results where all that it reads is known."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from .emit import elem_type
from .structure import REDUCED, decoded, graphs_of
from .value import MOST, Node, Type, Value

_NEVER = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Dropout", "Multinomial"),
        *("DequantizeLinear", "QuantizeLinear"),  # quantised weights stay quantised
        # To import ONNX's reference takes longer than most imports: what their calls give for constants is known.
        *("Abs", "Add", "And", "Cast", "CastLike", "Concat", "Div", "Equal", "Expand", "Gather", "Greater"),
        *("GreaterOrEqual", "Less"),
        *("LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Reshape", "Slice", "Split", "Squeeze", "Sub"),
        *("Identity", "Shape", "Size"),
        *("ConstantOfShape", "Range", "Sum", "Transpose", "Unsqueeze", "Where", "Xor"),
    }
)
#: operators that make more elements than they read; of those that do not, few inputs have few results
_EXPANDING = frozenset({"ConstantOfShape", "Expand", "Gather", "Pad", "Range", "Resize", "Tile", "Upsample"})

#: operators of which attributes became inputs: the version of that, and the input that each is since
_BECAME_INPUTS: dict[str, tuple[int, dict[str, int]]] = {
    "Clip": (11, {"min": 1, "max": 2}),
    "DFT": (20, {"axis": 2}),
    "Pad": (11, {"pads": 1, "paddings": 1, "value": 2}),
    "Reshape": (5, {"shape": 1}),
    "Slice": (10, {"starts": 1, "ends": 2, "axes": 3}),
    "Split": (13, {"split": 1}),
    "TopK": (10, {"k": 1}),
    "Upsample": (9, {"scales": 1}),
    **{f"Reduce{kind}": (18, {"axes": 1}) for kind in REDUCED},
    **dict.fromkeys(("ReduceSum", "Squeeze", "Unsqueeze"), (13, {"axes": 1})),
}


def take_inputs(node: Node) -> None:
    """Bring a node into its form since attributes of it became inputs, whose rules hold for it from here on."""
    since, places = _BECAME_INPUTS.get(node.op, (0, {}))
    is_old = node.opset < since
    if node.domain or not (is_old or places.keys() & node.attrs.keys()):
        return
    for name, place in places.items():
        given = node.attrs.pop(name, _usual(node.op, node.opset, name) if is_old else None)
        if given is not None and node.input(place) is None:
            numbers = np.asarray(given)
            of_reals = node.needed(0).dtype if node.op in ("Clip", "Pad") else "float32"
            is_real = numbers.dtype.kind == "f" and numbers.size
            node.inputs += [None] * (place + 1 - len(node.inputs))
            node.inputs[place] = Value(known=numbers.astype(of_reals if is_real else "int64"))
    node.opset = max(node.opset, since)


@functools.cache
def _usual(op: str, opset: int, name: str) -> Any:
    """The default of an attribute, if it has one."""
    declared = defs.get_schema(op, opset).attributes.get(name) if defs.has(op, opset) else None
    return decoded(declared.default_value) if declared is not None and declared.default_value.type else None


def folded(node: Node) -> list[np.ndarray | None] | None:
    """The results of a node, ``None`` if not all that it reads is known, or they would be large."""
    if not node.inputs or node.domain or node.op in _NEVER or node.proto is None or graphs_of(node.proto):
        return None
    there = {f"x{i}": value for i, value in enumerate(node.inputs) if value is not None}
    if not all(v.is_constant and v.memory is not None and v.memory.dtype.kind in "biufV" for v in there.values()):
        return None
    if sum(value.memory.size for value in there.values() if value.memory is not None) > MOST:
        return None
    given: dict[str, Any] = {name: value.known for name, value in there.items()}
    names = [name if name in given else "" for name in (f"x{i}" for i in range(len(node.inputs)))]
    alone = helper.make_node(node.op, names, [f"y{i}" for i in range(len(node.wanted))])
    alone.attribute.extend(a for a in node.proto.attribute if a.name in node.attrs)
    if _is_small(node, alone, {name: value.type for name, value in there.items()}, given):
        with contextlib.suppress(Exception):  # no implementation, or a broken model: the conversion says more about it
            return _by_reference(node, alone, given)
    return None


def _is_small(node: Node, alone: onnx.NodeProto, types: dict[str, Type], given: dict[str, Any]) -> bool:
    """Whether the results have few elements, as far as ONNX's inference sees it."""
    try:
        found = onnx.shape_inference.infer_node_outputs(
            defs.get_schema(node.op, node.opset, ""),
            alone,
            {name: type_proto(ty) for name, ty in types.items()},
            {name: numpy_helper.from_array(array, name) for name, array in given.items()},
            opset_imports=[helper.make_opsetid("", node.opset)],
        )
    except Exception:  # plain RuntimeErrors of several kinds
        found = {}
    sizes = [
        math.prod(d.dim_value for d in kind.tensor_type.shape.dim)
        for kind in found.values()
        if kind.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in kind.tensor_type.shape.dim)
    ]
    return max(sizes, default=0) <= MOST and (len(sizes) == len(node.wanted) or node.op not in _EXPANDING)


def _by_reference(node: Node, alone: onnx.NodeProto, given: dict[str, Any]) -> list[np.ndarray | None]:
    from onnx.reference import ReferenceEvaluator  # takes longer than most imports

    opsets = [helper.make_opsetid("", node.opset)]
    function = helper.make_function("fold", "fold", list(given), list(alone.output), [alone], opsets)
    found: Any = ReferenceEvaluator(function).run(None, given, attributes={})
    if any(isinstance(value, (list, dict)) or value is None for value in found):
        raise TypeError("sequences, maps and empty optionals are no constants")
    return [np.asarray(value) for value in found]


def type_proto(ty: Type) -> onnx.TypeProto:
    """ONNX's type; nothing where the dtype is unknown."""
    kind = elem_type(ty.dtype)
    dims = None if ty.dims is None else [d if isinstance(d, int) else str(d) for d in ty.dims]
    return helper.make_tensor_type_proto(kind, dims) if kind else onnx.TypeProto()


def _schema(node: Node) -> Any:
    return defs.get_schema(node.op, node.opset, node.domain) if defs.has(node.op, node.opset, node.domain) else None


def definition_of(node: Node) -> onnx.FunctionProto | None:
    """The body of an operator that the standard defines by others, ``None`` if it has none."""
    schema, function = _schema(node), onnx.FunctionProto()
    if schema is None:
        return None
    if schema.has_context_dependent_function:
        assert node.proto is not None
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= node.opset]
        given = [*node.inputs, *[None] * (len(node.proto.input) - len(node.inputs))]
        types = [(onnx.TypeProto() if v is None else type_proto(v.type)).SerializeToString() for v in given]
        try:
            body = schema.get_context_dependent_function_with_opset_version(
                max(versions, default=node.opset), node.proto.SerializeToString(), types
            )
        except RuntimeError:  # it wants a type that is not known
            return None
        function.ParseFromString(body)
    elif schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= node.opset]
        if versions:
            function.ParseFromString(schema.get_function_with_opset_version(max(versions)))
        else:
            function.CopyFrom(schema.function_body)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type and all(a.name != name for a in function.attribute_proto):
            function.attribute_proto.append(attribute.default_value)
    return function if function.node else None


def has_definition(node: Node) -> bool:
    schema = _schema(node)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)
