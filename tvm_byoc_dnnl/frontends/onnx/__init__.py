"""ONNX's operators, imported by one walk and a table; and how a vendor or a user makes one of his own known."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from tvm import relax

from ...core.errors import ArgumentTypeError, InputError, UnsupportedError, VendorError, reloading
from ...core.tvm_fast import is_a
from ...core.verdict import calling
from ...whole.table import Operator, attributes_of, declare, inputs_of, operator

if TYPE_CHECKING:  # vendors register without a model, and then onnx is not needed
    import onnx

__all__ = ["register_onnx_operator"]

#: name of the Relax operator → what was registered
_REGISTERED: dict[str, tuple[Any, Any, frozenset[int]]] = {}
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def register_onnx_operator(
    domain: str,
    name: str,
    *,
    definition: Callable[..., Any] | onnx.FunctionProto | None = None,
    types: Callable[..., Any] | None = None,
    sizes: Collection[int] = (),
    override: bool = False,
) -> str:
    """Let ONNX models have an operator of another domain.

    It is imported as one call of a Relax operator ``onnx.<domain>.<name>``, for which predicates, lowerings and
    patterns are registered as for any other. A call that no compiler takes is expanded by the definition, and the calls
    of the definition are offered in turn.

    Parameters
    ----------
    domain : str
        The node's domain, such as ``"ai.acme"``. ONNX's own domain is not possible.
    name : str
        The node's ``op_type``.
    definition : callable or onnx.FunctionProto, optional
        ``definition(bb, *inputs, **attributes)`` builds the operator of Relax operators by a BlockBuilder, and returns
        the output, or a list of all outputs. ``inputs`` are expressions, ``None`` where the node leaves one out.
        Attributes are its keyword-only parameters, with their defaults: numbers, strings, and lists of these. It raises
        `UnsupportedError` for what it cannot say; the message is the rest of a sentence, ``"clip 3; expected none"``,
        and begins with ``MyOp (node `x`) has``. A FunctionProto is a definition by other ONNX operators. Without a
        definition, a model compiles only where a compiler takes the operator.
    types : callable, optional
        ``types(*inputs, **attributes)`` returns the type of the output, or a list of types: ``x.ty``, or
        ``relax.TensorType([m, n], "float32")``. Without it the definition is built to find them.
    sizes : collection of int, optional
        Inputs, by position, that are sizes, such as the shape of a reshape: both functions get ``relax.ShapeExpr``.
    override : bool
        Take the place of a registration of the same name.

    Returns
    -------
    str
        The name of the Relax operator. The attributes of a call are those of the node with the defaults, and two more:
        ``present``, a bool for each input of the node (the arguments of the call are those that are there), and
        ``wanted``, a bool for each output. A call with one wanted output gives a tensor, else a tuple of them.

    Raises
    ------
    ValueError
        If the domain or the name is none, is ONNX's own, or is registered already.
    TypeError
        If ``definition`` or ``types`` is no function, or both are missing.
    """
    who = f"register_onnx_operator({domain!r}, {name!r})"
    _check(who, domain, name, definition, types)
    old, registered = operator(domain, name), (definition, types, frozenset(sizes))
    if old is not None and _REGISTERED.get(old.relax_name) != registered and not (override or reloading()):
        raise InputError(f"{who}: this operator is registered already; pass override=True to replace it")
    whole = Operator(
        domain,
        name,
        build=_builder(domain, name, definition),
        infer=None if types is None else lambda call: _asked(f"the types of {domain}.{name}", types, call),
        attributes=_attributes(definition or types),
        sizes=frozenset(sizes),
    )
    declare(whole)
    _REGISTERED[whole.relax_name] = registered
    return whole.relax_name


def _check(who: str, domain: Any, name: Any, definition: Any, types: Any) -> None:
    for what, given in (("domain", domain), ("name", name)):
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise InputError(f"{who}: the {what} is {given!r}; expected a name such as 'ai.acme' or 'MyOp'")
    if domain in ("ai.onnx", "ai.onnx.ml"):
        raise InputError(f"{who}: the domain {domain!r} belongs to the standard; choose one of your own")
    if definition is not None and not callable(definition) and not _is_function(definition):
        raise ArgumentTypeError(f"{who}: definition is {definition!r}; expected a function, or an onnx.FunctionProto")
    if types is not None and not callable(types):
        raise ArgumentTypeError(f"{who}: types is {types!r}; expected a function")
    if definition is None and types is None:
        raise ArgumentTypeError(
            f"{who}: give a definition, or the types of the outputs where only a compiler has the operator"
        )


def _builder(
    domain: str, name: str, definition: Callable[..., Any] | onnx.FunctionProto | None
) -> Callable[[Any, Any, str], Any] | None:
    if definition is None:
        return None
    function: Any = definition
    if _is_function(definition):
        return _of_function(domain, name, function)

    def build(bb: Any, call: Any, node: str) -> Any:
        try:
            return _asked(f"the definition of {domain}.{name}", function, call, bb)
        except (InputError, UnsupportedError) as error:
            raise type(error)(f"{name} (node `{node}`) has {error}" if node else f"{name} has {error}") from None

    return build


def _asked(who: str, function: Callable[..., Any], call: Any, *first: Any) -> Any:
    """What a vendor's function answers about a call: an expression or a type, or a list of such."""
    with calling(who, named=True):
        found = function(*first, *inputs_of(call), **attributes_of(call))
    parts = list(found) if isinstance(found, (list, tuple)) else [found]
    kind = relax.Expr if first else relax.Type
    strange = [part for part in parts if part is not None and not is_a(part, kind)]
    if strange or not parts:
        raise VendorError(
            f"{who} returned {found!r}; expected {'an expression' if first else 'a type'}, or a list of them"
        )
    return parts


def _is_function(definition: Any) -> bool:
    return type(definition).__name__ == "FunctionProto"


def _of_function(domain: str, name: str, function: onnx.FunctionProto) -> Callable[[Any, Any, str], Any]:
    from .walk import walk_into
    from .whole import node_of

    def build(bb: Any, call: Any, node: str) -> Any:
        walk = walk_into(bb)
        results = walk.body(node_of(call, name, domain, 1, node), function)
        return [None if value is None else walk.emit.tensor(value) for value in results]

    return build


def _attributes(function: Any) -> dict[str, Any] | None:
    """The attributes that a definition takes, with their defaults; ``None`` for any."""
    if _is_function(function):
        from .structure import decoded

        needed = dict.fromkeys(function.attribute, inspect.Parameter.empty)
        return {**needed, **{a.name: decoded(a) for a in function.attribute_proto}}
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
