"""Forms that a vendor wants before and while its calls are annotated, without which a build goes on: its own preparing
passes, and its calls in its layout, by TVM's ConvertLayout.

    conv2d (NCHW)                 permute_dims
    quantize            ──>       conv2d (NHWC)
    dequantize                    quantize
    conv2d (NCHW)                 dequantize
                                  conv2d (NHWC)
                                  permute_dims

First all calls that the namespace may take are converted, to ask it which of them it takes; then these alone are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import slayout

from ..core.compilation import Fact
from ..core.errors import NativeLibraryError, VendorError
from ..core.tvm_fast import is_a
from ..core.verdict import describe, run_pass
from ..ir.relax_utils import RESHAPES, inputs_of, is_op_call, op_calls, outputs_of
from ..ir.tvm_compat import is_constant
from ..ir.walker import without_hidden
from ..prepare.constants import FOLD_TRANSPOSED
from ..prepare.identities import axes_of
from ..prepare.rewrite import Rules, Scope, rewrite_pass
from ..vendors import Namespace
from ..vendors.quantised_groups import CONVERSIONS
from .trial import may_take

_CONVOLUTIONS = ("relax.nn.conv{}d", "relax.nn.conv{}d_transpose")
_WINDOWS = ("relax.nn.max_pool{}d", "relax.nn.avg_pool{}d", "relax.nn.adaptive_avg_pool{}d", "relax.image.resize{}d")
#: elementwise operators for which TVM has no rule
_ELEMENTWISE = ("relax.clip", "relax.nn.leakyrelu", "relax.quantize", "relax.dequantize")
#: the axes of an array, in order
_LETTERS = "ABCDE"
_RULE, _LEVEL = "FRelaxInferLayout", 11  # TVM's own have 10

#: function → positions of its calls among those that are seen
Places = Mapping[str, Collection[int]]


class Convertible:
    """The calls of ``ops`` that may get the layouts of a namespace, of pictures and of weights.

    Calls in ``settled``, the layouts of namespaces before this one, stay as they are.
    """

    def __init__(self, ops: Collection[str], layouts: tuple[str, str], settled: Collection[str]) -> None:
        self._ops = {op for op in ops if op != "relax.permute_dims"}
        self._settled = set(settled) - layouts_of_pictures(layouts[0])

    def __contains__(self, call: Any) -> bool:
        return call.op.name in self._ops and str(_layout_of(call)) not in self._settled

    def variables(self, func: relax.Function) -> list[Any]:
        return [var for var, call in op_calls(func) if call in self]


def _layout_of(call: Any) -> Any:
    return getattr(call.attrs, "data_layout", getattr(call.attrs, "layout", ""))


def layouts_of_pictures(layout: str) -> set[str]:
    """That of pictures of one, two and three dimensions."""
    return {layout.replace("H", dims) for dims in ("", "H", "DH")}


def laid_out(
    mod: tvm.IRModule,
    functions: Iterable[Any],
    layouts: tuple[str, str],
    calls: Convertible,
    taken: Callable[[tvm.IRModule], Places],
) -> tvm.IRModule:
    """The module, of dataflow blocks, in which those calls of some functions that the namespace takes have a layout.

    ``taken`` says which these are of a module in which all of ``calls`` have got it, by their places among them.
    """
    _teach()
    desired = _desired(*layouts)
    functions = list(functions)
    if not any(call in calls and call.op.name in desired for gv in functions for _, call in op_calls(mod[gv])):
        return mod
    convert = tvm.transform.Sequential([relax.transform.ConvertLayout(desired), rewrite_pass("Weights", _RULES)])
    wanted = taken(without_hidden(mod, functions, lambda _, call: call in calls, convert))
    counts: dict[Any, int] = {}

    def sees(gv: Any, call: Any) -> bool:
        if call not in calls:
            return False
        counts[gv] = counts.get(gv, -1) + 1
        # One of several readers of a conversion may have it in its group.
        return counts[gv] in wanted.get(gv.name_hint, ()) or call.op.name in CONVERSIONS

    return without_hidden(mod, functions, sees, convert)


@cache
def _desired(layout: str, weights: str) -> dict[str, list[str]]:
    """Operator → its layouts, for one, two and three dimensions of pictures."""
    found = {}
    for rank, dims in enumerate(("", "H", "DH"), 1):
        of_data, of_weights = layout.replace("H", dims), weights.replace("H", dims)
        found.update({op.format(rank): [of_data, of_weights] for op in _CONVOLUTIONS})
        found.update({op.format(rank): [of_data] for op in _WINDOWS})
    known = tvm.ir.Op.list_op_names()
    return {op: texts for op, texts in found.items() if op in known and tvm.ir.Op.get(op).get_attr(_RULE) is not None}


@cache
def _teach() -> None:
    """Tell TVM the layouts of operators for which it has no rule, or one that follows others only."""
    known = tvm.ir.Op.list_op_names()
    for op in _ELEMENTWISE:
        tvm.ir.register_op_attr(op, _RULE, _as_argument, _LEVEL)
    for op in (name.format(rank) for name in _WINDOWS for rank in (1, 2, 3)):
        if op in known and (rule := tvm.ir.Op.get(op).get_attr(_RULE)) is not None:
            tvm.ir.register_op_attr(op, _RULE, partial(_as_desired, rule), _LEVEL)


def _as_argument(call: Any, _desired: Any, layouts: Any) -> Any:
    """The layout of the argument, as TVM's rule for relu says it; an axis moves along."""
    made = tvm.ir.Op.get("relax.nn.relu").get_attr(_RULE)(call, {}, layouts)
    letters, axis = _letters_of(made.output_layouts[0]), getattr(call.attrs, "axis", None)
    if axis is None or not letters:
        return made
    moved = letters.index(_LETTERS[int(axis) % len(letters)])
    parts = {name: getattr(made, name) for name in ("input_layouts", "output_layouts", "new_args")}
    attrs = tvm.ir.make_node("relax.attrs.QuantizeAttrs", out_dtype=call.attrs.out_dtype, axis=moved)
    return tvm.ir.make_node("relax.transform.InferLayoutOutput", new_attrs=attrs, **parts)


