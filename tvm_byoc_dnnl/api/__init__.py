"""The one-call forms: partition and compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..core.compilation import OverwritableWeights, compiling, stage
from ..core.errors import ByocError, InputError, UnsupportedError, renamed
from ..core.machine import progress
from ..core.tensor_info import shape_options
from ..frontends import imported, to_relax
from ..graph.cost import RegionPolicy, with_names
from ..ir.relax_utils import inputs_of
from ..partitioning import PartitionGraph
from ..partitioning.annotate import AnnotateExternalCompiler
from ..partitioning.trial import PlacedBy, first_in_order
from ..pipeline import PIPELINE
from ..pipeline.executable import ByocExecutable, SourceExecutable
from ..pipeline.host_code import WrapIntegers, complete_host_c
from ..pipeline.regions import with_host_form
from ..pipeline.standalone import write_source
from ..prepare import ExactForms
from ..tuning import placement_for
from ..tuning.database import choices_of
from ..tuning.plans import known_times
from ..vendors.namespaces import HOST, check_arguments, known_target, with_options, with_precision
from ..vendors.portable import source_builds, source_namespaces
from .cache import ModelCache, key_of

DEFAULT_COMPILER = "dnnl"


@renamed(mod="model", placement="place")
def partition(
    model: Any,
    compiler: str | Sequence[str] | None = DEFAULT_COMPILER,
    *,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    precision: str = "float32",
    weights: str | None = None,
    activations: str | None = None,
    int8: str = "exact",
    policy: RegionPolicy | None = None,
    exclude: Sequence[str] = (),
    force: Sequence[str] = (),
    place: Mapping[str, str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    strict: bool = False,
    prepare: bool = True,
    dry_run: bool = False,
) -> tvm.IRModule:
    """Import, prepare, annotate and partition a model.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, path or torch.export.ExportedProgram
        The model.
    compiler : str or sequence of str
        Namespace, or several in order of priority; ``None`` reads the functions' attribute ``compiler``.
    shapes, precision, weights, activations, int8, policy, exclude, force, place, options, strict
        As in `compile`.
    prepare : bool
        Rewrite the module to the canonical forms for which patterns are written. Without it patterns are matched with
        the imported form.
    dry_run : bool
        Run no compiler of a vendor's, which may take long: the regions are those that its predicates, patterns, policy
        and ``fits`` allow, and a build may still find that it cannot compile one of them.

    Returns
    -------
    IRModule
        Regions are functions with the attribute ``Codegen``; compile it with ``relax_pipeline="byoc"``. The reasons why
        calls are in no region are in the module's log.

    Raises
    ------
    InputError
        If a namespace has no such option, or not this value, or ``place`` names no registered compiler.
    UnsupportedError
        With ``strict``: lists every call that failed, with the reason; raised from the vendor's own exception.
    """
    how: dict[str, Any] = {"strict": strict, "prepare": prepare, "dry_run": dry_run}
    check_arguments(compiler=compiler, policy=policy, exclude=exclude, force=force, place=place, options=options, **how)
    chosen = {"precision": precision, "weights": weights, "activations": activations, "int8": int8}
    options = with_precision(compiler, options, chosen)
    policy = with_names(policy, exclude, force)
    return _partitioned(with_options(to_relax(model, shapes), options), compiler, place, policy=policy, **how)


@renamed(mod="model")
def emit(
    model: Any, out_dir: str | PathLike[str], compiler: str | Sequence[str] | None = DEFAULT_COMPILER, **how: Any
) -> list[Path]:
    """Write a model as source that needs the vendor's library alone, and neither Python nor TVM.

    The program makes the calls that the compiled module makes, for this machine's CPU and number of threads.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, path or torch.export.ExportedProgram
        The model, partitioned already or not; partitioned, ``main`` is one call of one region.
    out_dir : path
        Folder for the files; made when it does not exist, files of the same names are overwritten.
    compiler, **how
        Arguments of `partition`.

    Returns
    -------
    list of Path
        ``<region>.c``, and the files that the namespace adds to make a program of it.

    Raises
    ------
    InputError
        As of `partition`.
    UnsupportedError
        If ``main`` is more than one call of one region, has symbolic shapes, or works in a layout that cannot be
        said in source.
    ExportError
        If the files cannot be written; then those that were there are still as they were.
    NativeLibraryError
        Without the native library, which plans the program.
    """
    return write_source(partition(model, compiler, **how), out_dir)


def _partitioned(
    mod: tvm.IRModule,
    compiler: str | Sequence[str] | None,
    placement: Mapping[str, str] | None,
    *,
    policy: RegionPolicy | None,
    strict: bool,
    prepare: bool,
    dry_run: bool = False,
    own: OverwritableWeights | None = None,
) -> tvm.IRModule:
    """See `partition`; of the weights in ``own`` there are no other readers."""
    mod = ExactForms(mod)
    named = {"exclude": policy.exclude, "force": policy.force} if policy is not None else {}
    choice = PlacedBy(placement or {}, named) if placement or any(named.values()) else first_in_order
    placed = [name for name, compiler in (placement or {}).items() if compiler != HOST]  # even if they are cheap
    passes = [
        AnnotateExternalCompiler(compiler, prepare=prepare, choice=choice, own=own),
        PartitionGraph(policy=with_names(policy, force=placed), strict=strict, dry_run=dry_run),
    ]
    with compiling():
        return tvm.transform.Sequential(passes)(mod)


@renamed(placement="place")
@compiling()
def compile(
    model: Any,
    compiler: str | Sequence[str] | None = DEFAULT_COMPILER,
    *,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    precision: str = "float32",
    weights: str | None = None,
    activations: str | None = None,
    int8: str = "exact",
    target: str | Mapping[str, Any] | tvm.target.Target = "llvm",
    policy: RegionPolicy | None = None,
    exclude: Sequence[str] = (),
    force: Sequence[str] = (),
    place: Mapping[str, str] | None = None,
    database: str | PathLike[str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    threads: int | None = None,
    cache_dir: str | PathLike[str] | None = None,
    strict: bool = False,
    prepare: bool = True,
    output: str = "module",
    fallback: bool | str = False,
) -> ByocExecutable:
    """Compile a model.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, path or torch.export.ExportedProgram
        The model.
    compiler : str or sequence of str
        Namespace, or several in order of priority.
    shapes : mapping, optional
        Input name → shape, to fix dimensions that an ONNX model leaves open; a name such as ``"N"`` leaves one open.
    precision : str
        The dtype in which regions compute, between float32 inputs and outputs: ``"float32"``, ``"bfloat16"``, or
        ``"auto"``, which is bfloat16 where the CPU has it itself. An option of each compiler that has it.
    weights : str, optional
        ``"int8"`` or ``"int4"`` stores large constant weights of matrix products in groups that share a scale; what is
        computed stays float32. An option of each compiler that has it; it needs ``prepare``.
    activations : str, optional
        In what the sources of products with weights of 8 or 4 bits in groups are multiplied: ``"float32"``, or
        ``"int8"``, which rounds each group of a row to 8 bits by a scale of its own, and is faster. By default what the
        model asks for (``accuracy_level`` of ``MatMulNBits`` and ``QMoE``; 4 is ``"int8"``), else float32. An option of
        each compiler that has it; it needs ``prepare``.
    int8 : str
        How a quantised model sums its products on a CPU without VNNI: ``"exact"``, or ``"saturating"``, which is
        faster, and wrong where two neighbouring products exceed 16 bits. An option of each compiler that has it.
    target : str, dict or Target
        TVM's target for the calls that stay with TVM, which run on the CPU.
    policy : RegionPolicy, optional
        Decides which regions are worth a call; by default each namespace's own policy.
    exclude, force : sequence of str
        Calls that stay with TVM, and calls that are offloaded whatever they are worth, in addition to the policy, and
        named as in `RegionPolicy`.
    place : mapping of str to str, optional
        Call → compiler, or ``"tvm"``, in place of the order of priority: ``{"lv1": "acme", "acme.relu": "tvm"}``; or
        what `tune` has returned. A call is named by the variable that holds its result, its operator or a pattern, as
        in `RegionPolicy`. The variable's own name decides, else the first entry that matches; it overrules the
        namespaces' own policies.
    database : path-like, optional
        File that `tune` has written: its placement for this model is used; for another model the one that is best by
        the times of equal regions. Nothing is measured.
    options : mapping, optional
        Namespace → option → value, for target hooks and codegens: ``{"my_npu": {"cores": 4}}``.
    threads : int, optional
        Threads of each call by a `Runner` of the result. A file that is exported does not keep the number:
        ``load(path, threads=...)``.
    cache_dir : path-like, optional
        Folder of compiled models. If it has one of this model, these arguments, these versions of the software and this
        CPU's instruction set, that one is loaded instead; otherwise the result is stored there.
    strict : bool
        Raise an error if a call fails, instead of leaving it to the next compiler or TVM.
    prepare : bool
        Bring the module into canonical forms first, as `partition` does.
    output : str
        What regions become: ``"module"``, which our native library runs, or ``"source"``, C that calls the vendor's
        library and is compiled into what ``export_library`` writes; short for that option of each compiler that has
        it. A region that cannot be said in source, such as one of symbolic shapes, becomes a module, with a warning;
        ``strict`` raises instead.

    fallback : bool or str
        Keep a form of each region of vendors' compilers that TVM computes, from the same weights. When a device fails,
        or is not there, a `Runner` warns and goes on with it: for good with ``True``, for that call with ``"once"``.
        Compiling takes longer, and the file has more code.

    Returns
    -------
    tvm.runtime.Executable
        Runs in ``relax.VirtualMachine`` or `Runner`, and is saved by ``export_library``.

    Raises
    ------
    InputError, UnsupportedError
        If ``compiler`` names no registered namespace, an argument has another type than documented,
        the model cannot be imported, an option, the target or the database is wrong, or ``output`` is not possible;
        the second also with ``strict``, listing every call that failed.
    NativeLibraryError
        If source is asked for and there is no C++ compiler, or a library's headers are missing.
    """
    policy_and_names = {"policy": policy, "exclude": exclude, "force": force}
    settings: dict[str, Any] = {"strict": strict, "prepare": prepare, "fallback": fallback}
    others = {"shapes": shapes, "threads": threads, "cache_dir": cache_dir, "output": output, "target": target}
    check_arguments(place=place, database=database, **policy_and_names, **settings, **others)
    chosen = {"precision": precision, "weights": weights, "activations": activations, "int8": int8, "output": output}
    options = with_precision(compiler, options, chosen)
    settings |= {"policy": with_names(policy, exclude, force), "placement": place}
    target = known_target(target, "compile")
    for name in () if prepare else ("weights", "activations"):
        if chosen[name] is not None:
            raise InputError(f"{name} is {chosen[name]!r} and prepare is False; it is applied after preparing")
    if not isinstance(model, (str, PathLike)) and not hasattr(model, "SerializeToString"):
        model, shapes = to_relax(model, shapes=shapes), None

    def build() -> ByocExecutable:
        own = OverwritableWeights() if prepare and database is None else None  # which prepares the module, too
        name = Path(model).name if isinstance(model, (str, PathLike)) else "a model"
        with progress(f"Compiling {name} …", at_prompt=True):
            mod = with_options(imported(model, shapes, own=own), options)
            return _built(mod, own, compiler, target=target, database=database, **settings)

    if cache_dir is None:
        executable = build()
    else:
        made_from = {"options": options, "shapes": shapes, "target": str(target), "database": database}
        key = key_of(model, compiler, {**settings, **made_from})
        executable = ModelCache(cache_dir).get(key, build)
    executable.threads = threads
    return executable


def _built(
    mod: tvm.IRModule,
    own: OverwritableWeights | None,
    compiler: str | Sequence[str] | None,
    *,
    target: str | tvm.target.Target,
    database: str | PathLike[str] | None,
    placement: Mapping[str, str] | None,
    strict: bool,
    fallback: bool | str,
    **settings: Any,
) -> ByocExecutable:
    builds = source_builds(source_namespaces(mod))
    for build in builds:
        build.check()
    if database is not None:
        if compiler is None or placement:
            other = "place" if placement else "compiler=None"
            raise InputError(f"database= chooses the placement among named compilers; it cannot be used with {other}")
        placement = placement_for(mod, compiler, database)
    mod = _partitioned(mod, compiler, placement, strict=strict, own=own, **settings)
    if fallback:
        mod = with_host_form(mod, fallback)
    try:
        with stage("build"):
            times = known_times(mod, choices_of(placement))
            pipeline = relax.get_pipeline(PIPELINE, strict=strict, host_code=bool(builds), times=times)
            if in_c := str(tvm.target.Target(target).kind.name) == "c":
                pipeline = tvm.transform.Sequential([pipeline, WrapIntegers], name=PIPELINE)
            ex = tvm.compile(mod, target=target, relax_pipeline=pipeline)
            if not isinstance(ex, relax.VMExecutable):
                raise InputError("the module has no Relax function; expected one to call, such as `main`")
            if in_c:
                complete_host_c(ex.mod)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, ByocError):
            raise
        raise UnsupportedError(f"TVM cannot compile what stays with it: {_cause(error)}{_advice(mod)}") from error
    return SourceExecutable(ex.mod, builds) if builds else ByocExecutable(ex.mod, target)


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split("\n\n")[0].split())
    _, cannot_emit, call = text.partition("Offending call: ")
    if cannot_emit and "CodeGenVM cannot emit" in text:  # it was left alone by a pass that needs all shapes
        return f"the sizes of an operand or of the result of {call} cannot be said before the call"
    return text


def _advice(mod: tvm.IRModule) -> str:
    """Advice to fix open dims, if the model has any: sizes that TVM cannot compare are a frequent cause."""
    options = shape_options(inputs_of(mod["main"])) if "main" in mod else ""
    return f". Open dims may be the cause; fix them, with sizes of your own: {options}" if options else ""
