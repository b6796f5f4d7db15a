"""The functions by which a vendor registers its parts: predicates, patterns, lowerings, a codegen; each is checked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import tvm
from tvm.relax.dpl import DFPattern

from ..core.errors import ArgumentTypeError, InputError, names_of, reloading
from ..core.machine import own_version
from ..core.verdict import Reject, with_options
from ..graph import PortableGraph
from ..graph.builder import GraphBuilder
from ..graph.cost import RegionPolicy
from ..whole.table import DECLARED_LATER  # noqa: F401 - makes them known
from . import (
    API_VERSIONS,
    Description,
    Examination,
    Lowering,
    Namespace,
    Pattern,
    Predicate,
    Standalone,
    VendorFunctions,
)
from .codegen import Codegen, OwnCodegen
from .namespaces import claim_namespace


def _claim(table: dict[str, Any], entries: Mapping[str, Any], what: str, override: bool) -> None:
    override = override or reloading()
    for key, value in entries.items():
        old = table.get(key)
        if old is not None and old is not value and not override:
            raise InputError(
                f"{what} {key!r} is registered already, by {_origin(old)}; now claimed by {_origin(value)}. "
                "Remove one, or pass override=True"
            )
    table.update(entries)


def check_functions(who: str, **functions: Any) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise ArgumentTypeError(f"{who}: {name} is {function!r}; expected a function")


def _origin(thing: Any) -> str:
    thing = next((part for name in ("check", "lower", "function") if (part := getattr(thing, name, None))), thing)
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', type(thing).__name__)}"


def register_namespace(
    compiler: str,
    *,
    api: int = 1,
    codegen: Callable[..., Any] | None = None,
    probe: Callable[[PortableGraph], Reject | None] | None = None,
    probe_many: Callable[[Sequence[PortableGraph]], Sequence[Reject | None]] | None = None,
    probing_ahead: Any = None,
    describe: Callable[[PortableGraph], Description | None] | None = None,
    emit: Callable[[PortableGraph], str] | None = None,
    write_program: Callable[[Standalone, Path], Sequence[Path]] | None = None,
    optimize: Callable[[PortableGraph], PortableGraph] | None = None,
    primitive_flops: Callable[[str, Sequence[str]], int] | None = None,
    doctor: Examination | None = None,
    prepare: Sequence[Callable[[], tvm.transform.Pass]] = (),
    layout: str = "",
    weights: str = "",
    policy: RegionPolicy | None = None,
    fits: Callable[..., bool | Reject] | None = None,
    notes: Callable[..., str | None] | None = None,
    memory: Callable[[Mapping[str, Any]], Any] | None = None,
    isolate: bool = False,
    extend: bool = False,
) -> Namespace:
    """Set the parts of a namespace that belong to no single op.

    The package that registers something in a namespace first owns it: others pass ``extend=True`` here and in the other
    ``register_*`` functions.

    Parameters
    ----------
    compiler : str
        Name of the namespace; an identifier.
    api : int
        The version of the contract with vendors (docs/vendor_contract.md) that the registrations follow.
    codegen : callable, optional
        See `register_codegen`.
    probe : callable, optional
        ``probe(graph) -> None | Reject``: whether the library has an implementation for a (small) portable graph on
        this machine. Asked for every call that a lowering accepts and that has no predicate of its own.
    probe_many : callable, optional
        ``probe_many(graphs) -> answers``: what ``probe`` says of each graph by itself, for a library that answers many
        questions in less time. Called with the different graphs of a function; what it does not answer, ``probe`` does.
    probing_ahead : optional
        Has no effect any more; see ``probe_many``.
    describe : callable, optional
        ``describe(graph) -> Description | None``: how the library would run a lowered region, for reports.
    emit : callable, optional
        ``emit(graph) -> str``: a static lowered region as C source, for programs without TVM.
    write_program : callable, optional
        ``write_program(program, folder) -> paths``: writes what makes a program of that source: weights, headers, a
        ``main``. By default nothing is added.
    optimize : callable, optional
        ``optimize(graph) -> graph``: fusion inside a lowered region, such as post-ops.
    primitive_flops : callable, optional
        ``primitive_flops(kind, layouts) -> int``: operations of one step of a profile, whose arguments have these
        layouts (the result comes last).
    doctor : Examination, optional
        What `doctor` looks at besides.
    prepare : sequence of callables, optional
        Pass factories run before annotation, behind the common canonical forms. A pass sees the calls of operators that
        the namespace has a predicate, a lowering or a pattern for; the others are calls of a function without a
        meaning.
    layout : str
        The layout of pictures that the calls of this namespace have, such as ``NHWC``, in one and three dimensions
        accordingly (``NWC``, ``NDHWC``): convolutions, pooling, resizing, and what lies between them. Predicates and
        patterns are asked about calls in this layout.
    weights : str
        The layout of the weights of convolutions, such as ``HWIO``; by default that of pictures (``OHWI``).
    policy : RegionPolicy, optional
        Decides which regions of this namespace are worth a call, unless the user gives a policy; by default all are.
    fits : callable, optional
        ``fits(region) -> True | False | Reject``, or ``fits(region, options)``: whether the device has room for a
        region, which has the form that a codegen gets: memory, number of operators, of arguments, of results. Asked
        before the codegen. A region that does not fit is cut into parts that do, at the cheapest places, by a number of
        questions that grows with the logarithm of its calls: more calls must not fit where fewer do not.
    notes : callable, optional
        ``notes(region) -> str | None``, or ``notes(region, options)``: a line for `explain` on a region that has been
        built, such as the cycles and the memory that the vendor's compiler expects.
    memory : callable, optional
        ``memory(options) -> DeviceMemory``: the device has a memory of its own. Results stay there from one region of
        this namespace to the next, and are copied out where anybody else reads them. Called once for each runner, with
        the options of `register_blob_runner`; its regions are blobs.
    isolate : bool
        For code that is not trusted: the codegen and the target hooks run in a forked process of their own
        (``relax_to_tir`` is tried in one first). After a crash their regions go to the next compiler or to TVM, with
        that reason. Results are pickled, as modules that can be exported allow, and changes of memory are lost.
    extend : bool
        Set parts of a namespace that another package has registered, instead of raising ``ValueError``.

    Raises
    ------
    InputError
        If ``api`` is a version of the contract that this package does not have, or ``layout`` or ``weights`` is none.
    ValueError
        If the name is none, or belongs to another package.
    """
    given = dict(locals())
    if api not in API_VERSIONS:
        known = ", ".join(map(str, API_VERSIONS))
        raise InputError(
            f"register_namespace({compiler!r}): api is {api!r}; tvm-byoc-dnnl {own_version()} has version {known} of "
            "the contract with vendors: install a version that has the other, or write the backend for this one"
        )
    functions = {part.name: given[part.name] for part in fields(VendorFunctions) if given.get(part.name) is not None}
    check_functions(f"register_namespace({compiler!r})", **functions)
    functions |= {name: with_options(functions[name]) for name in ("fits", "notes") if name in functions}
    if probing_ahead is not None:
        warnings.warn("probing_ahead has no effect; give probe_many instead", DeprecationWarning, stacklevel=2)
    ns = claim_namespace(compiler, extend)
    ns.api = api
    if codegen is not None:
        register_codegen(compiler, codegen, override=extend)
    vars(ns.functions).update(functions)
    parts = {
        "doctor": doctor,
        "prepare": tuple(prepare),
        "layouts": _layouts(f"register_namespace({compiler!r})", layout, weights),
        "policy": policy,
        "isolate": isolate,
    }
    for key, value in parts.items():
        if value:
            setattr(ns, key, value)
    ns.check_parts()
    return ns


def _layouts(who: str, layout: str, weights: str) -> tuple[str, str] | None:
    if not layout and not weights:
        return None
    for what, text, letters in (("layout", layout, "NCHW"), ("weights", weights or "OIHW", "OIHW")):
        if not isinstance(text, str) or sorted(text) != sorted(letters):
            raise InputError(f"{who}: {what} is {text!r}; expected the letters {letters} in some order")
    return layout, weights or layout.replace("C", "I").replace("N", "O")


def register_codegen(
    compiler: str,
    codegen: Callable[..., Any] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    isolate: bool = False,
    override: bool = False,
) -> Any:
    """Register what turns the regions of ``compiler`` into runtime modules; also a decorator.

    Parameters
    ----------
    codegen : callable
        ``codegen(functions, options, constant_names) -> list[tvm.runtime.Module]`` as TVM's ``RunCodegen`` calls it:
        one module per function, exporting the function's ``global_symbol``.
    options : mapping, optional
        Option → its default, whose type is the type of the option, or a tuple of all its values, the default first. A
        user sets them by ``compile(..., options=...)`` or `set_target_options`; ``codegen`` gets all of them, defaults
        filled in. They come on top of those in an attribute ``options`` of ``codegen``.
    isolate : bool
        The same as ``register_namespace(compiler, isolate=True)``.
    compiler, override
        As in `register_annotate_compiler`.
    """
    if codegen is None:
        return lambda fn: register_codegen(compiler, fn, options=options, isolate=isolate, override=override)
    check_functions(f"register_codegen({compiler!r})", codegen=codegen)
    ns = claim_namespace(compiler, override)
    made = codegen if isinstance(codegen, Codegen) else OwnCodegen(compiler, codegen)
    if ns.codegen not in (None, made) and not (override or reloading()):
        raise InputError(f"{compiler!r} has a codegen already, {_origin(ns.codegen)}; pass override=True to replace it")
    declared = {**getattr(codegen, "options", {}), **(options or {})}
    check_options(f"register_codegen({compiler!r})", declared, ns.hooks.options if ns.hooks is not None else {})
    ns.codegen, ns.codegen_options, ns.isolate = made, declared, isolate or ns.isolate
    ns.check_parts()
    return codegen


def check_options(who: str, options: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Refuse declared options whose values have no type that an option can have, or differ from another's."""
    for name, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        if not values or not isinstance(values[0], (bool, int, float, str)) or len(set(map(type, values))) > 1:
            raise ArgumentTypeError(
                f"{who}: the default of option {name!r} is {value!r}; expected a bool, int, float or str, or a tuple "
                "of such values of one type, the default first"
            )
        if name in others and others[name] != value:
            raise InputError(
                f"{who}: the default of option {name!r} is {value!r}, and {others[name]!r} where the namespace "
                "declared it before; give it one default"
            )