def _letters_of(decision: Any) -> str:
    """The axes of a layout, such as ``ACDB``; "" where their number is unknown."""
    text = str(decision.layout)
    return "" if decision.is_unknown_dim else text[text.index("(") + 1 : -1]


def _as_desired(rule: Any, call: Any, desired: Any, layouts: Any) -> Any:
    wanted, now, data = desired.get(call.op.name), str(call.attrs.layout), call.args[0]
    if wanted is None or not is_a(data, relax.Var) or sorted(now) != sorted(str(wanted[0])):
        return rule(call, {}, layouts)
    letters = "".join(_LETTERS[now.index(axis)] for axis in str(wanted[0]))
    made = tvm.ir.make_node("relax.transform.LayoutDecision", layout=slayout(letters), is_unknown_dim=False)
    return rule(call, {}, {**dict(layouts.items()), data: made})


def _of_stored(scope: Scope, call: Any) -> Any:
    """``permute_dims`` behind a dequantize, where it would part it from its group: the integers are permuted."""
    data = scope.call(call.args[0], "relax.dequantize")
    if data is None or call.attrs.axes is None or scope.rank(data.args[1]) > 1:
        return None
    axes = [int(axis) for axis in call.attrs.axes]
    if is_constant(data.args[0]):
        stored = np.ascontiguousarray(scope.const(data.args[0]).transpose(axes))
        integers = scope.constant(stored, scope.dtype(data.args[0]))
    else:
        integers = scope.emit(relax.op.permute_dims(data.args[0], axes))
    axis = axes.index(int(data.attrs.axis) % len(axes)) if axes else 0
    return relax.op.dequantize(integers, *data.args[1:], axis=axis, out_dtype=data.attrs.out_dtype)


def _view_of_permuted(scope: Scope, call: Any) -> Any:
    """``reshape(permute_dims(x))`` that moves only axes of one element; a dequantize between them stays."""
    dims, stored = scope.dims(call), call.args[0]
    if (dequantize := _one_scale(scope, stored, "relax.dequantize")) is not None:
        stored = dequantize.args[0]
    permute = scope.call(stored, "relax.permute_dims")
    if dims is None or permute is None or not _keeps_order(scope, permute):
        return None
    data = permute.args[0]
    if dequantize is not None:
        data = scope.emit(scope.with_args(dequantize, data, *dequantize.args[1:]))
    return relax.op.reshape(data, dims)


def _permuted_view(scope: Scope, call: Any) -> Any:
    """``permute_dims(reshape(x))`` that moves only axes of one element; a quantize between them stays."""
    dims, real = scope.dims(call), call.args[0]
    if (quantize := _one_scale(scope, real, "relax.quantize")) is not None:
        real = quantize.args[0]
    view = scope.call(real, *RESHAPES)
    inside = [call.args[0], real]
    if dims is None or view is None or not _keeps_order(scope, call) or not scope.only_inside(inside, call):
        return None
    made = relax.op.reshape(view.args[0], dims)
    return made if quantize is None else scope.with_args(quantize, scope.emit(made, real), *quantize.args[1:])


def _one_scale(scope: Scope, expr: Any, op: str) -> Any:
    """A conversion of all elements alike, whose result has the axis that it names wherever axes are moved."""
    call = scope.call(expr, op)
    return call if call is not None and all(scope.rank(arg) == 0 for arg in call.args[1:]) else None


