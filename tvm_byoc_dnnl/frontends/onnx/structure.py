"""What an ONNX file must be before anything reads it: names, types, attributes and data that fit each other.

ONNX's checker is not used: it refuses models that ONNX Runtime runs, and its messages do not name what is wrong.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from ...core.errors import InputError
from ...core.limits import MOST_ELEMENTS, MOST_NESTED, MOST_NODES

DEFAULT_DOMAINS = ("", "ai.onnx")
#: operators that reduce axes, behind ``Reduce``
REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_Attribute = onnx.AttributeProto
#: types of attributes that have no graph: asking them for one takes longer
_PLAIN_ATTRIBUTES = (_Attribute.INTS, _Attribute.INT, _Attribute.FLOAT, _Attribute.STRING, _Attribute.TENSOR)
#: fields that hold the numbers of a tensor, and the types that each of them is for
_FIELDS = {
    "float_data": ("FLOAT", "COMPLEX64"),
    "double_data": ("DOUBLE", "COMPLEX128"),
    "int64_data": ("INT64",),
    "uint64_data": ("UINT32", "UINT64"),
    "string_data": ("STRING",),
}
_SUBBYTE = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


def check_structure(model: onnx.ModelProto, apart: Collection[str] = ()) -> None:
    """Raise an `InputError` that names the node or the tensor that no ONNX model can have.

    ``apart``: names of the weights whose data are not in the model.
    """
    opset = _opset(model)
    _check_functions(model)
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.name not in apart:
            _check_tensor(tensor, f"the constant `{tensor.name}`")
    constants = {t.name for t in graph.initializer}
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            _check_type(value, f"the {kind} `{value.name}`")
            is_given = kind == "input" and value.name not in constants
            tensor = value.type.tensor_type if value.type.HasField("tensor_type") else None
            has_type = tensor.elem_type if tensor is not None else value.type.WhichOneof("value") is not None
            if is_given and not has_type:
                raise InputError(f"the input `{value.name}` has no type; expected that of its elements, such as float")
    known = constants | {i.name for i in graph.input}
    known |= {t.values.name for t in graph.sparse_initializer}
    _check_names(graph)
    _check_graph(graph, known, opset, 0)


def _check_names(graph: onnx.GraphProto) -> None:
    constants = [t.name for t in graph.initializer]
    repeated = {*constants}  # some models repeat their weights as inputs
    inputs = [i.name for i in graph.input if i.name not in repeated]
    made = [name for node in graph.node for name in node.output if name]
    twice = [name for name, times in Counter(inputs + constants + made).items() if times > 1]
    if twice:
        raise InputError(
            f"the ONNX model defines {', '.join(f'`{name}`' for name in twice)} more than once; expected every name "
            "to be one input, one constant or one output of one node"
        )


def _opset(model: onnx.ModelProto) -> int:
    opset = next((o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS), None)
    newest = defs.onnx_opset_version()
    if opset is None and all(is_standard(node) for node in model.graph.node) and not model.functions:
        raise InputError(
            f"the ONNX model does not say of which opset it is; add opset_import of a version from 1 to {newest}"
        )
    if opset is not None and not 1 <= opset <= newest:
        raise InputError(
            f"the ONNX model is of opset {opset}; expected 1 to {newest}, which this version of onnx knows: convert "
            "the model, or install a newer onnx"
        )
    return opset or 1


def _where(node: onnx.NodeProto) -> str:
    return f"{node.op_type or 'a node without an operator'} (node `{node.name or ', '.join(node.output)}`)"


def _check_graph(graph: onnx.GraphProto, known: Collection[str], opset: int, depth: int) -> None:
    """``known``: the names that are there before any node runs, those of the graphs around included."""
    if depth > MOST_NESTED:
        raise InputError(f"the ONNX model has graphs inside of graphs, {depth} deep; the limit is {MOST_NESTED}")
    made = {name for node in graph.node for name in node.output}
    defined = {*known, *made, ""}
    for node in graph.node:
        if not node.op_type or not any(node.output):
            raise InputError(f"{_where(node)} has no {'outputs' if node.op_type else 'op_type'}: the file is damaged")
        for position, name in enumerate(node.input):
            if name not in defined:
                raise InputError(
                    f"{_where(node)} reads `{name}` as input {position}, which no input, constant or node of the model "
                    "has as its name; the file is damaged or was cut out of a larger model"
                )
        _check_attributes(node, opset)
        for inner in graphs_of(node):
            for tensor in inner.initializer:
                _check_tensor(tensor, f"the constant `{tensor.name}` inside of {_where(node)}")
            own = {t.name for t in inner.initializer} | {i.name for i in inner.input}
            own |= {t.values.name for t in inner.sparse_initializer}
            _check_graph(inner, defined | own, opset, depth + 1)
    for output in graph.output:
        if output.name not in defined or not output.name:
            raise InputError(f"the output `{output.name}` is made by no node; expected one with an output of this name")


def _check_attributes(node: onnx.NodeProto, opset: int) -> None:
    names = [a.name for a in node.attribute]
    if len(set(names)) < len(names):
        raise InputError(f"{_where(node)} has an attribute twice; expected each of {', '.join(names)} once")
    signature = _signature(node.op_type, opset) if is_standard(node) else _Signature()
    for attribute in node.attribute:
        if attribute.type not in _Attribute.AttributeType.values() or attribute.ref_attr_name:
            raise InputError(f"{_where(node)} has the attribute `{attribute.name}` of an unknown type")
        expected = signature.attributes.get(attribute.name)
        kind = attribute.type
        if kind and expected and kind != expected:
            got, want = _Attribute.AttributeType.Name(kind), _Attribute.AttributeType.Name(expected)
            raise InputError(f"{_where(node)} has the attribute `{attribute.name}` of type {got}; expected {want}")
        if kind == _Attribute.STRING:
            try:
                attribute.s.decode()
            except UnicodeDecodeError as error:
                what = f"the attribute `{attribute.name}` of {_where(node)}"
                raise InputError(f"{what} is no text in UTF-8: {error}") from error
        for tensor in [attribute.t] if kind == _Attribute.TENSOR else attribute.tensors:
            _check_tensor(tensor, f"the attribute `{attribute.name}` of {_where(node)}")
    missing = signature.required.difference(names)
    if missing:
        raise InputError(f"{_where(node)} has no attribute {', '.join(sorted(missing))}, which ONNX requires")
    if not signature.least <= len(node.input) <= signature.most:
        raise InputError(f"{_where(node)} has {len(node.input)} inputs; expected {signature.least} to {signature.most}")
    for position, name in enumerate(node.input):
        if not name and signature.needed and signature.needed[min(position, len(signature.needed) - 1)]:
            raise InputError(f"{_where(node)} leaves out input {position}, which ONNX requires")


class _Signature(NamedTuple):
    """Types of the attributes, the required ones, numbers of inputs, and which of these may not be left out."""

    attributes: Mapping[str, int] = MappingProxyType({})
    required: frozenset[str] = frozenset()
    least: int = 0
    most: int = sys.maxsize
    needed: tuple[bool, ...] = ()


@cache
def _signature(op: str, opset: int) -> _Signature:
    try:
        schema = defs.get_schema(op, opset)
    except defs.SchemaError:  # of another opset, which the import says
        return _Signature()
    kinds = {name: int(a.type.value) for name, a in schema.attributes.items()}
    required = frozenset(name for name, a in schema.attributes.items() if a.required)
    needed = tuple(i.option != defs.OpSchema.FormalParameterOption.Optional for i in schema.inputs)
    return _Signature(kinds, required, schema.min_input, schema.max_input, needed)


def _check_tensor(tensor: onnx.TensorProto, what: str) -> None:
    if tensor.data_type not in onnx.TensorProto.DataType.values() or not tensor.data_type:
        raise InputError(f"{what} is of the unknown type {tensor.data_type}; the file is damaged")
    kind = onnx.TensorProto.DataType.Name(tensor.data_type)
    _check_dims(tensor.dims, what)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        width = 0 if kind == "STRING" else helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
        bits = _SUBBYTE.get(kind, width)
        got, wanted = len(tensor.raw_data), -(-count * bits // 8)
        if got != wanted or kind == "STRING":
            raise InputError(f"{what}, {kind.lower()}{list(tensor.dims)}, has {got} bytes; expected {wanted}")
        return
    place = next((f for f, kinds in _FIELDS.items() if kind in kinds), "int32_data")
    got = len(getattr(tensor, place))
    packed = 8 // _SUBBYTE[kind] if kind in _SUBBYTE else 1
    wanted = 2 * count if kind.startswith("COMPLEX") else -(-count // packed)
    if got != wanted:
        raise InputError(f"{what}, {kind.lower()}{list(tensor.dims)}, has {got} numbers in {place}; expected {wanted}")


def _check_dims(dims: Iterable[int], what: str) -> None:
    shape = list(dims)
    if any(d < 0 for d in shape):
        raise InputError(f"{what} has the shape {shape}; expected sizes of 0 or more")
    if math.prod(d or 1 for d in shape) > MOST_ELEMENTS:
        raise InputError(f"{what} has the shape {shape}; the limit is {MOST_ELEMENTS} elements")


def _check_type(value: onnx.ValueInfoProto, what: str) -> None:
    if not value.type.HasField("tensor_type"):
        return
    tensor = value.type.tensor_type
    if tensor.elem_type not in onnx.TensorProto.DataType.values():
        raise InputError(f"{what} is of the unknown type {tensor.elem_type}; the file is damaged")
    _check_dims([d.dim_value for d in tensor.shape.dim if d.HasField("dim_value") and d.dim_value != -1], what)


def _check_functions(model: onnx.ModelProto) -> None:
    """No function may call itself, and all of them, written out, must stay a number of nodes that can be read."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, ...], int] = {}

    def size_of(part: Any, path: tuple[tuple[str, ...], ...]) -> int:
        total = 0
        for node in nodes_in(part):
            key = (node.domain, node.op_type, node.overload)
            if key in path:
                chain = " → ".join(".".join(filter(None, call)) for call in (*path[path.index(key) :], key))
                raise InputError(f"a function of the ONNX model calls itself: {chain}")
            if len(path) > MOST_NESTED:
                raise InputError(
                    f"functions of the ONNX model call each other {len(path)} deep; the limit is {MOST_NESTED}"
                )
            if key in functions and key not in sizes:
                sizes[key] = size_of(functions[key], (*path, key))
            total += sizes.get(key, 1)
        return total

    total = size_of(model.graph, ())
    if total > MOST_NODES:
        raise InputError(f"the functions of the ONNX model, written out, have {total} nodes; the limit is {MOST_NODES}")
    for key, function in functions.items():
        size_of(function, (key,))


