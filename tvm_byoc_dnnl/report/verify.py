"""verify: every region both ways on the same inputs, and where they differ, the call at which it begins.

model ──partition──> run, the arguments of each region recorded
                          │
         region ──its codegen──> result ┐
                ──stock TVM────> result ┴─ equal, as `comparison` says?
                                             │ no: bisect over the region's first k calls
                                             └──> the first call whose result is wrong
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..api import DEFAULT_COMPILER, compile, partition
from ..core.errors import ArgumentTypeError, InputError, one_of, short
from ..frontends import to_relax
from ..graph.cost import RegionPolicy, with_names
from ..ir.functions import flatten_region
from ..ir.relax_utils import bindings_of, caller_of, codegen_of, composite_of, global_var
from ..partitioning.merge import longest
from ..pipeline import PIPELINE
from ..pipeline.regions import settle_regions
from ..runtime.comparison import TOLERANCES, as_tolerances, differences, gap, nudged, sensitivity
from ..runtime.runner import Runner
from ..vendors.hook_lowering import with_known_shapes
from ..vendors.namespaces import OPTIONS_ATTR, PRECISIONS, check_arguments, with_precision
from .measured import (
    AGAINST,
    ONNXRUNTIME,
    TVM,
    OutputGap,
    beside_onnxruntime,
    is_compiled,
    is_onnx,
    runner_of,
    tensors_of,
)
from .text import Shown, count

Tolerance = float | Mapping[str, float] | None


@dataclass
class RegionGap:
    """A region's numeric gap.

    Attributes
    ----------
    region, compiler : str
        Name and namespace.
    calls : int
        Number of composite calls inside.
    gap : float
        Largest difference over the outputs, relative to the reference's largest absolute value; infinite where one
        side has a NaN or an infinity that the other has not, or another dtype or shape.
    difference : str
        The error with its position; empty where the region is right.
    culprit : str or None
        Name of the first call whose result is wrong.
    pattern : str or None
        The composite that it is: ``<namespace>.<operator or pattern>``.
    alone : bool or None
        Whether the culprit is wrong by itself too; otherwise it is wrong only together with the calls before it.
    """

    region: str
    compiler: str
    calls: int
    gap: float
    difference: str = ""
    culprit: str | None = None
    pattern: str | None = None
    alone: bool | None = None


@dataclass(repr=False)
class Verification(Shown):
    """The result of `verify`.

    Attributes
    ----------
    tolerance : float, mapping of dtype to float, or None
        The one of the caller; None for those of `comparison`.
    regions : list of RegionGap
        In the order in which they are called; with ``against="onnxruntime"`` only where an output is wrong.
    outputs : list of OutputGap
        The model's outputs beside those of ONNX Runtime, where it was asked.
    from_float32 : float or None
        How far the model's outputs are from those of the default settings, as a gap, where ``precision``,
        ``weights``, ``activations`` or ``int8`` was given: the price of these, for which `ok` does not ask.
    """

    tolerance: Tolerance
    regions: list[RegionGap] = field(default_factory=list)
    outputs: list[OutputGap] = field(default_factory=list)
    from_float32: float | None = None

    @property
    def ok(self) -> bool:
        """Whether every region, and every output, is right."""
        return not any([*(r.difference for r in self.regions), *(o.difference for o in self.outputs)])

    @property
    def policy(self) -> RegionPolicy:
        """A policy that leaves the culprits with TVM: ``byoc.compile(model, policy=report.policy)``."""
        return RegionPolicy(exclude=[r.culprit for r in self.regions if r.culprit], on_top=True)

    def _said(self) -> str:
        wrong = [r.region for r in self.regions if r.difference]
        wrong += [o.output for o in self.outputs if o.difference]
        what = [count(len(part), name) for name, part in (("output", self.outputs), ("region", self.regions)) if part]
        found = f"wrong: {', '.join(wrong)}" if wrong else "all right"
        return f"{' and '.join(what) or count(0, 'region')}, {found}"

    def to_dict(self) -> dict[str, Any]:
        """The data."""
        regions = [{**asdict(r), "gap": r.gap if np.isfinite(r.gap) else "inf"} for r in self.regions]
        stored = {"ok": self.ok, "tolerance": self.tolerance, "regions": regions}
        if self.outputs:
            stored["outputs"] = [{**asdict(o), "gap": o.gap if np.isfinite(o.gap) else "inf"} for o in self.outputs]
        return stored if self.from_float32 is None else {**stored, "from_float32": self.from_float32}

    def to_text(self) -> str:
        """A line per output or region, and what to do."""
        lines = []
        for o in self.outputs:
            lines.append(f"{'WRONG' if o.difference else 'ok':<6}{o.output:<24} gap {o.gap:.2e} to ONNX Runtime")
            if o.difference:
                lines.append(f"      {o.difference}")
        for r in self.regions:
            lines.append(f"{'WRONG' if r.difference else 'ok':<6}{r.region:<12}{r.calls:>5} calls   gap {r.gap:.2e}")
            if r.difference:
                lines.append(f"      {r.difference}")
            if r.culprit:
                how = "alone" if r.alone else "together with the calls before it"
                lines.append(f"      first wrong call: {r.culprit} ({r.pattern}), wrong {how}")
        if self.regions and not self.ok and not any(r.difference for r in self.regions):
            lines.append("each region is as TVM computes it: the import, TVM, or rounding in many layers differs")
        if not self.regions and not self.outputs:
            lines.append("no region: nothing is offloaded")
        if self.from_float32 is not None:
            lines.append(f"outputs of the model differ from those in float32 by {self.from_float32:.2e}")
        if culprits := list(self.policy.exclude):
            lines.append(f"to leave them with TVM: RegionPolicy(exclude={culprits!r}, on_top=True)")
            lines.append("or on the command line: " + " ".join(f"--exclude {name}" for name in culprits))
        return "\n".join(lines)


def verify(
    model: Any,
    inputs: Any = None,
    *,
    compiler: str | Sequence[str] | None = DEFAULT_COMPILER,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    precision: str = "float32",
    weights: str | None = None,
    activations: str | None = None,
    int8: str = "exact",
    tolerance: float | Mapping[str, Any] | None = None,
    policy: RegionPolicy | None = None,
    exclude: Sequence[str] = (),
    force: Sequence[str] = (),
    place: Mapping[str, str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    against: Any = TVM,
) -> Verification:
    """Run every region by its compiler and by TVM alone on the same inputs, and find the errors.

    Or run the whole model and ONNX Runtime, which also shows what the import or TVM has wrong.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, path or torch.export.ExportedProgram
        The model, partitioned already or not; or what `compile` or `load` returned, or the path of a library, with
        ``against``.
    inputs : mapping or sequence, optional
        Inputs by name or in order; random ones where the model's shapes are all fixed.
    compiler, shapes, precision, weights, activations, int8, policy, exclude, force, place, options
        As in `compile`.
    against : str, path or onnx.ModelProto
        ``"tvm"``, or ``"onnxruntime"``, for an ONNX model: its outputs are compared with those of ONNX Runtime, which
        runs the graph as it is written; the regions only where an output is wrong. For what is compiled, the ONNX
        model whose outputs ONNX Runtime computes.
    tolerance : float or mapping, optional
        Largest gap that is accepted, or dtype → gap: ``{"int8": "1 step", "float32": 1e-4}``. By default that of the
        result's dtype in `comparison.TOLERANCES`, and what
        rounding alone changes: four times as far as TVM's result moves when the inputs do by one place, or by the steps
        that are allowed for integers.

    Returns
    -------
    Verification

    Raises
    ------
    InputError, UnsupportedError
        As of `compile`; if ``against`` is unknown, or ONNX Runtime is not installed or refuses the model.
    """
    check_arguments(shapes=shapes, policy=policy, exclude=exclude, force=force, place=place)
    if is_compiled(model):
        return _of_compiled(model, inputs, against, tolerance)
    one_of("against", against, AGAINST)
    if against == ONNXRUNTIME and not is_onnx(model):
        raise InputError(f"against is {against!r}, and the model is a {type(model).__name__}; expected one of ONNX")
    policy, tolerance = with_names(policy, exclude, force), _by_dtype(tolerance)
    precisions = {"precision": precision, "weights": weights, "activations": activations, "int8": int8}
    chosen = with_precision(compiler, options, precisions)
    mod = imported = to_relax(model, shapes=shapes)
    if not any(codegen_of(f) for f in mod.functions.values()):
        mod = partition(mod, compiler, policy=policy, place=place, options=chosen)
    mod = settle_regions(mod)
    built_with = mod.attrs[OPTIONS_ATTR] if mod.attrs and OPTIONS_ATTR in mod.attrs else {}
    regions = {gv.name_hint: f.with_attr(OPTIONS_ATTR, built_with) for gv, f in mod.functions.items() if codegen_of(f)}
    report = Verification(tolerance)
    runner = Runner(tvm.compile(mod, "llvm", relax_pipeline=PIPELINE))
    tensors = tensors_of(runner, inputs)
    arguments, outputs = _arguments(runner, regions, tensors)
    if against == ONNXRUNTIME:
        allowed = _tolerance(regions.values(), chosen) if tolerance is None else tolerance
        report.outputs = _output_gaps(runner, tensors, outputs, model, allowed)
        arguments = {} if report.ok else arguments
    for name, of_region in arguments.items():
        allowed = _tolerance([regions[name]], chosen) if tolerance is None else tolerance
        report.regions.append(_check(name, regions[name], of_region, allowed))
    if chosen != (options or {}):
        plain = Runner(compile(imported, compiler, policy=policy, options=options))
        report.from_float32 = gap(outputs, arrays_in(plain.run_tvm(*tensors)))
    return report


def _of_compiled(model: Any, inputs: Any, against: Any, tolerance: Any) -> Verification:
    """The outputs of what has no regions to look into any more, beside those of the model that it was built from."""
    if not is_onnx(against) or against in AGAINST:
        raise InputError(
            f"the model is compiled already, and against is {short(against)}; give the ONNX model that it was built "
            "from, against='model.onnx', or verify that model itself"
        )
    runner, tolerance = runner_of(model), _by_dtype(tolerance)
    tensors = tensors_of(runner, inputs)
    report = Verification(tolerance)
    report.outputs = _output_gaps(runner, tensors, arrays_in(runner.run_tvm(*tensors)), against, tolerance)
    return report


def _by_dtype(tolerance: Any) -> Any:
    if isinstance(tolerance, Mapping):
        return {**TOLERANCES, **as_tolerances(tolerance)}
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if tolerance is None or (is_number and 0 <= tolerance < np.inf):
        return tolerance
    kind = InputError if is_number else ArgumentTypeError
    raise kind(f"tolerance is {short(tolerance)}; expected a number from 0 on, or a mapping of dtype to number")


def _output_gaps(
    runner: Runner, tensors: Sequence[Any], outputs: Sequence[np.ndarray], model: Any, tolerance: Tolerance
) -> list[OutputGap]:
    given = dict(zip(runner.input_names, arrays_in(tensors), strict=True))
    got = dict(zip((o.name for o in runner.outputs), outputs, strict=True))
    return beside_onnxruntime(model, given, got, tolerance)


def _tolerance(regions: Iterable[relax.Function], options: Mapping[str, Any]) -> float | None:
    """Rounding by 2^-9 between primitives adds up with the root of their number; four times as much is allowed."""
    usual = PRECISIONS[0]
    rounded = [r for r in regions if options.get(codegen_of(r), {}).get("precision", usual) != usual]
    results = sum(isinstance(value, relax.Call) for region in rounded for _, value in bindings_of(region))
    return float(2**-7 * np.sqrt(results)) if rounded else None


def _arguments(
    runner: Runner, regions: Mapping[str, Any], tensors: Sequence[Any]
) -> tuple[dict[str, list[Any]], list[np.ndarray]]:
    """The arguments of the first call of each region, in order of the calls; and the model's outputs."""
    recorded: dict[str, list[Any]] = {}

    def record(_func: Any, symbol: str, before: bool, _result: Any, *args: Any) -> int:
        name = str(symbol)
        if before and name in regions and name not in recorded:
            count = len(regions[name].params)
            # copies: the VM reuses the memory of values that are not read again
            recorded[name] = [a.numpy().copy() if isinstance(a, tvm.runtime.Tensor) else a for a in args[:count]]
        return 0

    vm = relax.VirtualMachine(runner.module, tvm.cpu())
    vm.set_instrument(record)
    return recorded, arrays_in(vm[runner.entry](*tensors))


