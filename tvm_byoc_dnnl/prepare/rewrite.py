"""The walk that all preparing rules share: once over a function's bindings, in order.

A rule is ``rule(scope, value) -> Expr | None`` for values of one operator (``"relax.add"``) or node kind
(``"TupleGetItem"``); it returns a replacement, or ``None`` to leave the value alone. Operands are already
rewritten when a rule sees them, and the rules are also tried on the results of rules, so one walk is enough.
Bindings without readers are dropped; use counts stay exact throughout, so a rule can ask whether an
intermediate is needed elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from ..core.compilation import FORM, Fact, OverwritableWeights, with_facts
from ..core.tvm_fast import ByIdentity, is_a, items
from ..ir.relax_utils import (
    constant_numpy,
    equal_dims,
    is_atom,
    is_compound,
    is_host_function,
    is_simple,
    make_constant,
    reads_of,
    shape_dims,
    static_shape,
    with_functions,
)
from ..ir.tvm_compat import (
    constant_tensor,
    dtype_of,
    is_constant,
    make_var,
    tensor_constant,
    with_args,
)
from ..ir.walker import Substitute

Rule = Callable[["Scope", Any], Any]
Rules = Mapping[str, Sequence[Rule]]

_UNIFORM = 1 << 16  # elements: larger constants are not searched for a single value; float32 ones are not folded
_COMMUTATIVE = ("add", "multiply")
_MAX_REWRITES = 64  # of one value: far more than the rules need; an endless loop of two rules stops here


def kind_of(value: Any) -> str:
    """The key by which rules are found."""
    if is_a(value, relax.Call):
        return value.op.name if type(value.op) is tvm.ir.Op else ""
    return type(value).__name__


class Found(dict[str, Any]):
    """The parts of a form by name; ``inside`` has the variables between them, which are no parts of the form itself."""

    inside: tuple[Any, ...] = ()

    def also(self, *inside: Any, **parts: Any) -> Found:
        made = Found({**self, **parts})
        made.inside = (*self.inside, *inside)
        return made


class Scope:
    """The interface of a rule while a function is swept."""

    def __init__(self, module: tvm.IRModule, rules: Rules, own: OverwritableWeights) -> None:
        self.module = module
        self.changed = False
        self._rules = rules
        self._own = own
        self._builder = relax.BlockBuilder(module)
        self._uses: ByIdentity[int] = ByIdentity()  # variable -> number of times that it is read
        self._value: ByIdentity[Any] = ByIdentity()  # variable -> value bound to it, for variables already swept
        self._arrays: ByIdentity[np.ndarray] = ByIdentity()  # of constants that were asked for
        self._weights: ByIdentity[int] = ByIdentity()  # variable -> number of products that it is the weights of
        self._alias: ByIdentity[Any] = ByIdentity()  # variable -> the expression that replaces it now
        self._pinned: set[Any] = set()  # read inside a branch or local function: keeps its name
        self._dead: set[Any] = set()
        self._sizes: dict[Any, Any] = {}  # symbol that a cast defines -> its size, where that is known now
        self._out: list[Any] = []  # bindings of the block under construction
        self._dataflow = False
        self._rewritten: Any = None  # variable whose value the rules look at
        self._misses: dict[Any, tuple[str, str]] = {}  # variable -> form, the reason why it is not one

    # ---- questions ----------------------------------------------------------------------------------

    def value(self, expr: Any) -> Any:
        """The value of ``expr``: follows a variable to the expression that it is bound to."""
        while is_a(expr, relax.Var) and expr in self._value:
            expr = self._value[expr]
        return expr

    def call(self, expr: Any, *ops: str) -> Any:
        """The call that ``expr`` is bound to, when its operator is one of ``ops``, else ``None``."""
        value = self.value(expr)
        return value if kind_of(value) in ops else None

    def const(self, expr: Any) -> Any:
        """The value of a constant as a NumPy array, else ``None``."""
        if not is_constant(expr):
            return None
        if expr not in self._arrays:
            self._arrays[expr] = constant_numpy(expr)
        return self._arrays[expr]

    def scalar(self, expr: Any) -> float | None:
        """The number that a constant holds in every element, else ``None``.

        The constant may still have a shape: a rule that drops it must make sure that the result keeps its own.
        """
        array = self.const(expr)
        if array is None or not 0 < array.size <= _UNIFORM:
            return None
        flat = array.reshape(-1)
        first = flat[0]
        return first.item() if flat.size == 1 or (flat[-1] == first and (flat == first).all()) else None

    @staticmethod
    def shape(expr: Any) -> tuple[int, ...] | None:
        """Static shape of a tensor, else ``None``."""
        return static_shape(ty) if is_a(ty := expr.ty, relax.TensorType) else None

    @staticmethod
    def dims(expr: Any) -> list[Any] | None:
        """Dims of a tensor, numbers or symbols, ``None`` when unknown."""
        return shape_dims(ty) if is_a(ty := expr.ty, relax.TensorType) else None

    @staticmethod
    def dtype(expr: Any) -> str:
        """Dtype of a tensor, ``""`` when unknown."""
        return dtype_of(ty) if is_a(ty := expr.ty, relax.TensorType) else ""

    @staticmethod
    def rank(expr: Any) -> int:
        """Rank of a tensor, -1 when unknown."""
        return int(ty.ndim) if is_a(ty := expr.ty, relax.TensorType) else -1

    @staticmethod
    def same_shape(a: Any, b: Any) -> bool:
        """Whether two tensors surely have one shape, symbols included."""
        first, second = a.ty, b.ty
        if not is_a(first, relax.TensorType) or not is_a(second, relax.TensorType):
            return False
        known, other = static_shape(first), static_shape(second)
        if known is not None and other is not None:
            return known == other
        dims, others = shape_dims(first), shape_dims(second)
        return dims is not None and others is not None and equal_dims(dims, others)

    def uses(self, expr: Any) -> int:
        """The number of times that a variable is read."""
        return self._uses.get(expr, 0)

    def is_weights(self) -> bool:
        """Whether only one call reads the variable being rewritten, and it was the weights of a product from the start.

        For rules that look at values that the function had, not at those that a rule emits.
        """
        var = self._rewritten
        return self.uses(var) == self._weights.get(var, 0) == 1

    def only_inside(self, interior: Iterable[Any], root: Any) -> bool:
        """Whether ``root`` and the values of ``interior`` are the only readers of ``interior``.

        True means that replacing ``root`` makes all of them disappear.
        """
        interior = {v for v in interior if is_a(v, relax.Var)}
        inner: Counter[Any] = Counter()
        for value in [root, *(self._value[v] for v in interior)]:
            inner.update(v for v in reads_of(value) if v in interior)
        return all(self.uses(v) == inner[v] for v in interior)

    def match(self, expr: Any, form: Any, found: Found | None = None) -> Found | None:
        """The parts of ``expr``, if it has this form.

        A form is a name, which stands for one value wherever it is written; a number, for a constant that holds it;
        ``(operator, operands ...)`` without ``relax.`` for a call, and ``("name:operator", ...)`` for one whose result
        has a name; or a list of forms, of which the first counts that ``expr`` has. Terms and factors may change
        places.
        """
        found = Found() if found is None else found
        if isinstance(form, str):
            known = found.get(form)
            return found.also(**{form: expr}) if known is None else found if known.same_as(expr) else None
        if isinstance(form, float):
            return found if self.scalar(expr) == form else None
        if isinstance(form, list):
            return next((m for each in form if (m := self.match(expr, each, found)) is not None), None)
        name, _, op = form[0].rpartition(":")
        call = self.call(expr, f"relax.{op}")
        given = found if call is None or not name else self.match(expr, name, found)
        if call is None or given is None:
            return None
        given = given.also(expr) if is_a(expr, relax.Var) else given
        args = items(call.args)
        for operands in (args, args[::-1]) if op in _COMMUTATIVE else (args,):
            made: Found | None = given
            for operand, part in zip(operands, form[1:]):
                made = None if made is None else self.match(operand, part, made)
            if made is not None:
                return made
        return None

    # ---- answers ------------------------------------------------------------------------------------

    def emit(self, value: Any, like: Any = None) -> Any:
        """Bind ``value`` before the value being rewritten; returns the expression that refers to it.

        It is named as a part of the value being rewritten, or as the variable ``like``, which it replaces.
        """
        value = self._simplify(self._typed(value))
        if is_atom(value):
            return value
        var = self._fresh(value.ty, like)
        self._bind(var, value)
        self._use(reads_of(value))
        return var

    def rebind(self, like: Any, call: Any, *args: Any) -> Any:
        """Bind ``call`` with other arguments of the same types to a variable that replaces the variable ``like``.

        No rule looks at it again, so this is for arguments that make no difference to them.
        """
        new = with_args(call, args, call.ty)
        var = self._fresh(call.ty, like)
        self._bind(var, new)
        self._use(reads_of(new))
        return var

    def constant(self, array: Any, dtype: str | None = None) -> Any:
        """A constant expression."""
        return make_constant(array, dtype)

    def product(self, constant: Any, factors: np.ndarray) -> Any:
        """``constant * factors`` in the shape and dtype of the constant, which the call to rewrite alone may read."""
        source = target = constant_tensor(constant)
        if constant not in self._own:
            target = tvm.runtime.empty(source.shape, str(source.dtype))
            constant = tensor_constant(target)
            self._own[constant] = None
        np.multiply(np.from_dlpack(source), factors, out=np.from_dlpack(target))
        return constant

    def miss(self, form: str, reason: str, at: Any = None) -> Any:
        """Note why ``at`` (by default the value being rewritten) is not ``form``, though it looks like one.

        Returns ``None``, as a rule does that leaves a value alone. The last word on a variable counts; it is dropped
        when the variable goes, or its value is rewritten.
        """
        self._misses[self._rewritten if at is None else at] = (form, reason)
        return None

    def _move_miss(self, old: Any, new: Any) -> None:
        if is_a(old, relax.Var) and old in self._misses:
            self._misses[new] = self._misses.pop(old)

    def misses(self, function: str) -> list[Fact]:
        left = {var: note for var, note in self._misses.items() if var in self._value and var not in self._dead}
        return [Fact(function, var.name, f"prepare.{form}", "", FORM, why) for var, (form, why) in left.items()]

    @staticmethod
    def with_args(call: Any, *args: Any) -> Any:
        """``call`` with other arguments."""
        return with_args(call, args)

    # ---- the sweep ----------------------------------------------------------------------------------

    def function(self, func: relax.Function) -> relax.Function:
        """``func`` rewritten; the same object when no rule applied."""
        if not isinstance(func.body, relax.SeqExpr):
            return func
        given = [(type(block), items(block.bindings)) for block in items(func.body.blocks)]
        self._count(func.body.body)
        for _, bindings in reversed(given):
            for binding in reversed(bindings):
                is_local = type(binding) is relax.VarBinding and type(binding.var) is relax.DataflowVar
                if is_local and is_simple(binding.value) and not self.uses(binding.var):
                    self._dead.add(binding.var)
                else:
                    self._count(binding.value)
        blocks = [(kind, self._block(kind, bindings)) for kind, bindings in given]
        if not self.changed:
            return func
        body = relax.SeqExpr(
            [kind([b for b in bindings if b.var not in self._dead]) for kind, bindings in blocks],
            self._resolve(func.body.body),
        )
        body = self._builder.normalize(body)
        made = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
        own = {symbol for param in func.params for symbol in relax.analysis.tir_vars_in_type(param.ty)}
        sizes = {symbol: size for symbol, size in self._sizes.items() if symbol not in own}
        return Substitute(sizes).function(made) if sizes else made

    def _count(self, value: Any) -> None:
        reads = reads_of(value)
        self._use(reads)
        if kind_of(value) == "relax.matmul" and is_a(weights := value.args[1], relax.Var):
            self._weights[weights] = self._weights.get(weights, 0) + 1
        if not is_simple(value):
            self._pinned.update(reads)

    def _use(self, variables: Iterable[Any]) -> None:
        for var in variables:
            self._uses[var] = self._uses.get(var, 0) + 1

    def _block(self, kind: type, bindings: Sequence[Any]) -> list[Any]:
        self._out = []
        self._dataflow = issubclass(kind, relax.DataflowBlock)
        for binding in bindings:
            var, old = binding.var, binding.value
            if var in self._dead:
                self.changed = True
                continue
            new = self._resolve(old)
            if new is not old:
                new = self._typed(new)
                self.changed = True
            if is_a(binding, relax.MatchCast):
                if is_a(new, relax.ShapeExpr):
                    self._note_sizes(binding.ty.values, new.values)
                self._out.append(relax.MatchCast(var, new, binding.ty))
            elif not is_simple(old) or var in self._pinned:
                self._bind(var, new)
            else:
                self._binding(var, new)
        return self._out

    def _note_sizes(self, symbols: Any, sizes: Any) -> None:
        """Known sizes of symbols that a cast defines: TVM would put them into types alone, and not into arguments."""
        for symbol, size in zip(items(symbols or []), items(sizes)):
            if is_a(symbol, tirx.Var) and is_a(size, tirx.IntImm):
                self._sizes[symbol] = size

    def _binding(self, var: Any, old: Any) -> None:
        self._rewritten = var
        new = self._simplify(old)
        if new is not old:
            self.changed = True
            self._use(reads_of(new))
            for read in reads_of(old):
                self._release(read)
        if is_atom(new) and (is_a(var, relax.DataflowVar) or not is_a(new, relax.DataflowVar)):
            self._stand_for(var, new)
            for read in reads_of(new):
                self._release(read)
            return
        ty, own = new.ty, var.ty
        keeps_type = own.same_as(ty) or tvm_ffi.structural_equal(own, ty)
        if not keeps_type:
            renamed = self._fresh(ty, var)
            self._stand_for(var, renamed)
            self._move_miss(var, renamed)
            var = renamed
        self._move_miss(new, var)  # of an output, which takes the place of the variable that it is bound to
        self._bind(var, new)

    def _simplify(self, value: Any) -> Any:
        for _ in range(_MAX_REWRITES):
            for rule in self._rules.get(kind_of(value), ()):
                new = rule(self, value)
                if new is not None:
                    break
            else:
                return value
            self._misses.pop(self._rewritten, None)
            value = self._typed(new)
        raise RuntimeError(f"the preparing rules do not settle on {value}")

    def _typed(self, value: Any) -> Any:
        return self._builder.normalize(value) if is_compound(value) else value

    def _resolve(self, value: Any) -> Any:
        if is_a(value, relax.Var):
            return self._alias.get(value, value)
        if is_a(value, relax.Call):
            args, changed = self._resolve_all(value.args)
            return self.with_args(value, *args) if changed else value
        if is_a(value, relax.Tuple):
            fields, changed = self._resolve_all(value.fields)
            return relax.Tuple(fields) if changed else value
        if is_a(value, relax.TupleGetItem):
            old = value.tuple_value
            new = self._resolve(old)
            return value if new is old else relax.TupleGetItem(new, value.index)
        return value

    def _resolve_all(self, values: Iterable[Any]) -> tuple[list[Any], bool]:
        old = items(values)
        new = [self._resolve(v) for v in old]
        return new, any(a is not b for a, b in zip(old, new, strict=True))

    def _fresh(self, ty: Any, like: Any = None) -> Any:
        part = "lv" if self._rewritten is None else f"{self._rewritten.name}_part"
        name = part if like is None else like.name
        local = self._dataflow and (like is None or is_a(like, relax.DataflowVar))
        return make_var(name, ty, is_dataflow=local)

    def _bind(self, var: Any, value: Any) -> None:
        self._value[var] = value
        self._out.append(relax.VarBinding(var, value))

    def _stand_for(self, var: Any, new: Any) -> None:
        """Readers of ``var`` read ``new`` from now on."""
        self._alias[var] = new
        for read in reads_of(new):
            self._uses[read] = self.uses(read) + self.uses(var)

    def _release(self, var: Any) -> None:
        """One reader less; a dataflow binding without readers is dropped, and no longer counts as a reader itself."""
        self._uses[var] = self.uses(var) - 1
        if self.uses(var) == 0 and is_a(var, relax.DataflowVar) and var in self._value:
            self._dead.add(var)
            for read in reads_of(self._value[var]):
                self._release(read)


def rewrite_pass(
    name: str, rules: Rules, *, tidy: bool = False, own: OverwritableWeights | None = None
) -> tvm.ir.transform.Pass:
    """A module pass that sweeps every Relax function once with ``rules``, and may overwrite the weights in ``own``.

    With ``tidy``, aliases and what nothing reads are gone then, too.
    """
    tidying = tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])

    def sweep(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        changed, misses = {}, []
        weights = OverwritableWeights() if own is None else own
        for gv, func in module.functions_items():
            if is_host_function(func) and not (func.attrs and "Primitive" in func.attrs):
                scope = Scope(module, rules, weights)
                if (new := scope.function(func)) is not func:
                    changed[gv] = new
                misses += scope.misses(gv.name_hint)
        weights.clear()  # the others may be freed from now on
        module = with_facts(module, misses)
        module = with_functions(module, changed) if changed else module
        return tidying(module) if tidy else module

    return tvm.transform.module_pass(sweep, opt_level=0, name=name)
