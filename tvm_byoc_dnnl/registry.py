"""What every vendor namespace has registered: predicates, patterns, lowerings, a codegen.

The engine reads this table and nothing else of a vendor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from .lower.builder import GraphBuilder
from .lower.graph import PortableGraph
from .namespace import Description, Lowering, Namespace, Pattern, Predicate, Standalone
from .regions.policy import RegionPolicy
from .routes.codegen import Codegen, OwnCodegen
from .vendors import load_vendors
from .verdict import Reject

__all__ = [
    "Description",
    "Namespace",
    "Pattern",
    "check_options",
    "compilers",
    "namespace",
    "register_annotate_compiler",
    "register_codegen",
    "register_lowering",
    "register_namespace",
    "register_pattern",
    "register_unsupported",
    "supported_ops",
    "unregister_compiler",
]

_NAMESPACES: dict[str, Namespace] = {}


def _namespace(name: str) -> Namespace:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"compiler {name!r} is not a name; expected an identifier such as 'my_npu'")
    return _NAMESPACES.setdefault(name, Namespace(name))


def _claim(table: dict[str, Any], key: str, value: Any, what: str, override: bool) -> None:
    old = table.get(key)
    if old is not None and old is not value and not override:
        raise ValueError(
            f"{what} {key!r} is registered already, by {_origin(old)}; now claimed by {_origin(value)}. "
            "Remove one, or pass override=True"
        )
    table[key] = value


def _origin(thing: Any) -> str:
    thing = next((part for name in ("check", "lower", "function") if (part := getattr(thing, name, None))), thing)
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', type(thing).__name__)}"


def namespace(compiler: str) -> Namespace:
    """The namespace called ``compiler``.

    Raises
    ------
    ValueError
        If nobody registered it; the message lists those that are.
    """
    load_vendors()
    if compiler not in _NAMESPACES:
        known = ", ".join(compilers()) or "none"
        raise ValueError(
            f"unknown compiler {compiler!r}; registered: {known}. Import the package that registers it, "
            "or install it with its entry point in group 'tvm_byoc_dnnl.vendors'"
        )
    return _NAMESPACES[compiler]


def compilers() -> list[str]:
    """Names of the registered namespaces, sorted."""
    load_vendors()
    return sorted(_NAMESPACES)


def supported_ops(compiler: str) -> list[str]:
    """Relax ops that ``compiler`` may take (its predicate has the last word on each call), sorted."""
    return namespace(compiler).ops()


def register_namespace(
    compiler: str,
    *,
    codegen: Callable[..., Any] | None = None,
    probe: Callable[[PortableGraph], Reject | None] | None = None,
    describe: Callable[[PortableGraph], Description | None] | None = None,
    emit: Callable[[PortableGraph], str] | None = None,
    write_program: Callable[[Standalone, Path], Sequence[Path]] | None = None,
    optimize: Callable[[PortableGraph], PortableGraph] | None = None,
    prepare: Sequence[Callable[[], tvm.transform.Pass]] = (),
    policy: RegionPolicy | None = None,
) -> Namespace:
    """Set the parts of a namespace that belong to no single op.

    Parameters
    ----------
    compiler : str
        Name of the namespace; an identifier.
    codegen : callable, optional
        See `register_codegen`.
    probe : callable, optional
        ``probe(graph) -> None | Reject``: whether the library has an implementation for a (small) portable graph on
        this machine. Asked for every call that a lowering accepts and that has no predicate of its own.
    describe : callable, optional
        ``describe(graph) -> Description | None``: how the library would run a lowered region, for reports.
    emit : callable, optional
        ``emit(graph) -> str``: a static lowered region as C source, for programs without TVM.
    write_program : callable, optional
        ``write_program(program, folder) -> paths``: writes what makes a program of that source: weights, headers, a
        ``main``. By default nothing is added.
    optimize : callable, optional
        ``optimize(graph) -> graph``: fusion inside a lowered region, such as post-ops.
    prepare : sequence of callables, optional
        Pass factories run before annotation, behind the common canonical forms.
    policy : RegionPolicy, optional
        What is worth a region of this namespace, unless the user says otherwise; by default everything is.
    """
    ns = _namespace(compiler)
    parts = {
        "probe": probe,
        "describe": describe,
        "emit": emit,
        "write_program": write_program,
        "optimize": optimize,
        "prepare": tuple(prepare),
        "policy": policy,
    }
    for key, value in parts.items():
        if value:
            setattr(ns, key, value)
    if codegen is not None:
        register_codegen(compiler, codegen)
    return ns


def register_codegen(
    compiler: str,
    codegen: Callable[..., Any] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    override: bool = False,
) -> Any:
    """Register what turns the regions of ``compiler`` into runtime modules; also a decorator.

    Parameters
    ----------
    compiler : str
        Name of the namespace.
    codegen : callable
        ``codegen(functions, options, constant_names) -> list[tvm.runtime.Module]`` as TVM's ``RunCodegen`` calls it:
        one module per function, exporting the function's ``global_symbol``.
    options : mapping, optional
        Options and their defaults, whose types are the types of the options. A user sets them by
        ``compile(..., options=...)`` or `set_target_options`; ``codegen`` gets all of them, defaults filled in. They
        come on top of those in an attribute ``options`` of ``codegen``.
    override : bool
        Replace an earlier registration instead of raising ``ValueError``.
    """
    if codegen is None:
        return lambda fn: register_codegen(compiler, fn, options=options, override=override)
    ns = _namespace(compiler)
    made = codegen if isinstance(codegen, Codegen) else OwnCodegen(compiler, codegen)
    if ns.codegen not in (None, made) and not override:
        raise ValueError(f"{compiler!r} has a codegen already, {_origin(ns.codegen)}; pass override=True to replace it")
    declared = {**getattr(codegen, "options", {}), **(options or {})}
    check_options(f"register_codegen({compiler!r})", declared, ns.hooks.options if ns.hooks is not None else {})
    ns.codegen, ns.codegen_options = made, declared
    return codegen


def check_options(who: str, options: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Refuse declared options whose default has no type that an option can have, or differs from another's."""
    for name, value in options.items():
        if not isinstance(value, (bool, int, float, str)):
            raise TypeError(f"{who}: the default of option {name!r} is {value!r}; expected a bool, int, float or str")
        if name in others and others[name] != value:
            raise ValueError(
                f"{who}: the default of option {name!r} is {value!r}, and {others[name]!r} where the namespace "
                "declared it before; give it one default"
            )