def register_annotate_compiler(
    compiler: str,
    op: str | Iterable[str],
    predicate: Predicate | None = None,
    *,
    override: bool = False,
    extend: bool = False,
) -> Any:
    """Register a capability predicate: may ``compiler`` take this call?

    Three forms: a plain call with ``predicate``, a whitelist without one, and a decorator of the predicate.

    Parameters
    ----------
    compiler : str
        Name of the vendor's namespace; made when new.
    op : str or iterable of str
        Relax operator, ``"relax.nn.conv2d"``, or several.
    predicate : callable, optional
        ``predicate(attrs, args) -> True | False | Reject``: ``attrs`` are the op's attributes (``None`` where it has
        none), ``args`` the argument expressions with their types in ``.ty``. Without it every call is accepted, or what
        the function says that the result decorates.
    override : bool
        Replace an earlier registration, also another package's, instead of raising ``ValueError``.
    extend : bool
        Add to a namespace that another package has registered, instead of raising ``ValueError``.

    Raises
    ------
    TypeError, ValueError
        If ``op`` is no Relax operator, ``predicate`` is no function, one is registered already, or the namespace is
        another package's.
    """
    ops = _checked_ops(op)
    who = f"register_annotate_compiler({compiler!r})"
    check_functions(who, predicate=predicate)
    table = claim_namespace(compiler, extend or override, ops).predicates
    _claim(table, dict.fromkeys(ops, predicate or _always), f"the predicate of {compiler!r} for", override)

    def decorated(fn: Predicate) -> Predicate:
        check_functions(who, predicate=fn)
        table.update(dict.fromkeys(ops, fn))
        return fn

    return decorated if predicate is None else predicate


