"""Arguments of the public functions: wrong ones are refused before any work, with what was meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from .errors import ArgumentTypeError, InputError

__all__ = ["check_types", "did_you_mean", "one_of"]

#: argument → an example of it
_MAPPINGS = {
    "shapes": "{'x': (1, 3, 224, 224)}",
    "placement": "{'relax.nn.relu': 'tvm'}",
    "options": "{'my_npu': {'cores': 4}}",
}


def did_you_mean(got: Any, known: Iterable[Any]) -> str:
    """``; did you mean 'a' or 'b'?``, or nothing."""
    near = get_close_matches(str(got), [str(name) for name in known if name is not None], n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def one_of(name: str, got: Any, allowed: Sequence[Any]) -> None:
    """Refuse a value that is none of the allowed ones.

    Raises
    ------
    InputError
        It names the argument, the value and the allowed ones.
    """
    if not any(got is value or (isinstance(got, str) and got == value) for value in allowed):
        expected = ", ".join(map(repr, allowed))
        raise InputError(f"{name} is {got!r}; expected one of {expected}{did_you_mean(got, allowed)}")


def check_types(compiler: Any = None, **arguments: Any) -> None:
    """Refuse arguments of `compile` and its like that are of another type than documented.

    Raises
    ------
    ArgumentTypeError
        It names the argument, its type and the expected one.
    """
    names = [compiler] if isinstance(compiler, str) or compiler is None else compiler
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names if name is not None):
        raise ArgumentTypeError(f"compiler is {compiler!r}; expected a name, or several in order of priority")
    for name, example in _MAPPINGS.items():
        value = arguments.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ArgumentTypeError(f"{name} is {_short(value)}; expected a mapping such as {example}")
    policy = arguments.get("policy")
    if policy is not None and not hasattr(policy, "max_regions"):
        raise ArgumentTypeError(f"policy is {_short(policy)}; expected one such as RegionPolicy(exclude=[...])")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