def register_annotate_compiler(
    compiler: str,
    op: str | Iterable[str],
    predicate: Predicate | None = None,
    *,
    override: bool = False,
) -> Any:
    """Register a capability predicate: may ``compiler`` take this call?

    Three forms: a decorator, a plain call with ``predicate``, and a whitelist (several ops, all accepted).

    Parameters
    ----------
    compiler : str
        Name of the vendor's namespace; made when new.
    op : str or iterable of str
        Relax operator, ``"relax.nn.conv2d"``; an iterable without ``predicate`` accepts every call of each.
    predicate : callable, optional
        ``predicate(attrs, args) -> True | False | Reject``: ``attrs`` are the op's attributes (``None`` where it has
        none), ``args`` the argument expressions with their types in ``.ty``.
    override : bool
        Replace an earlier registration instead of raising ``ValueError``.

    Raises
    ------
    ValueError
        If ``op`` is no Relax operator, or a predicate is registered for it already.
    """
    if not isinstance(op, str):
        ops = list(op)
        for name in ops:
            register_annotate_compiler(compiler, name, predicate or _always, override=override)
        return predicate
    if predicate is None:
        return lambda fn: register_annotate_compiler(compiler, op, fn, override=override)
    _check_op(op)
    _claim(_namespace(compiler).predicates, op, predicate, f"the predicate of {compiler!r} for", override)
    return predicate


