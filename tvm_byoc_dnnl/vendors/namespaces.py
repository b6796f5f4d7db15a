"""The namespaces that are registered: how vendors are found, the owner of each, compilers that were written for TVM
alone, and the options that a user sets for one module. `registry` fills this table, and the engine reads nothing else.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix

from ..core.compilation import Compilation, current
from ..core.entries import ENTRY_POINTS
from ..core.errors import ArgumentTypeError, InputError, check_number, did_you_mean, names_of, of_type, one_of, short
from ..core.tensor_info import checked_shapes
from ..core.verdict import calling
from ..graph.cost import RegionPolicy
from ..prepare.compression import ACTIVATIONS, BITS
from . import ENGINE, Namespace, Pattern, defaults
from .codegen import OUTPUTS

_FOLDER = Path(__file__).resolve().parents[1] / "patterns"
_LOCK = threading.RLock()
_loaded = False


def load_vendors() -> None:
    """Import every vendor once. A third party's that fails is left out with a warning that says why.

    Each registers all or nothing.
    """
    global _loaded
    with _LOCK:
        if _loaded:
            return
        _loaded = True  # before the imports: they call back into the registry
        for module in pkgutil.iter_modules([str(_FOLDER)]):
            if module.ispkg:
                with _transaction(module.name):
                    importlib.import_module(f"tvm_byoc_dnnl.patterns.{module.name}.ops")
        found = importlib.metadata.entry_points(group=ENTRY_POINTS)
        for entry in sorted(found, key=lambda e: (e.name, e.value)):  # of two that want one namespace always the same
            try:
                with _transaction(entry.name), calling("its import, or its entry point,"):
                    target = entry.load()
                    if callable(target):
                        target()
            except Exception as error:
                warnings.warn(
                    f"vendor {entry.name!r} ({entry.value}) could not be loaded and is left out: {error!r}",
                    stacklevel=2,
                )


_CODEGEN = "relax.ext."


def names_in_tvm() -> set[str]:
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
    return Namespace(name, owner="tvm", owners={"tvm"}, patterns=patterns)


def _check(entry: Any) -> Any:
    return None if entry.check is None else lambda match: bool(entry.check(match.context))


#: the name of TVM itself, in the place of a compiler
HOST = "tvm"

_NAMESPACES: dict[str, Namespace] = {}
#: vendor, or namespace that it began to register → what went wrong
_FAILED: dict[str, Exception] = {}


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


def claim_namespace(name: str, extend: bool = False, adding: Sequence[str] = ()) -> Namespace:
    """The namespace ``name``, new if need be, to register something in; `InputError` if another package's.

    ``extend`` allows that. Then it warns where operators or patterns are added (``adding``).
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"compiler {name!r} is not a name; expected an identifier such as 'my_npu'")
    if name == HOST:
        raise InputError(f"compiler {name!r}: this name stands for TVM itself; choose another")
    who = _registrant()
    ns = _NAMESPACES.setdefault(name, Namespace(name, owner=who))
    if ns.owner != who and not extend:
        raise InputError(
            f"namespace {name!r} belongs to {ns.owner}, which registered it first; now {who} registers something in "
            "it. Choose another name, or pass extend=True to add to what is there"
        )
    ns.owners.add(who)
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
        if parts[0] != ENGINE:
            return parts[0]
        if parts[1:2] == ["patterns"]:
            return ".".join(parts[:3])
        frame = frame.f_back
    return "?"


def namespace(compiler: str) -> Namespace:
    found = find_namespace(compiler) if isinstance(compiler, str) else None
    if found is not None:
        return found
    if isinstance(compiler, str) and compiler in _FAILED:
        error = _FAILED[compiler]
        raise InputError(
            f"the vendor of compiler {compiler!r} could not be loaded: {type(error).__name__}: {error}"
        ) from error
    known = ", ".join(compilers()) or "none"
    raise (InputError if isinstance(compiler, str) else ArgumentTypeError)(
        f"unknown compiler {short(compiler)}; registered: {known}. Import the package that registers it, or install it "
        f"with its entry point in group 'tvm_byoc_dnnl.vendors'{did_you_mean(compiler, compilers())}"
    )


def find_namespace(name: str) -> Namespace | None:
    load_vendors()
    return _NAMESPACES[name] if name in _NAMESPACES else None if name in _FAILED else namespace_in_tvm(name)


def registered() -> list[Namespace]:
    """The namespaces that vendors registered, without those that only TVM knows: these have no options."""
    load_vendors()
    return [_NAMESPACES[name] for name in sorted(_NAMESPACES)]


