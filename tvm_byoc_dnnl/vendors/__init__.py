"""What a vendor registers: the parts of its namespace, plain data, filled by the ``register_*`` functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from ..core.compilation import current
from ..core.errors import ArgumentTypeError
from ..core.verdict import Reject, Works, calling, expect
from ..graph import PortableGraph
from ..graph.builder import GraphBuilder
from ..graph.cost import RegionPolicy
from .codegen import Codegen, OwnCodegen, Route

ENGINE = __name__.partition(".")[0]

#: versions of the contract with vendors (docs/vendor_contract.md) that this package keeps
API_VERSIONS = (1,)

#: ``predicate(attrs, args) -> True | False | Reject``
Predicate = Callable[[Any, Sequence[Any]], "bool | Reject"]
#: ``lowering(g, call) -> Value | tuple of Values``; refuses by raising or returning `Reject`
Lowering = Callable[[GraphBuilder, Any], Any]


@dataclass(frozen=True)
class Pattern:
    """A subgraph that becomes one composite function."""

    #: unique in the namespace; the composite is called ``<namespace>.<name>``
    name: str
    #: what to find. Its root is the pattern itself
    pattern: Any
    #: names for parts of the pattern, to be found again in ``check`` and ``lower``
    annotations: Mapping[str, Any] = field(default_factory=dict)
    #: ``check(match) -> True | False | Reject``, ``match`` maps annotation names (and ``"root"``) to expressions
    check: Callable[[Mapping[str, Any]], bool | Reject] | None = None
    #: ``lower(g, match) -> Value | tuple``. Without it the composite is lowered op by op
    lower: Callable[[GraphBuilder, Mapping[str, Any]], Any] | None = None
    #: annotated parts, besides the root, whose results may be used outside of the match
    outputs: Sequence[str] = ()
    #: ``example() -> IRModule`` whose ``main`` the pattern matches, for the conformance kit
    example: Callable[[], tvm.IRModule] | None = None


@dataclass(frozen=True)
class Description:
    """How a library runs a portable graph on this machine.

    Attributes
    ----------
    implementations : sequence of str
        One per node of the graph; ``"view"`` where nothing is executed.
    reorders : int
        Changes of layout per run that no node asked for.
    """

    implementations: Sequence[str]
    reorders: int


@dataclass(frozen=True)
class Standalone:
    """A region that is a whole program.

    Attributes
    ----------
    graph : PortableGraph
        The region.
    source : str
        It as C source.
    constants : list of ndarray
        In the order of the graph's constants.
    arguments : list of int
        For each input of the region, the parameter of ``main`` that it is.
    results : list of int
        For each result of ``main``, the output of the region that it is.
    """

    graph: PortableGraph
    source: str
    constants: list[Any]
    arguments: list[int]
    results: list[int]


@dataclass(frozen=True)
class Examination:
    """The part of a namespace that `doctor` looks at.

    Attributes
    ----------
    packages : sequence of str
        Packages whose versions matter, for reports too.
    variables : mapping of str to str
        Environment variable → its effect on the library, unless it is empty, ``0`` or ``ALL``.
    prefixes : sequence of str
        How the environment variables begin that the library reads.
    """

    packages: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    prefixes: Sequence[str] = ()


@dataclass(frozen=True)
class BlobRunner:
    check: Callable[[str], bool | Reject | Works]
    #: ``load(data, options, memory)``
    load: Callable[[bytes, Mapping[str, Any], Any], Callable[..., Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    is_in_c: bool = False


#: ``(IRModule of one namespace's PrimFuncs, Target) -> runtime Module``
TirToRuntime = Callable[[tvm.IRModule, tvm.target.Target], tvm.runtime.Module]


@dataclass(frozen=True)
class TargetHooks:
    relax_to_tir: tvm.transform.Pass
    tir_to_runtime: TirToRuntime | None = None
    tir_passes: tvm.transform.Pass | None = None
    target: str | Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def builds_apart(self) -> bool:
        """Whether the PrimFuncs become a runtime module of their own, beside TVM's."""
        return any(part is not None for part in (self.tir_to_runtime, self.tir_passes, self.target))


@dataclass(frozen=True)
class FusedOp:
    name: str
    #: the leaves of the pattern, left to right, each once
    inputs: tuple[Any, ...]
    #: the parts whose results leave it, its root first
    outputs: tuple[Any, ...]
    annotations: Mapping[str, Any]
    compute: Callable[..., Any] | None
    schedule: Callable[[Any], Any] | None


@dataclass
class VendorFunctions:
    """What the engine asks a namespace."""

    probe: Callable[[PortableGraph], Reject | None] | None = None
    probe_many: Callable[[Sequence[PortableGraph]], Sequence[Reject | None]] | None = None
    describe: Callable[[PortableGraph], Description | None] | None = None
    emit: Callable[[PortableGraph], str] | None = None
    write_program: Callable[[Standalone, Path], Sequence[Path]] | None = None
    optimize: Callable[[PortableGraph], PortableGraph] | None = None
    primitive_flops: Callable[[str, Sequence[str]], int] | None = None
    #: ``fits(region, options)``
    fits: Callable[[Any, Mapping[str, Any]], bool | Reject] | None = None
    #: ``notes(region, options)``
    notes: Callable[[Any, Mapping[str, Any]], str | None] | None = None
    #: ``memory(options)``: the memory of its device in a runner, where values stay from region to region
    memory: Callable[[Mapping[str, Any]], Any] | None = None
    cost: Callable[[tvm.IRModule], float | None] | None = None


