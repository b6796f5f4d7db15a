"""Compilers that were written for TVM alone: a codegen ``relax.ext.<name>``, and patterns in TVM's own registry."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix

from .namespace import Namespace, Pattern

_CODEGEN = "relax.ext."


def names_in_tvm() -> set[str]:
    """The names of all codegens and of all prefixes of patterns that TVM knows."""
    codegens = {n.removeprefix(_CODEGEN) for n in tvm_ffi.registry.list_global_func_names() if n.startswith(_CODEGEN)}
    patterns = {str(entry.name).partition(".")[0] for entry in get_patterns_with_prefix("")}
    return {name for name in codegens | patterns if name.isidentifier()}


def namespace_in_tvm(name: str) -> Namespace | None:
    """A namespace with TVM's patterns for a compiler; None where TVM knows neither a codegen nor a pattern of it."""
    found = get_patterns_with_prefix(f"{name}.")
    if not found and tvm.get_global_func(_CODEGEN + name, allow_missing=True) is None:
        return None
    patterns: dict[str, Pattern] = {}
    for entry in found:  # those with the highest priority first
        short = str(entry.name).partition(".")[2]
        annotations = {str(key): part for key, part in entry.annotation_patterns.items()}
        patterns.setdefault(short, Pattern(short, entry.pattern, annotations, _check(entry)))
    return Namespace(name, owner="tvm", patterns=patterns)


def _check(entry: Any) -> Any:
    """The pattern's own check, which gets TVM's context of a match."""
    return None if entry.check is None else lambda match: bool(entry.check(match.context))