def _check(name: str, region: relax.Function, arguments: Sequence[Any], tolerance: Tolerance) -> RegionGap:
    calls = [var for var, value in bindings_of(region) if isinstance(value, relax.Call)]
    host = _compiled(_host_module(region))
    right = _Right(
        arrays_in(host(arguments)), [arrays_in(host(near)) for near in _nearby(arguments, tolerance)], tolerance
    )
    got = _offloaded(region, arguments)
    result = RegionGap(name, codegen_of(region), len(calls), gap(got, right.results), right.difference(got))
    if not result.difference:
        return result
    expected = _host_values(region, arguments, tolerance)
    first = _first_wrong(region, calls, arguments, expected)
    if first is not None:
        values = dict(bindings_of(region))
        culprit = calls[first]
        result.culprit, result.pattern = culprit.name, composite_of(values[values[culprit].op])
        result.alone = _is_wrong_alone(region, culprit, expected)
    return result


@dataclass
class _Right:
    """The values that TVM alone computes for a variable, and for inputs that are one place off."""

    results: list[np.ndarray]
    nearby: list[list[np.ndarray]]
    tolerance: Tolerance

    def difference(self, got: Sequence[np.ndarray]) -> str:
        return differences(got, self.results, self.tolerance, slack=sensitivity(self.results, self.nearby))


