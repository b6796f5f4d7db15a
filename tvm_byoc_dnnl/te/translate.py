"""Relax -> TE.

The function is evaluated symbolically. A Relax expression evaluates to a *resolved* expression: a variable
that stands for a ``te.Tensor``, a constant, a shape, a scalar, or a tuple of these. An op is given to the compute
that the selector names; legalisers are run as they are, with ``BlockBuilder.call_te`` captured, and whatever
expression they return is evaluated in its turn, so a legaliser may return composed Relax ops as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..core.errors import InputError
from ..core.verdict import calling, expect
from ..ir.relax_utils import constant_numpy
from ..ir.tvm_compat import analyzer, constant_tensor, dtype_of, is_constant, substitute
from .computes import (
    FLOATS_ONLY,
    REFUSED,
    TE_LOCK,
    TVM_LEGALIZATION,
    Refusal,
    Selector,
    TECompute,
    capture_call_te,
    default_selector,
    embed_primfunc,
    is_tir,
    leaves,
    paired_dims,
    refuse,
    symbols_in,
    symbols_of,
)
from .graph import TEConstant, TEGraph, TENode, hidden_reads, reads, stages_of
from .legalize import MENDED

Function = Any  # relax.Function, or (IRModule, name or GlobalVar)


def translate_to_te(
    func: Function, target: str | dict[str, Any] | tvm.target.Target = "llvm", selector: Selector | None = None
) -> TEGraph:
    """Translate a Relax function to an unscheduled TE graph.

    Parameters
    ----------
    func : relax.Function, or (IRModule, name or GlobalVar)
        A composite, a region, or any function. With the module, functions and PrimFuncs that it calls are found
        and become part of the graph.
    target : str, dict or tvm.target.Target
        What computes are selected for.
    selector : callable, optional
        ``selector(op, attrs, args, target)`` chooses the compute of one call: a :class:`TECompute`, a function
        ``fn(attrs, *args)``, or None for TVM's legalisation. See :func:`prefer` and :func:`cheapest`; by default the
        newest registered compute that supports the call, else TVM's legalisation.

    Returns
    -------
    TEGraph
        ``inputs``, ``outputs`` and ``constants`` of unscheduled tensors.

    Raises
    ------
    UnsupportedError
        Something in the function cannot be expressed in TE; the message names the op and the reason.
    InputError
        ``func`` is not a Relax function.
    """
    mod, function = _lookup(func)
    target = tvm.target.Target(target)
    with TE_LOCK, target:
        return _Translator(mod, target, selector or default_selector).run(function)


def _lookup(func: Function) -> tuple[tvm.IRModule, relax.Function]:
    mod, function = func if isinstance(func, (tuple, list)) and len(func) == 2 else (tvm.IRModule(), func)
    if isinstance(function, (str, tvm.ir.GlobalVar)):
        name = function if isinstance(function, str) else function.name_hint
        known = sorted(gvar.name_hint for gvar in mod.functions)
        if name not in known:
            raise InputError(f"translate_to_te: no function {name!r} in the module; it has {', '.join(known)}")
        function = mod[name]
    if not isinstance(function, relax.Function):
        raise InputError(
            f"translate_to_te: got {type(function).__name__}, expected a relax.Function, or (module, its name)"
        )
    return mod, function


class _Translator:
    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target, selector: Selector):
        self.builder = relax.BlockBuilder(mod)
        self.target = target
        self.selector = selector
        self.analyzer = analyzer()
        self.values: dict[Any, relax.Expr] = {}  # Relax variable -> resolved expression
        self.tensors: dict[Any, te.Tensor] = {}  # variable of a resolved expression -> its tensor
        self.symbols: dict[Any, Any] = {}  # symbolic dimension of the function -> expression in the graph's symbols
        self.free: set[Any] = set()  # the graph's symbols
        self.constants: dict[Any, TEConstant] = {}
        self.nodes: list[TENode] = []
        self.known: dict[te.Operation, None] = {}  # stages that belong to a node
        self.inlining: list[Any] = []

    def run(self, func: relax.Function) -> TEGraph:
        func = relax.utils.copy_with_new_vars(func)
        for symbol in symbols_of(func.params):
            self.symbols[symbol] = tirx.Var(symbol.name, symbol.ty)
        self.free = set(self.symbols.values())
        inputs: list[Any] = []
        signature = [self.parameter(param, inputs) for param in func.params]
        bound = {d for i in inputs if isinstance(i, te.Tensor) for d in i.shape if isinstance(d, tirx.Var)}
        unique = {i.op if isinstance(i, te.Tensor) else i: i for i in inputs}
        inputs = [i for key, i in unique.items() if key not in bound]
        self.builder._begin_binding_block()  # legalisers may emit
        try:
            result = self.expr(func.body)
        finally:
            self.builder._end_block()
        outputs = self.outputs(result, inputs)
        reachable = set(stages_of(outputs))
        used = {tensor.op for stage in reachable for tensor in reads(stage)}
        nodes = [TENode(node.op, node.compute, tuple(s for s in node.stages if s in reachable)) for node in self.nodes]
        return TEGraph(
            inputs,
            outputs,
            [constant for constant in self.constants.values() if constant.tensor.op in used],
            [node for node in nodes if node.stages],
            signature,
            self.target,
        )

    # -- parameters and results ------------------------------------------------------------------------------

    def parameter(self, param: relax.Var, inputs: list[Any]) -> Any:
        """Bind a parameter of the translated function; its type in the graph's symbols."""
        if tvm.ir.is_prim_expr(param):
            self.values[param] = self.symbols[param]
            inputs.append(self.symbols[param])
            return self.symbols[param]
        value, ty = self.placeholder(param.name, param.ty, inputs)
        self.values[param] = value
        return ty

    def placeholder(self, name: str, ty: Any, inputs: list[Any]) -> tuple[relax.Expr, Any]:
        if isinstance(ty, relax.TupleType):
            items = [self.placeholder(f"{name}_{i}", t, inputs) for i, t in enumerate(ty.fields)]
            return relax.Tuple([v for v, _ in items]), relax.TupleType([t for _, t in items])
        if isinstance(ty, relax.TensorType) and ty.ndim >= 0 and dtype_of(ty):
            if isinstance(ty.shape, relax.ShapeExpr):
                dims = [self.dim(d) for d in ty.shape.values]
            else:  # only the rank is known: the dimensions become symbols
                dims = self.fresh(name, ty.ndim)
            tensor = te.placeholder(dims, dtype_of(ty), name)
            inputs.append(tensor)
            return self.tensor_var(tensor), relax.TensorType(dims, dtype_of(ty))
        if isinstance(ty, relax.ShapeType) and ty.ndim >= 0:
            dims = self.fresh(name, ty.ndim) if ty.values is None else [self.dim(d) for d in ty.values]
            inputs.extend(d for d in dims if isinstance(d, tirx.Var))
            return relax.ShapeExpr(dims), relax.ShapeType(dims)
        raise refuse(
            f"parameter {name}: {ty}",
            "a tensor needs a known rank and dtype, and only tensors, shapes, scalars and tuples are data",
            "annotate it, for example R.Tensor((n, 64), 'float32')",
        )

    def fresh(self, name: str, ndim: int) -> list[tirx.Var]:
        symbols = [tirx.Var(f"{name}_{i}", "int64") for i in range(ndim)]
        self.free.update(symbols)
        return symbols

    def outputs(self, result: relax.Expr, inputs: Iterable[Any]) -> list[te.Tensor]:
        """The flat result tensors; one that is not a stage of its own (an input, a repeated result) is copied."""
        outputs: list[te.Tensor] = []
        taken: set[tuple[te.Operation, int]] = set()  # a tensor of rank 0 cannot be compared
        for leaf in leaves(result):
            if not isinstance(leaf.ty, relax.TensorType):
                raise refuse(f"result of type {leaf.ty}", "a TE graph returns tensors only", "return tensors")
            tensor = self.tensor(leaf)
            if isinstance(tensor.op, te.PlaceholderOp) or (tensor.op, tensor.value_index) in taken:
                tensor = _copy(tensor)
                self.record("copy", TECompute("copy"), [tensor])
            taken.add((tensor.op, tensor.value_index))
            outputs.append(tensor)
        if not outputs:
            raise refuse("a function without results", "there is nothing to compute", "return a tensor")
        return outputs

    # -- tensors ---------------------------------------------------------------------------------------------

    def tensor_var(self, tensor: te.Tensor) -> relax.Var:
        unknown = [v for d in tensor.shape for v in symbols_in(d) if v not in self.free]
        if unknown:
            raise refuse(f"tensor {tensor.op.name}", "its shape depends on the values of its inputs")
        var = relax.Var(tensor.op.name, relax.TensorType(list(tensor.shape), dtype_of(tensor)))
        self.tensors[var] = tensor
        return var

    def tensor(self, expr: relax.Expr) -> te.Tensor:
        """A constant becomes a placeholder at its first use."""
        if not is_constant(expr):
            return self.tensors[expr]
        value = constant_tensor(expr)
        if value not in self.constants:
            name = f"const_{len(self.constants)}"
            shape = [tirx.IntImm("int64", d) for d in value.shape]
            self.constants[value] = TEConstant(te.placeholder(shape, dtype_of(expr.ty), name), value)
        return self.constants[value].tensor

    def operand(self, arg: Any) -> Any:
        """An argument as a TE function wants it: tensors for expressions, lists for tuples and shapes."""
        if isinstance(arg, te.Tensor) or tvm.ir.is_prim_expr(arg):
            return arg
        if isinstance(arg, tvm.ir.Expr):
            arg = self.expr(arg)
            if isinstance(arg, relax.ShapeExpr):
                return list(arg.values)
            if isinstance(arg, relax.Tuple):
                return [self.operand(field) for field in arg.fields]
            return self.tensor(arg) if isinstance(arg.ty, relax.TensorType) else arg
        if isinstance(arg, (list, tvm.ir.Array)):
            return [self.operand(item) for item in arg]
        if isinstance(arg, tuple):
            return tuple(self.operand(item) for item in arg)
        if isinstance(arg, (dict, tvm.ir.Map)):
            return {key: self.operand(item) for key, item in arg.items()}
        return arg

    def resolved(self, result: Any) -> relax.Expr:
        if isinstance(result, te.Tensor):
            return self.tensor_var(result)
        return relax.Tuple([self.resolved(item) for item in result])

    def call_te(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> relax.Expr:
        options = ("primfunc_name_hint", "primfunc_attrs", "ty_args")
        kwargs = {key: self.operand(arg) for key, arg in kwargs.items() if key not in options}
        return self.resolved(func(*(self.operand(arg) for arg in args), **kwargs))

    def record(self, op: str, compute: TECompute, outputs: Iterable[te.Tensor]) -> None:
        stages = stages_of(outputs, self.known)
        for tensor in (t for stage in stages for t in hidden_reads(stage)):
            if not isinstance(tensor.op, te.PlaceholderOp):  # TE would not know to compute it before
                raise refuse(
                    op,
                    f"its compute reads {tensor.op.name} in an extern stage without declaring it",
                    "make that argument a parameter or a constant",
                )
        self.known.update(dict.fromkeys(stages))
        if stages:
            self.nodes.append(TENode(op, compute.name, tuple(stages)))

    # -- symbols ---------------------------------------------------------------------------------------------

    def dim(self, expr: Any) -> Any:
        return substitute(expr, self.symbols) if isinstance(expr, tvm.ir.Expr) else expr

    def bind(self, ty: Any, value: relax.Expr) -> None:
        """Let the symbols of ``ty`` stand for the dimensions of ``value``, and check the other dimensions."""
        pairs = list(paired_dims(ty, value))
        for formal, actual in pairs:
            if isinstance(formal, tirx.Var) and formal not in self.symbols:
                self.symbols[formal] = actual
        for formal, actual in pairs:
            if not self.analyzer.can_prove_equal(self.dim(formal), actual):
                raise refuse(
                    f"a cast of {value.ty} to {ty}",
                    f"{formal} = {actual} would have to be checked at run time",
                    "state the shape in the signature",
                )

    def check(self, name: str, ty: Any, value: relax.Expr) -> None:
        if isinstance(ty, relax.TupleType) and isinstance(value, relax.Tuple) and len(ty.fields) == len(value):
            for inner, field in zip(ty.fields, value.fields, strict=True):
                self.check(name, inner, field)
        elif isinstance(ty, relax.TupleType) or isinstance(value, relax.Tuple):
            raise refuse(name, f"its compute makes {value}, Relax infers {ty}", "correct the compute")
        elif isinstance(ty, relax.TensorType):
            same = ty.ndim in (-1, value.ty.ndim) and dtype_of(ty) in ("", dtype_of(value.ty))
            if same and isinstance(ty.shape, relax.ShapeExpr):
                pairs = zip(ty.shape.values, value.ty.shape.values, strict=True)
                difference = [self.analyzer.simplify(a - b) for a, b in pairs]
                same = not any(isinstance(d, tirx.IntImm) and d.value for d in difference)
            if not same:
                raise refuse(name, f"its compute makes {value.ty}, Relax infers {ty}", "correct the compute")

    # -- expressions -----------------------------------------------------------------------------------------

    def expr(self, expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Call) and not is_tir(expr):
            return self.call(expr)
        if tvm.ir.is_prim_expr(expr):
            return self.dim(expr)
        if isinstance(expr, relax.Var):
            if expr not in self.tensors and expr not in self.values:
                emitted = self.builder.lookup_binding(expr)
                if emitted is None:
                    raise refuse(f"variable {expr.name}", "it is not bound inside the function")
                self.values[expr] = self.expr(emitted)
            return self.values.get(expr, expr)
        if isinstance(expr, relax.ShapeExpr):
            return relax.ShapeExpr([self.dim(d) for d in expr.values])
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.expr(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return self.expr(expr.tuple_value).fields[expr.index]
        if isinstance(expr, relax.SeqExpr):
            for block in expr.blocks:
                for binding in block.bindings:
                    self.values[binding.var] = value = self.expr(binding.value)
                    if isinstance(binding, relax.MatchCast):
                        self.bind(binding.ty, value)
            return self.expr(expr.body)
        if isinstance(expr, relax.If):
            raise refuse("if", "TE has no control flow", "translate the branches separately, or use relax.where")
        return expr  # a constant, a function, a string

    def call(self, call: relax.Call) -> relax.Expr:
        if isinstance(call.op, tvm.ir.Op):
            structural = STRUCTURAL.get(call.op.name)
            return structural(self, call) if structural else self.op(call)
        is_global = isinstance(call.op, tvm.ir.GlobalVar)
        callee = self.builder.get()[call.op] if is_global else self.expr(call.op)
        what = f"a call of {call.op.name_hint if is_global else type(callee).__name__}"
        if not isinstance(callee, relax.Function):
            raise refuse(what, f"it is a {type(callee).__name__}, not a Relax function")
        if any(callee.same_as(outer) for outer in self.inlining):
            raise refuse(what, "it is recursive")
        args = [self.expr(arg) for arg in call.args]
        self.inlining.append(callee)
        body = relax.utils.copy_with_new_vars(callee)
        for param, arg in zip(body.params, args, strict=True):
            if tvm.ir.is_prim_expr(param):
                self.symbols[param] = arg
            self.values[param] = arg
            self.bind(param.ty, arg)
        result = self.expr(body.body)
        self.inlining.pop()
        return result

    def op(self, call: relax.Call) -> relax.Expr:
        name = call.op.name
        args = [self.expr(arg) for arg in call.args]
        call = self.builder.normalize(relax.Call(call.op, args, call.attrs, call.ty_args))
        operands = _Operands(self, args)
        choice = self.selector(name, call.attrs, operands, self.target) or TVM_LEGALIZATION
        compute = choice if isinstance(choice, TECompute) else TECompute(choice.__name__, choice)
        fn = compute.fn
        if fn is None and name in REFUSED:
            raise refuse(name, REFUSED[name])
        if fn is None and name in FLOATS_ONLY and "float" not in dtype_of(call.ty):
            raise refuse(name, f"TVM computes it in floats only, got {dtype_of(call.ty)}", "cast its operands")
        try:
            result = self.resolved(_made(fn, call.attrs, operands)) if fn else self.legalize(call)
        except Refusal as error:
            if error.what == name:
                raise
            raise refuse(name, f"it is lowered to {error.what}, which is refused: {error.reason}") from error
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise refuse(name, f"its compute {compute.name!r} failed: {reason}") from error
        # TVM's computes are not strict about one tensor and a list of one.
        if isinstance(call.ty, relax.TupleType) and not isinstance(result, relax.Tuple):
            result = relax.Tuple([result])
        elif isinstance(call.ty, relax.TensorType) and isinstance(result, relax.Tuple) and len(result) == 1:
            result = result.fields[0]
        self.check(name, call.ty, result)
        self.record(name, compute, [self.tensors[leaf] for leaf in leaves(result) if leaf in self.tensors])
        return result

    def legalize(self, call: relax.Call) -> relax.Expr:
        is_cpu = "cpu" in self.target.keys  # others may have no float64, or no C library
        legalizer = (MENDED.get(call.op.name) if is_cpu else None) or call.op.get_attr("FLegalize")
        if legalizer is None:
            raise refuse(call.op.name, "TVM has no legalisation for it")
        with capture_call_te(self.builder, self.call_te):
            lowered = legalizer(self.builder, call)
        if lowered.same_as(call):
            raise refuse(call.op.name, f"TVM's legaliser declines this call, with attributes {call.attrs}")
        return self.expr(lowered)

    # -- calls that are not computes ----------------------------------------------------------------------------

    def call_tir(self, call: relax.Call) -> relax.Expr:
        gvar, arguments = call.args[0], self.expr(call.args[1])
        func = self.builder.get()[gvar]
        args = [self.operand(arg) for arg in getattr(arguments, "fields", [arguments])]
        types = call.ty_args[0].fields if isinstance(call.ty_args[0], relax.TupleType) else call.ty_args[:1]
        if len(func.params) != len(args) + len(types):
            raise refuse(
                f"call_tir of {gvar.name_hint}",
                f"it has {len(func.params)} parameters, the call {len(args)} arguments and {len(types)} outputs",
            )
        outputs = embed_primfunc(func, args, gvar.name_hint)
        self.record(gvar.name_hint, TECompute("call_tir"), outputs)
        result = [self.tensor_var(tensor) for tensor in outputs]
        return relax.Tuple(result) if isinstance(call.ty_args[0], relax.TupleType) else result[0]

    def shape_of(self, call: relax.Call) -> relax.Expr:
        return relax.ShapeExpr(list(self.expr(call.args[0]).ty.shape.values))

    def tensor_to_shape(self, call: relax.Call) -> relax.Expr:
        tensor = self.expr(call.args[0])
        if not is_constant(tensor):
            raise refuse(call.op.name, "the shape depends on the values of a tensor that is not a constant")
        return relax.ShapeExpr([int(d) for d in constant_numpy(tensor)])

    def first_argument(self, call: relax.Call) -> relax.Expr:
        return self.expr(call.args[0])


# Calls that move values around and compute nothing, and calls of an existing PrimFunc
STRUCTURAL: dict[str, Callable[[_Translator, relax.Call], relax.Expr]] = {
    "relax.builtin.stop_lift_params": _Translator.first_argument,
    "relax.call_tir": _Translator.call_tir,
    "relax.call_tir_with_grad": _Translator.call_tir,
    "relax.shape_of": _Translator.shape_of,
    "relax.tensor_to_shape": _Translator.tensor_to_shape,
}


class _Operands(Sequence[Any]):
    """The TE arguments of a call, made when they are read: a constant that no compute reads is not an input."""

    def __init__(self, translator: _Translator, args: Sequence[relax.Expr]):
        self._translator = translator
        self._args = args

    def __getitem__(self, index: Any) -> Any:
        return self._translator.operand(self._args[index])

    def __len__(self) -> int:
        return len(self._args)


def _copy(tensor: te.Tensor) -> te.Tensor:
    return te.compute(tensor.shape, lambda *i: tensor(*i), name="copy")


def _made(fn: Callable[..., Any], attrs: Any, operands: Sequence[Any]) -> Any:
    with calling("it"):
        made = fn(attrs, *operands)
    return expect(made, (te.Tensor, Sequence), "it", "a te.Tensor, or a list of them")