def compilers() -> list[str]:
    """Names of the registered namespaces, and of those that TVM itself knows by a codegen or by patterns, sorted.

    To list TVM's takes milliseconds: who has a name asks `find_namespace`.
    """
    load_vendors()
    return sorted({*_NAMESPACES, *names_in_tvm()})


def supported_ops(compiler: str) -> list[str]:
    """Relax ops that ``compiler`` may take (its predicate decides each call), sorted."""
    return namespace(compiler).ops()


def unregister_compiler(compiler: str) -> None:
    """Forget a namespace with all that was registered in it (for tests and notebooks)."""
    known = _NAMESPACES.pop(of_type("compiler", compiler, str), None)
    if known is not None and known.codegen is not None:
        # otherwise TVM's table would give this codegen to a later namespace of the name.
        tvm_ffi.remove_global_func(f"relax.ext.{compiler}")


#: attribute of a module: namespace → option → value
OPTIONS_ATTR = "byoc.options"

_WORDS = {"true": True, "1": True, "false": False, "0": False}


_CPU = tvm.cpu().dlpack_device_type()


def known_target(target: Any, who: str) -> tvm.target.Target:
    """The target of a name, of a dict or of itself; `InputError` if TVM has no such target."""
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
    attrs = of_type("mod", mod, tvm.IRModule).attrs
    every = dict(attrs[OPTIONS_ATTR]) if attrs and OPTIONS_ATTR in attrs else {}
    mine = {**every.get(compiler, {}), **options}
    checked_options(compiler, mine)
    return mod.with_attr(OPTIONS_ATTR, {**every, compiler: mine})


def with_options(mod: tvm.IRModule, options: Mapping[str, Mapping[str, Any]] | None) -> tvm.IRModule:
    check_arguments(options=options)
    for compiler, values in (options or {}).items():
        mod = set_target_options(mod, compiler, **values)
    return mod


def get_target_options(mod: tvm.IRModule, compiler: str) -> dict[str, Any]:
    """The options of ``compiler`` for this module, defaults filled in."""
    attrs = of_type("mod", mod, tvm.IRModule).attrs
    every = attrs[OPTIONS_ATTR] if attrs and OPTIONS_ATTR in attrs else {}
    return checked_options(compiler, dict(every.get(compiler, {})))


def changed_options(mod: tvm.IRModule) -> dict[str, dict[str, Any]]:
    """Namespace → the options of a module that are not their defaults, in order: with others its code is another."""
    found = {}
    for compiler in sorted(mod.attrs[OPTIONS_ATTR]) if mod.attrs and OPTIONS_ATTR in mod.attrs else ():
        defaults, given = namespace(compiler).options(), get_target_options(mod, compiler)
        if changed := {name: given[name] for name in sorted(given) if given[name] != defaults[name]}:
            found[str(compiler)] = changed
    return found


def compilation_of(mod: tvm.IRModule, names: Iterable[str]) -> Compilation:
    """The compilation of this module, with its options for these compilers; by hand it remembers no answers."""
    around = current()
    options = {name: get_target_options(mod, name) for name in names if find_namespace(name)}
    if around.is_by_hand:
        return replace(around, options=options, answers={})
    return replace(around, options=options)


def parse_option(text: str) -> tuple[str, str, Any]:
    """Namespace, option and value, in the type of its default, of ``NAMESPACE.OPTION=VALUE``; or `InputError`."""
    name, equals, value = text.partition("=")
    compiler, dot, option = name.partition(".")
    if not (equals and dot and compiler and option):
        raise InputError(f"got {text!r}; expected NAMESPACE.OPTION=VALUE")
    options = namespace(compiler).options()
    want: Any = type(options.get(option))
    try:
        read = _WORDS[value.lower()] if want is bool else want(value) if option in options else value
    except (ValueError, KeyError):
        expected = "true or false" if want is bool else want.__name__
        raise InputError(f"option {option!r} of {compiler!r} is {value!r}; expected {expected}") from None
    checked_options(compiler, {option: read})
    return compiler, option, read