def _nearby(arguments: Sequence[Any], tolerance: Tolerance) -> list[list[Any]]:
    """None where one number is the tolerance."""
    if isinstance(tolerance, (int, float)):
        return []
    tensors = [a for a in arguments if isinstance(a, np.ndarray)]
    turns = [iter(turn) for turn in nudged(tensors, tolerance)]
    return [[next(turn) if isinstance(a, np.ndarray) else a for a in arguments] for turn in turns]


def _host_values(region: relax.Function, arguments: Sequence[Any], tolerance: Tolerance) -> dict[Any, _Right]:
    """The values that TVM alone computes for every variable of the region, parameters included; tuples flattened."""
    bound = [var for var, value in bindings_of(region) if not isinstance(value, relax.Function)]
    body = relax.SeqExpr(region.body.blocks, relax.Tuple(bound))
    every = relax.Function(region.params, body, relax.TupleType([var.ty for var in bound]), attrs=region.attrs)
    run = _compiled(_host_module(relax.utils.copy_with_new_vars(every)))
    turns = [(given, run(given)) for given in (arguments, *_nearby(arguments, tolerance))]
    known = {}
    for i, var in enumerate(region.params):
        values = [[given[i]] for given, _ in turns]
        known[var] = _Right(values[0], values[1:], tolerance)
    for i, var in enumerate(bound):
        values = [arrays_in(results[i]) for _, results in turns]
        known[var] = _Right(values[0], values[1:], tolerance)
    return known


