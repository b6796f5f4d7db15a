"""The namespaces that are registered: the owner of each; a vendor that fails leaves no partial registration.

The engine reads this table and nothing else of a vendor; `registry` fills it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm_ffi

from ..core.errors import InputError
from ..core.expected import did_you_mean
from .discovery import load_vendors
from .namespace import Namespace
from .tvm_compilers import names_in_tvm, namespace_in_tvm

#: the name of TVM itself, in the place of a compiler
HOST = "tvm"

_NAMESPACES: dict[str, Namespace] = {}
#: vendor, or namespace that it began to register → what went wrong
_FAILED: dict[str, Exception] = {}

_ENGINE = __name__.partition(".")[0]


@contextmanager
def _transaction(vendor: str) -> Iterator[None]:
    """Keep all registrations of a vendor; after an error, none of them, and the error."""
    before = {name: (ns, ns.copy()) for name, ns in _NAMESPACES.items()}
    try:
        yield
    except Exception as error:
        _FAILED.update(dict.fromkeys([vendor, *(_NAMESPACES.keys() - before.keys())], error))
        _NAMESPACES.clear()
        for name, (ns, copy) in before.items():
            vars(ns).update(vars(copy))
            _NAMESPACES[name] = ns
        raise


def _load() -> None:
    load_vendors(_transaction)


def claim_namespace(name: str, extend: bool = False, adding: Sequence[str] = ()) -> Namespace:
    """The namespace called ``name``, for registering something in it; a new one, if there is none.

    Parameters
    ----------
    name : str
        An identifier.
    extend : bool
        Whether it may belong to another package.
    adding : sequence of str
        Operators and patterns that are about to be registered. It warns if the namespace belongs to another package.

    Raises
    ------
    ValueError
        If it belongs to another package.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"compiler {name!r} is not a name; expected an identifier such as 'my_npu'")
    if name == HOST:
        raise ValueError(f"compiler {name!r}: this name stands for TVM itself; choose another")
    who = _registrant()
    ns = _NAMESPACES.setdefault(name, Namespace(name, owner=who))
    if ns.owner != who and not extend:
        raise ValueError(
            f"namespace {name!r} belongs to {ns.owner}, which registered it first; now {who} registers something in "
            "it. Choose another name, or pass extend=True to add to what is there"
        )
    if ns.owner != who and adding:
        ns.added.update(dict.fromkeys(adding, who))
        warnings.warn(
            f"{who} adds {', '.join(adding)} to namespace {name!r}, which belongs to {ns.owner}: models then depend on "
            "which of the two packages are installed. A namespace of its own, given to compile beside this one, "
            "does the same without that",
            stacklevel=3,
        )
    return ns


def _registrant() -> str:
    """The package that calls the engine: its outermost name, or the folder of a vendor among our own."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        parts = str(frame.f_globals.get("__name__", "?")).split(".")
        if parts[0] != _ENGINE:
            return parts[0]
        if parts[1:2] == ["patterns"]:
            return ".".join(parts[:3])
        frame = frame.f_back
    return "?"


def namespace(compiler: str) -> Namespace:
    """The namespace called ``compiler``.

    Raises
    ------
    InputError
        If it is not registered; the message lists those that are.
    """
    _load()
    if compiler not in _NAMESPACES:
        if compiler not in _FAILED and (found := namespace_in_tvm(compiler)) is not None:
            return found
        if compiler in _FAILED:
            error = _FAILED[compiler]
            raise ValueError(
                f"the vendor of compiler {compiler!r} could not be loaded: {type(error).__name__}: {error}"
            ) from error
        known = ", ".join(compilers()) or "none"
        raise InputError(
            f"unknown compiler {compiler!r}; registered: {known}. Import the package that registers it, or install it "
            f"with its entry point in group 'tvm_byoc_dnnl.vendors'{did_you_mean(compiler, compilers())}"
        )
    return _NAMESPACES[compiler]


def compilers() -> list[str]:
    """Names of the registered namespaces, and of those that TVM itself knows by a codegen or by patterns, sorted."""
    _load()
    return sorted({*_NAMESPACES, *names_in_tvm()})


def supported_ops(compiler: str) -> list[str]:
    """Relax ops that ``compiler`` may take (its predicate decides each call), sorted."""
    return namespace(compiler).ops()


def unregister_compiler(compiler: str) -> None:
    """Forget a namespace with all that was registered in it (for tests and notebooks)."""
    known = _NAMESPACES.pop(compiler, None)
    if known is not None and known.codegen is not None:
        # otherwise TVM's table would give this codegen to a later namespace of the name.
        tvm_ffi.remove_global_func(f"relax.ext.{compiler}")
