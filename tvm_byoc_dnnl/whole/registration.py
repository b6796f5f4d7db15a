"""How a vendor or a user makes an operator of a domain of its own known."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any

from ..errors import InputError, UnsupportedError
from .table import Operator, attributes_of, declare, inputs_of, operator

__all__ = ["register_onnx_operator"]

#: name of the Relax operator → what was registered
_FUNCTIONS: dict[str, tuple[Any, Any]] = {}
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def register_onnx_operator(
    domain: str,
    name: str,
    *,
    definition: Callable[..., Any] | None = None,
    types: Callable[..., Any] | None = None,
    sizes: Collection[int] = (),
    override: bool = False,
) -> str:
    """Let ONNX models have an operator of another domain.

    It is imported as one call of a Relax operator ``onnx.<domain>.<name>``, for which predicates, lowerings and
    patterns are registered as for any other. A call that no compiler takes is expanded by the definition, and the calls
    of the definition are offered in turn. Register it where models are imported and where imported modules are read.

    Parameters
    ----------
    domain : str
        The node's domain, such as ``"ai.acme"``. ONNX's own domain is not possible.
    name : str
        The node's ``op_type``.
    definition : callable, optional
        ``definition(bb, *inputs, **attributes)`` builds the operator of Relax operators by a BlockBuilder, and returns
        the output, or a list of all outputs. ``inputs`` are expressions, ``None`` where the node leaves one out.
        Attributes are its keyword-only parameters, with their defaults: numbers, strings (not bytes), lists of these.
        It raises `UnsupportedError` for what it cannot say; the message begins with the cause, ``"clip 3; …"``, and
        the node's name is put in front of it. Without a definition, a model compiles only where a compiler takes the
        operator.
    types : callable, optional
        ``types(*inputs, **attributes)`` returns the type of the output, or a list of types: ``x.ty``, or
        ``relax.TensorType([m, n], "float32")``. Without it the definition is built to find them.
    sizes : collection of int, optional
        Inputs, by position, that are sizes, such as the shape of a reshape: they are given as ``relax.ShapeExpr``.
        A model in which such an input cannot be computed from constants and dims is refused.
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
    for what, given in (("domain", domain), ("name", name)):
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise ValueError(f"{who}: the {what} is {given!r}; expected a name such as 'ai.acme' or 'MyOp'")
    if domain in ("ai.onnx", "ai.onnx.ml"):
        raise ValueError(f"{who}: the domain {domain!r} belongs to the standard; choose one of your own")
    for what, function in (("definition", definition), ("types", types)):
        if function is not None and not callable(function):
            raise TypeError(f"{who}: {what} is {function!r}; expected a function")
    if definition is None and types is None:
        raise TypeError(f"{who}: give a definition, or the types of the outputs where only a compiler has the operator")
    old = operator(domain, name)
    if old is not None and _FUNCTIONS.get(old.relax_name) != (definition, types) and not override:
        raise ValueError(f"{who}: this operator is registered already; pass override=True to replace it")
    whole = Operator(
        domain,
        name,
        build=None if definition is None else _builder(name, definition),
        infer=None if types is None else (lambda call: types(*inputs_of(call), **attributes_of(call))),
        attributes=_attributes(definition or types),
        sizes=frozenset(sizes),
    )
    declare(whole)
    _FUNCTIONS[whole.relax_name] = definition, types
    return whole.relax_name


def _builder(name: str, definition: Callable[..., Any]) -> Callable[[Any, Any, str], Any]:
    def build(bb: Any, call: Any, node: str) -> Any:
        try:
            return definition(bb, *inputs_of(call), **attributes_of(call))
        except (InputError, UnsupportedError) as error:
            raise type(error)(f"{name} (node `{node}`) has {error}" if node else f"{name} has {error}") from None

    return build


def _attributes(function: Any) -> dict[str, Any] | None:
    """The attributes that a function takes, with their defaults; ``None`` for any."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