@dataclass
class Namespace:
    name: str
    #: the package that registered it
    owner: str = ""
    #: the version of the contract that it was written for
    api: int = API_VERSIONS[-1]
    #: operator or pattern that another package has added → that package
    added: dict[str, str] = field(default_factory=dict)
    #: all packages that have registered something in it
    owners: set[str] = field(default_factory=set)
    predicates: dict[str, Predicate] = field(default_factory=dict)
    lowerings: dict[str, Lowering] = field(default_factory=dict)
    patterns: dict[str, Pattern] = field(default_factory=dict)
    codegen: Codegen | None = None
    #: its hooks and fused operators, in front of the codegen
    kernels: Route | None = None
    codegen_options: Mapping[str, Any] = field(default_factory=dict)
    #: whether its codegen and its hooks run in a process of their own
    isolate: bool = False
    doctor: Examination = field(default_factory=Examination)
    prepare: Sequence[Callable[[], tvm.transform.Pass]] = ()
    #: of pictures and of weights
    layouts: tuple[str, str] | None = None
    policy: RegionPolicy | None = None
    blob_runner: BlobRunner | None = None
    hooks: TargetHooks | None = None
    fused_ops: dict[str, FusedOp] = field(default_factory=dict)
    #: Relax op → why the library cannot do it
    unsupported: dict[str, str] = field(default_factory=dict)
    functions: VendorFunctions = field(default_factory=VendorFunctions)

    @property
    def route(self) -> Route:
        return self.kernels or self.by_codegen

    @property
    def by_codegen(self) -> Codegen:
        """Its codegen, in a process of its own where that is asked for; TVM may know one that is not registered."""
        made = self.codegen or OwnCodegen(self.name)
        if not isinstance(made, OwnCodegen):
            return made
        return replace(made, isolate=self.isolate or made.isolate, on_device=self.functions.memory is not None)

    def check_parts(self) -> None:
        """Raise `ArgumentTypeError` where a codegen or a runner has no process of its own or no memory of a device."""
        has_memory = self.functions.memory is not None
        if has_memory and self.blob_runner is not None and self.blob_runner.is_in_c:
            raise ArgumentTypeError(
                f"memory= of {self.name!r} is for a runner in Python; one in C (library=) gets tensors of the host: "
                "leave out memory=, or pass check= and load="
            )
        for name, is_set in (("isolate=True", self.isolate), ("memory=", has_memory)):
            if is_set and not isinstance(self.codegen, (OwnCodegen, type(None))):
                raise ArgumentTypeError(
                    f"{name} of {self.name!r} is for a codegen that is a function; got {self.codegen!r}"
                )

    def copy(self) -> Namespace:
        tables: dict[str, Any] = {k: value.copy() for k, value in vars(self).items() if isinstance(value, (dict, set))}
        return replace(self, functions=replace(self.functions), **tables)

    def no_predicate(self, op: str) -> Reject:
        """The verdict on a call of an operator that it has neither a predicate nor a lowering for."""
        why = self.unsupported.get(op, _OF_HOST.get(op))
        knows = "does not take" if self.is_ours else "has no predicate for"
        return Reject(f"{self.name!r} {knows} {op}" + (f": {why}" if why else ""))

    @property
    def is_ours(self) -> bool:
        """Whether it comes with this package: its users cannot write its patterns."""
        return self.owner.startswith(f"{ENGINE}.")

    def ops(self) -> list[str]:
        return sorted({*self.predicates, *self.lowerings})

    def declared(self) -> dict[str, Any]:
        """Option → its default, or a tuple of its values, the default first."""
        return {**self.codegen_options, **(self.hooks.options if self.hooks is not None else {})}

    def options(self) -> dict[str, Any]:
        """Option → its default."""
        return defaults(self.declared())


def defaults(declared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value[0] if isinstance(value, tuple) else value for name, value in declared.items()}


#: operators of the host, and why no compiler takes them
_OF_HOST = {"byoc.loop": "it runs a function in rounds, the calls of which are offered like all others"}

#: function of a namespace → how a message calls it, what it gives, and how a message says so
_GIVES: dict[str, tuple[str, Any, str]] = {
    "optimize": ("optimize", PortableGraph, "a PortableGraph"),
    "probe": ("the probe", (Reject, type(None)), "None, or byoc.Reject(reason)"),
    "probe_many": ("probe_many", Sequence, "one answer of probe for each graph"),
    "describe": ("describe", (Description, type(None)), "a Description, or None"),
    "notes": ("notes", (str, type(None)), "a line of text, or None"),
    "cost": ("the cost", (int, float, np.number, type(None)), "seconds, or None"),
    "emit": ("emit", str, "C source"),
    "write_program": ("write_program", Sequence, "the paths of the files that it wrote"),
    "primitive_flops": ("primitive_flops", int, "a number of operations"),
}


def remembered() -> dict[Any, Any]:
    """What a vendor has noted in this compilation, by keys of its own; it may note more, until it ends."""
    return current().answers


def told(ns: Namespace, function: str, *arguments: Any, around: Sequence[Any] | None = None) -> Any:
    """What a function of a namespace says, ``None`` without one; `VendorError` names it where it fails.

    ``around`` is as for `calling`.
    """
    asked = getattr(ns.functions, function)
    if asked is None:
        return None
    name, kind, expected = _GIVES[function]
    who = f"{name} of {ns.name!r}"
    with calling(who, named=True, around=around):
        answer = asked(*arguments)
    return expect(answer, kind, who, expected)
