"""Options of a namespace: its hooks and its codegen declare them, and a user sets them for one module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import tvm

from ..core.compilation import Compilation, current
from ..core.errors import InputError
from ..core.expected import did_you_mean
from .namespaces import compilers, find_namespace, namespace

#: attribute of a module: namespace → option → value
OPTIONS_ATTR = "byoc.options"

_WORDS = {"true": True, "1": True, "false": False, "0": False}


def known_target(target: Any, who: str) -> tvm.target.Target:
    """The target of a name, of a dict or of itself.

    Raises
    ------
    InputError
        If TVM has no such target.
    """
    try:
        return tvm.target.Target(target)
    except Exception as error:
        why = str(error).strip().splitlines()[-1]
        meant = did_you_mean(target, tvm.target.Target.list_kinds()) if isinstance(target, str) else ""
        raise InputError(f"{who}: TVM knows no target {target!r}: {why}{meant}") from error


def set_target_options(mod: tvm.IRModule, compiler: str, **options: Any) -> tvm.IRModule:
    """``mod`` with options for the hooks and the codegen of ``compiler``.

    Raises
    ------
    InputError
        If the namespace has no such option, or a value has the wrong type.
    """
    every = dict(mod.attrs[OPTIONS_ATTR]) if mod.attrs and OPTIONS_ATTR in mod.attrs else {}
    mine = {**every.get(compiler, {}), **options}
    checked_options(compiler, mine)
    return mod.with_attr(OPTIONS_ATTR, {**every, compiler: mine})


def with_options(mod: tvm.IRModule, options: Mapping[str, Mapping[str, Any]] | None) -> tvm.IRModule:
    """`set_target_options` for several namespaces: namespace → option → value."""
    for compiler, values in (options or {}).items():
        if not isinstance(values, Mapping):
            raise InputError(f"the options of {compiler!r} are {values!r}; expected a dict, option → value")
        mod = set_target_options(mod, compiler, **values)
    return mod


def get_target_options(mod: tvm.IRModule, compiler: str) -> dict[str, Any]:
    """The options of ``compiler`` for this module, defaults filled in."""
    every = mod.attrs[OPTIONS_ATTR] if mod.attrs and OPTIONS_ATTR in mod.attrs else {}
    return checked_options(compiler, dict(every.get(compiler, {})))


def compilation_of(mod: tvm.IRModule, names: Iterable[str]) -> Compilation:
    """The compilation of this module, with its options for these compilers; by hand it remembers no answers."""
    around = current()
    options = {name: get_target_options(mod, name) for name in names if find_namespace(name)}
    if around.is_by_hand:
        return replace(around, options=options, answers={})
    return replace(around, options=options)


def parse_option(text: str) -> tuple[str, str, Any]:
    """Namespace, option and value of ``NAMESPACE.OPTION=VALUE``, the value in the type of the option's default.

    Raises
    ------
    InputError
        If the text has another form, the namespace no such option, or the option another type.
    """
    name, equals, value = text.partition("=")
    compiler, dot, option = name.partition(".")
    if not (equals and dot and compiler and option):
        raise InputError(f"got {text!r}; expected NAMESPACE.OPTION=VALUE")
    if find_namespace(compiler) is None:
        raise InputError(f"unknown compiler {compiler!r}; registered: {', '.join(compilers())}")
    declared = namespace(compiler).options()
    if option not in declared:
        raise InputError(_unknown(compiler, option, declared))
    want = type(declared[option])
    try:
        return compiler, option, _WORDS[value.lower()] if want is bool else want(value)
    except (ValueError, KeyError):
        expected = "true or false" if want is bool else want.__name__
        raise InputError(f"option {option!r} of {compiler!r} is {value!r}; expected {expected}") from None


def checked_options(compiler: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with the defaults of the namespace, if all names and types are right; raises `InputError` otherwise."""
    return checked_values(compiler, namespace(compiler).options(), given)


def checked_values(compiler: str, declared: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` on top of declared defaults, if all names and types are right; raises `InputError` otherwise."""
    for name, value in given.items():
        if name not in declared:
            raise InputError(_unknown(compiler, name, declared))
        want = type(declared[name])
        fits = isinstance(value, (want, int) if want is float else want) and isinstance(value, bool) == (want is bool)
        if not fits:
            raise InputError(f"option {name!r} of {compiler!r} is {value!r}; expected {want.__name__}")
    return {**declared, **given}


def _unknown(compiler: str, option: str, declared: Mapping[str, Any]) -> str:
    known = ", ".join(f"{n}={v!r}" for n, v in declared.items()) or "none"
    return f"{compiler!r} has no option {option!r}; its options and their defaults: {known}"