def _always(attrs: Any, args: Sequence[Any]) -> bool:
    return True


def _check_op(op: str) -> None:
    if op not in tvm.ir.Op.list_op_names():
        near = [n for n in tvm.ir.Op.list_op_names() if n.startswith("relax.") and n.endswith(op.split(".")[-1])]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"{op!r} is not an operator of this TVM ({tvm.__version__}){hint}")


def register_unsupported(compiler: str, reasons: Mapping[str, str]) -> None:
    """Register why ``compiler`` takes no call of some operators, for reports and the table of operators.

    Parameters
    ----------
    compiler : str
        Name of the namespace.
    reasons : mapping of str to str
        Relax operator, of this or another version of TVM, to what the library lacks.
    """
    for op, why in reasons.items():
        _claim(_namespace(compiler).unsupported, op, why, f"the reason of {compiler!r} against", override=False)


def register_lowering(
    compiler: str, op: str | Iterable[str], lowering: Lowering | None = None, *, override: bool = False
) -> Any:
    """Register how ``compiler`` writes one Relax call into a portable graph; also a decorator.

    Parameters
    ----------
    compiler : str
        Name of the namespace.
    op : str or iterable of str
        Relax operator(s).
    lowering : callable
        ``lowering(g, call)``: reads ``call.attrs``, ``g.value(call.args[i])`` and ``call.ty``, emits nodes on the
        `GraphBuilder` ``g``, returns the result's value (a tuple for a tuple), and refuses with `Reject`.
    override : bool
        Replace an earlier registration instead of raising ``ValueError``.
    """
    if lowering is None:
        return lambda fn: register_lowering(compiler, op, fn, override=override)
    for name in [op] if isinstance(op, str) else op:
        _check_op(name)
        _claim(_namespace(compiler).lowerings, name, lowering, f"the lowering of {compiler!r} for", override)
    return lowering


def register_pattern(
    compiler: str,
    name: str,
    pattern: Any,
    *,
    annotations: Mapping[str, Any] | None = None,
    check: Callable[[Mapping[str, Any]], bool | Reject] | None = None,
    lower: Callable[[GraphBuilder, Mapping[str, Any]], Any] | None = None,
    outputs: Sequence[str] = (),
    example: Callable[[], tvm.IRModule] | None = None,
    override: bool = False,
) -> Pattern:
    """Register a fusion pattern: a subgraph that ``compiler`` takes as one.

    Patterns are tried in the order of their registration, all of them before single ops. A match whose
    intermediate results are used outside of it is not taken, but for those named in ``outputs``.

    Parameters
    ----------
    compiler, name : str
        Namespace, and a name unique in it. The name carries no meaning.
    pattern : tvm.relax.dpl.DFPattern
        Dataflow pattern.
    annotations : mapping of str to DFPattern, optional
        Parts of ``pattern`` that ``check`` and ``lower`` want to see.
    check : callable, optional
        ``check(match) -> True | False | Reject``.
    lower : callable, optional
        ``lower(g, match)``, as in `register_lowering`; by default the matched ops are lowered one by one.
    outputs : sequence of str
        Annotated parts, besides the root, whose results may be used outside of the match.
    example : callable, optional
        ``example() -> IRModule`` whose ``main``, of static shapes, the pattern matches: what the conformance kit
        (`tvm_byoc_dnnl.testing`) tests it with. `pattern_example` makes it out of an expression.
    override : bool
        Replace an earlier registration instead of raising ``ValueError``.
    """
    entry = Pattern(name, pattern, dict(annotations or {}), check, lower, tuple(outputs), example)
    _claim(_namespace(compiler).patterns, name, entry, f"the pattern of {compiler!r}", override)
    return entry


def unregister_compiler(compiler: str) -> None:
    """Forget a namespace with all that was registered in it (for tests and notebooks)."""
    _NAMESPACES.pop(compiler, None)
