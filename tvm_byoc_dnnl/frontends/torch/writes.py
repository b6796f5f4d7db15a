"""What a program writes, such as a static cache of keys and values: the new values are results of the model.

Buffers that are written become inputs, too, so that a model keeps nothing from one call to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ...core.errors import UnsupportedError
from ...ir.tvm_compat import dtype_of
from ..onnx.dim import Size
from ..onnx.emit import Emit
from ..onnx.ops.moving import from_start
from ..onnx.value import Value
from . import by_values

_TRAINS = ("_native_batch_norm_legit.default", "_native_batch_norm_legit_functional.default")


def writes(node: Any) -> bool:
    """Whether the operator of a node changes an argument in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def written(program: Any) -> list[str]:
    """The inputs and then the buffers that a decomposed program writes, in the order of their new values."""
    signature = program.graph_signature
    targets = {*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()}
    if not targets:
        return []
    return [name for name in (*signature.user_inputs, *signature.buffers) if name in targets]


def without_writes(program: Any) -> Any:
    """A decomposed program as one that only returns results.

    Behind its own inputs are the buffers that it writes; behind its own results, the new values of the inputs that it
    writes, and of these buffers.
    """
    targets = written(program)
    if not targets:
        return program
    if any(str(node.target).removeprefix("aten.") in _TRAINS for node in program.graph.nodes):
        raise UnsupportedError(
            f"the program writes to {targets[0]}, as in training; export it behind model.eval(), for inference"
        )
    from torch.export import ExportedProgram
    from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputKind, OutputSpec

    own, behind = [], []
    places = list(program.graph.find_nodes(op="placeholder"))
    last = places[-1]
    for spec, place in zip(program.graph_signature.input_specs, places, strict=True):
        if spec.kind == InputKind.BUFFER and spec.target in targets:
            last.append(place)
            last = place
            behind.append(InputSpec(InputKind.USER_INPUT, spec.arg, None))
        else:
            own.append(spec)
    output = program.graph.output_node()
    pairs = list(zip(program.graph_signature.output_specs, output.args[0], strict=True))
    pairs.sort(key=lambda pair: -1 if pair[0].kind == OutputKind.USER_OUTPUT else targets.index(pair[0].target))
    output.args = (tuple(value for _, value in pairs),)
    results = [OutputSpec(OutputKind.USER_OUTPUT, spec.arg, None) for spec, _ in pairs]
    return ExportedProgram(
        program.graph_module,
        program.graph,
        ExportGraphSignature([*own, *behind], results),
        program.state_dict,
        program.range_constraints,
        program.module_call_graph,
        constants={name: value for name, value in program.constants.items() if name not in targets},
    )


def _copy(e: Emit, _node: Any, replaced: Value, source: Value, *_: Any) -> Value:
    """The source in the type of what it replaces, which keeps its value: others may read it."""
    return e.call(relax.op.broadcast_to, e.cast(source, replaced.dtype), e.shape(replaced.sizes))


def _index_put(node: Any, importer: Any) -> Any:
    """Values at places; TVM's own takes an index for each axis, or for the first ones, only."""
    data, indices, values, *accumulate = importer.retrieve_args(node)
    if any("int" not in dtype_of(index.ty) for index in indices if index is not None):
        return importer.create_convert_map()["index_put.default"](node)
    with Emit(importer.block_builder).emitting() as e:
        places = {axis: Value(index) for axis, index in enumerate(indices) if index is not None}
        reduction = "add" if accumulate and accumulate[0] else "update"
        return e.tensor(_put(e, Value(data), places, Value(values), reduction))


def _put(e: Emit, data: Value, indices: dict[int, Value], values: Value, reduction: str) -> Value:
    dims, axes = data.sizes, list(indices)
    places = _broadcast([index.sizes for index in indices.values()])
    others = [axis for axis in range(len(dims)) if axis not in axes]
    is_apart = axes != list(range(axes[0], axes[-1] + 1))
    before = 0 if is_apart else axes[0]  # the axes of the values in front of the places
    sizes = [dims[axis] for axis in others]
    values = e.expand(values, [*sizes[:before], *places, *sizes[before:]])
    if len(axes) == len(places) == 1:
        index = e.reshape(indices[axes[0]], [*places, *[1] * (len(dims) - before - 1)])
        return e.scatter_elements(data, e.expand(index, values.sizes), values, axis=before, reduction=reduction)
    coordinates = [
        e.reshape(e.expand(e.cast(from_start(e, index, [dims[axis]]), "int64"), places), [*places, 1])
        for axis, index in indices.items()
    ]
    rank, order = len(places), [*axes, *others]
    behind = before + rank
    values = e.transpose(values, [*range(before, behind), *range(before), *range(behind, rank + len(others))])
    found = e.scatter_nd(e.transpose(data, order), e.concat(coordinates, rank), values, reduction=reduction)
    return e.transpose(found, [order.index(axis) for axis in range(len(dims))])


def _broadcast(shapes: Sequence[Sequence[Size]]) -> list[Size]:
    """The shape of tensors of these shapes together."""
    rank = max(map(len, shapes))
    columns = zip(*([*[1] * (rank - len(shape)), *shape] for shape in shapes), strict=True)
    return [next((d for d in column if d != 1), 1) for column in columns]


CONVERTERS = {"copy.default": by_values(_copy), "index_put.default": _index_put}