def _keeps_order(scope: Scope, permute: Any) -> bool:
    dims = scope.dims(permute.args[0])
    if dims is None:
        return False
    moved = [axis for axis in axes_of(permute, len(dims)) if dims[axis] != 1]
    return moved == sorted(moved)


_RULES: Rules = {
    "relax.permute_dims": [_of_stored, *FOLD_TRANSPOSED["relax.permute_dims"], _permuted_view],
    **{op: [_view_of_permuted] for op in RESHAPES},
}


class VendorForms:
    """The forms in which namespaces want to see a model, one after the other; ``taken`` is `places_taken`."""

    def __init__(self, canonical: tvm.transform.Pass, taken: Callable[..., Any]) -> None:
        self._canonical = canonical
        self._taken = taken
        self._settled: set[str] = set()  # layouts of those so far

    def of(self, ns: Namespace, mod: tvm.IRModule, functions: Sequence[str]) -> tuple[tvm.IRModule, list[Fact]]:
        """The module behind the preparing passes of a namespace, and in its layout; they see what it may take.

        One that fails is left out. The facts say so, and why the namespace has refused pictures in its layout.
        """
        self._facts: list[Fact] = []
        for step in [*(partial(self._prepared, ns, p) for p in ns.prepare), partial(self._in_layout, ns)]:
            try:
                mod = step(mod, functions)
            except NativeLibraryError:
                raise
            except Exception as error:
                reason = f"{describe(error)}; the model goes on without this pass"
                self._facts.append(Fact("the module", "all calls", "prepare", ns.name, "prepare", reason))
        return mod, self._facts

    def _prepared(self, ns: Namespace, make_pass: Any, mod: tvm.IRModule, functions: Sequence[str]) -> tvm.IRModule:
        ops = may_take(ns)

        def run(seen: tvm.IRModule) -> tvm.IRModule:
            what = f"prepare= of {ns.name!r}"
            made = run_pass(make_pass, seen, what)
            left = {gv.name_hint: func for gv, func in made.functions.items()}
            for name in functions:
                if name not in left or _signature(left[name]) != _signature(seen[name]):
                    raise VendorError(f"{what} left out {name!r}, or changed its parameters or results; keep them")
                if free := relax.analysis.free_vars(left[name]):
                    raise VendorError(f"{what} reads {free[0].name!r} in {name!r}, which nothing there defines")
            return made

        return without_hidden(mod, map(mod.get_global_var, functions), lambda _, call: call.op.name in ops, run)

    def _in_layout(self, ns: Namespace, mod: tvm.IRModule, functions: Sequence[str]) -> tvm.IRModule:
        if ns.layouts is None:
            return mod
        calls = Convertible(may_take(ns), ns.layouts, self._settled)
        self._settled.update(layouts_of_pictures(ns.layouts[0]))
        hosts = map(mod.get_global_var, functions)
        before = {name: calls.variables(mod[name]) for name in functions}

        def taken(form: tvm.IRModule) -> Places:
            places, asked, facts = self._taken(ns, form, functions, calls)
            self._facts += _of_pictures(ns, facts, before, asked, calls, places)
            return places

        made = laid_out(mod, hosts, ns.layouts, calls, taken)
        return mod if made is mod else self._canonical(made)  # folds permutations of constants, and two that cancel


def _signature(func: relax.Function) -> list[list[tuple[str, int]]]:
    return [[(i.dtype, len(i.shape or ())) for i in side] for side in (inputs_of(func), outputs_of(func))]


def is_in_other_layout(ns: Namespace, call: Any) -> bool:
    """Whether a picture has another layout than a namespace wants, which has been asked about the call in its own."""
    if ns.layouts is None or not is_op_call(call) or call.op.name not in _desired(*ns.layouts):
        return False
    return str(_layout_of(call)) not in layouts_of_pictures(ns.layouts[0])


def _of_pictures(
    ns: Namespace,
    facts: Iterable[Fact],
    before: Mapping[str, Sequence[Any]],
    asked: Mapping[str, relax.Function],
    calls: Convertible,
    places: Places,
) -> Iterator[Fact]:
    """Why a namespace has refused calls in its layout, which nobody asks about again, by their names in the model."""
    names, pictures = dict[tuple[str, str], str](), set[tuple[str, str]]()
    for function, func in asked.items():
        found = [(var, call) for var, call in op_calls(func) if call in calls]
        for place, ((var, call), old) in enumerate(zip(found, before[function])):
            names[function, var.name] = old.name
            assert ns.layouts is not None
            if place not in places.get(function, ()) and call.op.name in _desired(*ns.layouts):
                pictures.add((function, old.name))
    for fact in facts:
        name, *around = (names.get((fact.function, n), n) for n in (fact.name, *fact.calls))
        if not pictures.isdisjoint((fact.function, n) for n in (name, *around)):
            yield replace(fact, name=name, calls=tuple(around))