def _always(attrs: Any, args: Sequence[Any]) -> bool:
    return True


def _checked_ops(ops: str | Iterable[str]) -> Sequence[str]:
    names, known = names_of("op", [ops] if isinstance(ops, str) else ops), tvm.ir.Op.list_op_names()
    for op in names:
        if op not in known:
            own = (name for name in known if name.startswith(("relax.", "onnx.")))
            near = [name for name in own if name.lower().endswith(op.lower().rpartition(".")[2])]
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            if not near and op.startswith("onnx."):
                hint = "; register_onnx_operator makes an operator of ONNX known"
            raise InputError(f"{op!r} is not an operator of this TVM ({tvm.__version__}){hint}")
    return names


def register_unsupported(compiler: str, reasons: Mapping[str, str], *, extend: bool = False) -> None:
    """Register why ``compiler`` takes no call of some operators, for reports and the table of operators.

    Parameters
    ----------
    reasons : mapping of str to str
        Relax operator, of this or another version of TVM, to the primitive that the library lacks.
    compiler, extend
        As in `register_annotate_compiler`.
    """
    table = claim_namespace(compiler, extend).unsupported
    _claim(table, reasons, f"the reason of {compiler!r} against", override=False)


def register_lowering(
    compiler: str,
    op: str | Iterable[str],
    lowering: Lowering | None = None,
    *,
    override: bool = False,
    extend: bool = False,
) -> Any:
    """Register how ``compiler`` writes one Relax call into a portable graph; also a decorator.

    Parameters
    ----------
    op : str or iterable of str
        Relax operator(s).
    lowering : callable
        ``lowering(g, call)``: reads ``call.attrs``, ``g.value(call.args[i])`` and ``call.ty``, emits nodes on the
        `GraphBuilder` ``g``, returns the result's value (a tuple for a tuple), and refuses with `Reject`.
    compiler, override, extend
        As in `register_annotate_compiler`.
    """
    ops = _checked_ops(op)
    if lowering is None:
        return lambda fn: register_lowering(compiler, op, fn, override=override, extend=extend)
    check_functions(f"register_lowering({compiler!r})", lowering=lowering)
    entries = dict.fromkeys(ops, lowering)
    table = claim_namespace(compiler, extend or override, ops).lowerings
    _claim(table, entries, f"the lowering of {compiler!r} for", override)
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
    extend: bool = False,
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
    override, extend
        As in `register_annotate_compiler`.

    Raises
    ------
    TypeError, ValueError
        If ``pattern`` or a part of it is no pattern, ``outputs`` names none of the parts, the name is taken, or the
        namespace is another package's.
    """
    entry = Pattern(name, pattern, dict(annotations or {}), check, lower, tuple(outputs), example)
    _check_pattern(f"register_pattern({compiler!r}, {name!r})", entry)
    table = claim_namespace(compiler, extend or override, [f"{compiler}.{name}"]).patterns
    _claim(table, {name: entry}, f"the pattern of {compiler!r}", override)
    return entry


def register_cost(compiler: str, cost: Callable[[tvm.IRModule], float | None], *, extend: bool = False) -> None:
    """Give a namespace a cost model of its own, which `tune` asks instead of measuring.

    Parameters
    ----------
    cost : callable
        ``cost(mod) -> seconds``: the time of one call of ``main``, which does nothing but call one region of this
        namespace; ``None`` where the model does not know, so that the region is measured.
    compiler, extend
        As in `register_annotate_compiler`.
    """
    check_functions(f"register_cost({compiler!r})", cost=cost)
    claim_namespace(compiler, extend).functions.cost = cost


def _check_pattern(who: str, entry: Pattern) -> None:
    for what, part in [("the pattern", entry.pattern), *((repr(n), p) for n, p in entry.annotations.items())]:
        if not isinstance(part, DFPattern):
            raise ArgumentTypeError(
                f"{who}: {what} is {part!r}; expected a pattern of tvm.relax.dpl, such as is_op(...)(...)"
            )
    check_functions(who, check=entry.check, lower=entry.lower, example=entry.example)
    unknown = [name for name in entry.outputs if name not in entry.annotations]
    if unknown:
        known = ", ".join(map(repr, entry.annotations)) or "none"
        raise InputError(f"{who}: outputs has {unknown[0]!r}, which is no annotation; the annotations are {known}")