# ---- what a node says by itself ---------------------------------------------------------------------


def is_standard(node: onnx.NodeProto) -> bool:
    return node.domain in DEFAULT_DOMAINS


def graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.type not in _PLAIN_ATTRIBUTES:
            found += [attribute.g] if attribute.HasField("g") else attribute.graphs
    return found


def captured(node: onnx.NodeProto) -> list[str]:
    """Names that the subgraphs of a node read from outside."""
    found: list[str] = []
    for graph in graphs_of(node):
        own = {value.name for values in (graph.input, graph.initializer) for value in values}
        own |= {t.values.name for t in graph.sparse_initializer}
        own |= {name for inner in graph.node for name in inner.output}
        read = [name for inner in graph.node for name in (*inner.input, *captured(inner))]
        found += [name for name in (*read, *(o.name for o in graph.output)) if name not in own]
    return found


def nodes_in(part: Any) -> list[onnx.NodeProto]:
    """The nodes of a graph or a function, those of graphs inside of it as well."""
    return [*part.node, *(n for node in part.node for graph in graphs_of(node) for n in nodes_in(graph))]


def in_order(
    nodes: list[onnx.NodeProto], results: Iterable[str], reads: Callable[[onnx.NodeProto], Iterable[str]]
) -> list[onnx.NodeProto]:
    """Nodes, in any order, after those whose results they read, without those that none of the ``results`` needs.

    An `InputError` names nodes that need their own results.
    """
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    order: list[onnx.NodeProto] = []
    state: dict[int, bool] = {}  # False while the node's own inputs are being placed
    for result in results:
        stack = [maker[result]] if result in maker else []
        while stack:
            index = stack[-1]
            if index in state:
                stack.pop()
                if not state[index]:
                    state[index] = True
                    order.append(nodes[index])
                continue
            state[index] = False
            needed = [maker[n] for n in reads(nodes[index]) if n in maker]
            if (again := next((i for i in needed if not state.get(i, True)), None)) is not None:
                names = [_where(nodes[i]) for i in stack[stack.index(again) :] if not state.get(i, True)]
                raise InputError(f"nodes of the ONNX model need each other's results: {', '.join(names[:3])}")
            stack.extend(i for i in reversed(needed) if i not in state)
    return order


def dense(tensor: onnx.SparseTensorProto) -> np.ndarray:
    """All numbers of a sparse tensor: its places are counted through the whole, or have a number for each axis."""
    values, places = numpy_helper.to_array(tensor.values), numpy_helper.to_array(tensor.indices)
    found = np.zeros(tuple(tensor.dims), values.dtype)
    found[tuple(places.T) if places.ndim == 2 else np.unravel_index(places, found.shape)] = values
    return found


def decoded(attribute: onnx.AttributeProto) -> Any:
    if attribute.type == onnx.AttributeProto.TENSOR:
        return numpy_helper.to_array(attribute.t)
    if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
        return dense(attribute.sparse_tensor)
    value = helper.get_attribute_value(attribute)
    if isinstance(value, list):
        return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
    return value.decode() if isinstance(value, bytes) else value
