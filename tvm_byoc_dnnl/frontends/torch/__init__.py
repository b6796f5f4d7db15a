"""PyTorch's exported programs; what converters of them have in common: they emit by values, as those of ONNX do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..onnx.value import Value
from ..onnx.walk import walk_into


def arguments(node: Any) -> dict[str, Any]:
    """The arguments of a node of a program by name, in the order of the operator's schema, up to the last given one."""
    schema = node.target._schema.arguments
    given = dict(zip([argument.name for argument in schema], node.args, strict=False)) | dict(node.kwargs)
    count = max((i + 1 for i, argument in enumerate(schema) if argument.name in given), default=0)
    return {a.name: given.get(a.name, a.default_value) for a in schema[:count]}


def by_values(convert: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """A converter as TVM's importer takes it, of ``convert(e, node, *arguments)``, whose tensors are values.

    It returns a value, or a list of them, in which ``None`` is a result that nobody reads. ``out_dtype``, which is by
    name only, is left out.
    """

    def converted(node: Any, importer: Any) -> Any:
        given = [_valued(importer._retrieve_args(v)) for name, v in arguments(node).items() if name != "out_dtype"]
        with walk_into(importer.block_builder).emit.emitting() as e:
            made = convert(e, node, *given)
            return [v and e.tensor(v) for v in made] if isinstance(made, list) else e.tensor(made)

    return converted


def _valued(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_valued(part) for part in argument]
    return Value(argument) if is_tensor(argument) else argument


def is_tensor(argument: Any) -> bool:
    return isinstance(getattr(argument, "ty", None), relax.TensorType)


def dtype_name(dtype: Any) -> str:
    """A dtype of PyTorch by the name that Relax has for it."""
    return str(dtype).removeprefix("torch.")
