"""What one of TVM's converters reads of a node: an attribute or an input that it does not look at is not left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import defs, helper
from tvm.relax.frontend.onnx.onnx_frontend import onnx_input

from ..errors import UnsupportedError

__all__ = ["Attributes", "Inputs", "refuse_unread"]

_OWN = "tvm_custom"  # an entry that TVM's importer adds
#: attributes that change nothing here: a number of results
_IDLE = {("Split", "num_outputs")}


class Attributes(dict[str, Any]):
    """Attributes of a node that remember which of them were asked for."""

    def __init__(self, attrs: dict[str, Any]) -> None:
        super().__init__(attrs)
        self.read: set[str] = {_OWN}

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        self.read.add(name)
        return super().get(name, default)


class Inputs(onnx_input):
    """Inputs of a node that remember which of them were asked for; those beyond the end are ``None``."""

    def __init__(self, inputs: Any) -> None:
        super().__init__(inputs)
        self.read: set[int] = set()

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[i] for i in range(len(self) if item.stop is None else item.stop)[item]]
        if item >= len(self):
            return None
        self.read.add(item % len(self))
        return self.peek(item)

    def __iter__(self) -> Iterator[Any]:
        self.read.update(range(len(self)))
        return super().__iter__()

    def __add__(self, other: list[Any]) -> list[Any]:
        return [*self, *other]

    def peek(self, i: int) -> Any:
        """An input, which does not count as asked for."""
        return list.__getitem__(self, i)


def refuse_unread(op: str, inputs: Inputs, attrs: Attributes, opset: int) -> None:
    """Raise an `UnsupportedError` for an attribute or an input that means something and that nobody has read."""
    names = [n for n in attrs if n not in attrs.read and (op, n) not in _IDLE and not _is_default(op, n, attrs, opset)]
    given: list[Any] = [inputs.peek(i) for i in range(len(inputs))]
    left = [i for i, value in enumerate(given) if value is not None and i not in inputs.read]
    if not names and not left:
        return
    what = [f"the attribute {name}={_shown(dict.__getitem__(attrs, name))}" for name in names]
    what += [f"the input {i}" for i in left]
    raise UnsupportedError(
        f"no Relax equivalent for {op} with {' and '.join(what)} (node `{dict.__getitem__(attrs, _OWN)['name']}`): "
        "TVM's importer does not look at it"
    )


def _is_default(op: str, name: str, attrs: Attributes, opset: int) -> bool:
    if not defs.has(op):
        return False
    try:
        attribute = defs.get_schema(op, opset).attributes.get(name)
    except defs.SchemaError:  # younger than the model's opset
        return False
    if attribute is None or attribute.default_value.type == onnx.AttributeProto.UNDEFINED:
        return False
    return bool(helper.get_attribute_value(attribute.default_value) == dict.__getitem__(attrs, name))


def _shown(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