def _first_wrong(
    region: Any, calls: Sequence[Any], arguments: Sequence[Any], expected: Mapping[Any, _Right]
) -> int | None:
    """Index of the first call whose result is wrong, by bisection: calls that read a wrong result are wrong, too."""

    def works(count: int) -> bool:
        last = calls[count - 1]
        return not expected[last].difference(_offloaded(_until(region, last), arguments))

    right = longest(works, len(calls), 0)
    return right if right < len(calls) else None


def _until(region: relax.Function, last: Any) -> relax.Function:
    bindings = []
    for block in region.body.blocks:
        for binding in block.bindings:
            bindings.append(binding)
            if binding.var.same_as(last):
                body = relax.SeqExpr([relax.BindingBlock(bindings)], last)
                func = relax.Function(region.params, body, last.ty, attrs=region.attrs)
                return relax.utils.copy_with_new_vars(func)
    raise AssertionError(f"{last} is not bound in the region")


def _is_wrong_alone(region: relax.Function, var: Any, expected: Mapping[Any, _Right]) -> bool:
    """Whether one call by itself is wrong, on the arguments that TVM computes for it."""
    values = dict(bindings_of(region))
    call = values[var]
    composite = values[call.op]
    if not all(arg in expected for arg in call.args):
        return False
    given = [value for arg in call.args for value in expected[arg].results]
    local = relax.Var("composite", composite.ty)
    params = [relax.Var(p.name, p.ty) for p in composite.params]
    inner = relax.Var("result", composite.ret_ty)  # by its own symbols
    bindings = [relax.VarBinding(local, composite), relax.VarBinding(inner, relax.Call(local, params))]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], inner)
    func = relax.BlockBuilder().normalize(relax.Function(params, body, inner.ty, attrs=region.attrs))
    return bool(expected[var].difference(_offloaded(relax.utils.copy_with_new_vars(func), given)))


def _host_module(region: relax.Function) -> tvm.IRModule:
    func = with_known_shapes(flatten_region(region)).without_attr("Codegen").with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func})


def _offloaded(region: relax.Function, given: Sequence[Any]) -> list[np.ndarray]:
    name = f"{codegen_of(region)}_0"
    gv = global_var(name, region)
    options = dict(region.attrs[OPTIONS_ATTR]) if OPTIONS_ATTR in region.attrs else {}
    bare = region.without_attr(OPTIONS_ATTR) if OPTIONS_ATTR in region.attrs else region
    functions = {gv: bare.with_attr("global_symbol", name), tvm.ir.GlobalVar("main"): caller_of(gv, region)}
    return arrays_in(_compiled(tvm.IRModule(functions).with_attr(OPTIONS_ATTR, options))(given))


def _compiled(mod: tvm.IRModule) -> Callable[[Sequence[Any]], Any]:
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=PIPELINE), tvm.cpu())
    return lambda given: vm["main"](*(tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in given))


def arrays_in(result: Any) -> list[np.ndarray]:
    """The arrays of what a function of TVM has returned, also of tuples in it."""
    if isinstance(result, tvm.runtime.Tensor):
        return [result.numpy()]
    return [a for r in result for a in arrays_in(r)]