def checked_options(compiler: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with the defaults of the namespace, if all names and types are right; raises `InputError` otherwise."""
    return checked_values(compiler, namespace(compiler).declared(), given)


def checked_values(compiler: str, declared: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` on top of declared defaults, if all names and values are right; raises `InputError` otherwise."""
    usual = defaults(declared)
    for name, value in given.items():
        if name not in usual:
            known = ", ".join(f"{n}={v!r}" for n, v in usual.items()) or "none"
            raise InputError(
                f"{compiler!r} has no option {name!r}; its options and their defaults: {known}"
                f"{did_you_mean(name, usual)}"
            )
        want = type(usual[name])
        if not isinstance(value, (want, int) if want is float else want) or isinstance(value, bool) != (want is bool):
            raise ArgumentTypeError(f"option {name!r} of {compiler!r} is {value!r}; expected {want.__name__}")
        if isinstance(declared[name], tuple):
            one_of(f"option {name!r} of {compiler!r}", value, declared[name])
    return {**usual, **given}


# ---------------------------------------------------------------- arguments that several public functions have

#: the dtype in which regions compute; `auto` is the fastest that the CPU has itself
PRECISIONS = ("float32", "bfloat16", "auto")
#: the dtypes of compressed weights
WEIGHTS = tuple(BITS)
#: sums of 8-bit products: always exact, or as fast as the CPU can, which may saturate at 16 bits
INT8 = ("exact", "saturating")
#: arguments that are short for options of the compilers that have them → their values, the default first
ARGUMENTS: Mapping[str, tuple[str | None, ...]] = {
    "precision": PRECISIONS,
    "weights": (None, *WEIGHTS),
    "activations": (None, *ACTIVATIONS),
    "int8": INT8,
}
_ANY_OF: Mapping[str, tuple[Any, ...]] = {
    **ARGUMENTS,
    "output": OUTPUTS,
    "fallback": (False, True, "once"),
    "strict": (False, True),
    "prepare": (False, True),
    "dry_run": (False, True),
}
#: argument → its type, and what a message expects of it
_OF_TYPE: Mapping[str, tuple[Any, str]] = {
    "place": (Mapping, "a mapping such as {'relax.nn.relu': 'tvm'}"),
    "policy": (RegionPolicy, "one such as RegionPolicy(exclude=[...])"),
    "database": ((str, PathLike), "the path of a file that tune has written"),
    "cache_dir": ((str, PathLike), "the path of a folder"),
}


def options_of(options: Any) -> Mapping[str, Mapping[str, Any]]:
    """Compiler → option → value, as a user gives them; none for ``None``."""
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise ArgumentTypeError(f"options is {short(options)}; expected a mapping such as {{'my_npu': {{'cores': 4}}}}")
    for compiler, values in options.items():
        if not isinstance(values, Mapping):
            raise ArgumentTypeError(f"the options of {compiler!r} are {short(values)}; expected a dict, option → value")
    return options


def check_arguments(**given: Any) -> None:
    """Refuse what an argument of this name cannot be, in whichever public function; `InputError` says what it can."""
    for name, value in given.items():
        if name in _ANY_OF:
            one_of(name, value, _ANY_OF[name])
        elif value is None:
            continue
        elif name in _OF_TYPE:
            kinds, expected = _OF_TYPE[name]
            if not isinstance(value, kinds):
                raise ArgumentTypeError(f"{name} is {short(value)}; expected {expected}")
        elif name == "compiler":
            for compiler in names_of("compiler", [value] if isinstance(value, str) else value):
                namespace(compiler)
        elif name in ("exclude", "force"):
            names_of(name, value)
        elif name == "shapes":
            checked_shapes(value)
        elif name == "threads":
            check_number(name, value)
        elif name == "target" and known_target(value, "compile").get_target_device_type() != _CPU:
            raise InputError(f"target is {short(value)}; expected a CPU's, as 'llvm': what stays with TVM runs there")
    for compiler, values in options_of(given.get("options")).items():
        checked_options(compiler, values)
    for call, compiler in (given.get("place") or {}).items():
        if compiler != HOST and (not isinstance(compiler, str) or find_namespace(compiler) is None):
            raise InputError(
                f"place[{call!r}] is {compiler!r}; expected {HOST!r} or a registered compiler: "
                f"{', '.join(compilers())}{did_you_mean(compiler, compilers())}"
            )


def with_precision(
    compiler: str | Sequence[str] | None,
    options: Mapping[str, Mapping[str, Any]] | None,
    arguments: Mapping[str, Any],
) -> Mapping[str, Mapping[str, Any]]:
    """``options`` with ``output`` and those of `ARGUMENTS` that ``arguments`` has, for each compiler that has them."""
    known = {**ARGUMENTS, "output": OUTPUTS}
    chosen = {option: arguments.get(option, allowed[0]) for option, allowed in known.items()}
    check_arguments(compiler=compiler, options=options, **chosen)
    wanted = {option: value for option, value in chosen.items() if value != known[option][0]}
    result = {name: dict(values) for name, values in (options or {}).items()}
    names = [compiler] if isinstance(compiler, str) else list(compiler or compilers())
    for option, value in wanted.items():
        able = [name for name in names if option in namespace(name).options()]
        if not able:
            raise InputError(
                f"{option} is {value!r}, but {', '.join(names)} has no such option; leave it out, or use a compiler "
                "that has it"
            )
        for name in able:
            result[name] = {**result.get(name, {}), option: value}
    return result
