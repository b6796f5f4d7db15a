"""Models that need no TVM: as source, where ``main`` is one call of one region, with which argument and result is
whose; and as a program of calls, for the runtime that does without TVM (docs/portable_graph.md), where ``main`` is
nothing but calls of regions that the native library runs, views of tensors, and arithmetic on few numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx

from ..core import _native
from ..core.errors import GraphError, UnsupportedError
from ..core.files import written_folder
from ..core.tvm_fast import is_a, items
from ..core.verdict import Reject
from ..graph import PortableGraph
from ..graph.builder import GraphBuilder, Value
from ..ir.relax_utils import (
    RESHAPES,
    Origins,
    bindings_of,
    codegen_of,
    constant_numpy,
    constants_in,
    external_modules,
    inputs_of,
    outputs_of,
)
from ..ir.tvm_compat import dtype_of, is_constant
from ..vendors import Namespace, Standalone, told
from ..vendors.namespaces import get_target_options, namespace
from ..vendors.portable import lower_region, with_checksums

_NEEDS = "a stand-alone program needs `main` to be one call of one region"


def write_source(mod: tvm.IRModule, out_dir: str | PathLike[str]) -> list[Path]:
    """See `emit`, of a module that is partitioned."""
    main, call = _only_region(mod)
    func = mod[call.op]
    ns = namespace(codegen_of(func))
    if ns.functions.emit is None:
        raise UnsupportedError(f"{call.op.name_hint} belongs to {ns.name!r}, which emits no source")
    arguments = _arguments(main, call)
    graph, constants = _lower(ns, func, str(func.attrs["global_symbol"]), get_target_options(mod, ns.name))
    program = Standalone(graph, told(ns, "emit", graph), constants, arguments, _results(main, call, len(graph.outputs)))
    folder = Path(out_dir)
    with written_folder(folder) as aside:
        source = aside / f"{graph.name}.c"
        source.write_text(program.source)
        files = [source, *(told(ns, "write_program", program, aside) or ())]
    return [folder / file.name for file in files]


def _only_region(mod: tvm.IRModule) -> tuple[relax.Function, Any]:
    main = next((f for gv, f in mod.functions.items() if gv.name_hint == "main"), None)
    if not isinstance(main, relax.Function):
        raise UnsupportedError(f"the module has no Relax function `main`: {_NEEDS}")
    made = [value for _, value in bindings_of(main) if isinstance(value, relax.Call)]
    calls = [call for call in made if isinstance(call.op, tvm.ir.GlobalVar) and codegen_of(mod[call.op])]
    others = [str(getattr(call.op, "name", call.op)) for call in made if call not in calls]
    if others or len(calls) != 1:
        left = f", and {len(others)} that stay with TVM ({', '.join(sorted(set(others)))})" if others else ""
        raise UnsupportedError(
            f"`main` makes {len(calls)} calls of regions{left}; {_NEEDS}. "
            "Export the compiled model as a library instead, or see `explain` for why calls stay with TVM"
        )
    return main, calls[0]


def _lower(
    ns: Namespace, func: relax.Function, symbol: str, options: Mapping[str, Any]
) -> tuple[PortableGraph, list[Any]]:
    names = {constant: f"{symbol}_const_{n}" for n, constant in enumerate(dict.fromkeys(constants_in(func)))}
    values = {name: constant for constant, name in names.items()}
    graph = with_checksums(lower_region(ns, func, symbol, names, options), names)
    return graph, [constant_numpy(values[c.name]) for c in graph.constants]


def _arguments(main: relax.Function, call: Any) -> list[int]:
    origins = _origins(main, {param: i for i, param in enumerate(main.params)})
    found = [origins.of(arg) for arg in call.args]
    for position, source in enumerate(found):
        if not isinstance(source, int):
            raise UnsupportedError(f"argument {position} of {call.op.name_hint} is not a parameter of `main`; {_NEEDS}")
    return found


def _results(main: relax.Function, call: Any, outputs: int) -> list[int]:
    root = next(var for var, value in bindings_of(main) if value.same_as(call))
    found = _origins(main, {root: tuple(range(outputs)) if outputs > 1 else 0}).of(main.body.body)
    indices = list(found) if isinstance(found, tuple) else [found]
    if not all(isinstance(i, int) for i in indices) or sorted(indices) != list(range(outputs)):
        name = call.op.name_hint
        raise UnsupportedError(f"`main` does not return the results of {name}, each of them once; {_NEEDS}")
    return indices


def _origins(main: relax.Function, known: Mapping[Any, Any]) -> Origins:
    origins = Origins(known)
    for var, value in bindings_of(main):
        origins.bind(var, value)
    return origins


FORMAT, VERSION = "tvm_byoc_dnnl.program", 2
PROGRAM_FUNCTION = "byoc_program"

#: on few numbers, which a program computes itself (codegen_src/native/host_operators.cc)
_HOST_OPERATORS = {
    f"relax.{name}": name
    for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "less_equal", "greater",
        "greater_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_not", "negative", "sqrt", "where",
        "astype", "max", "min", "sum", "gather_nd", "arange",
    )
}  # fmt: skip
_HOST_OPERATORS |= {"relax.full": "astype", "relax.broadcast_to": "astype", "relax.clip": "clip"}
_REDUCTIONS = {"max", "min", "sum"}
_INTEGERS = {"int8", "uint8", "int32", "int64", "bool"}
_REALS = {"float32", "float64"}
_OF_REALS_ALONE = {"divide", "sqrt", *_REDUCTIONS}
_OF_INTEGERS_ALONE = {"logical_and", "logical_or", "logical_not", "clip"}
_FEW = 1 << 16
_ARRAYS = {"float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"}  # of NumPy


def program_of(mod: tvm.IRModule, main: relax.Function) -> bytes:
    """The program of a model's function, its regions built, as a saved module; else why it needs TVM."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    try:
        document |= _Program(mod, main).document()
    except (Reject, GraphError) as reason:
        document["reason"] = str(reason)
    text = json.dumps(document, separators=(",", ":"))
    return bytes(_native.function("tvm_byoc_dnnl.SaveProgram")(text))


class _Program:
    def __init__(self, mod: tvm.IRModule, main: relax.Function) -> None:
        self._main = main
        self._modules = external_modules(mod)
        self._regions = _native.regions(self._modules)
        self._builder = GraphBuilder("main")
        self._calls: list[dict[str, Any]] = []
        self._constants: list[dict[str, Any]] = []

    def document(self) -> dict[str, Any]:
        for param in self._main.params:
            if not is_a(param.ty, relax.TensorType):
                raise Reject(f"its input {param.name} is no tensor")
            self._builder.add_input(param)
        for var, value in bindings_of(self._main):
            self._builder.bind(var, self._value(var, value))
        graph = self._builder.graph
        outputs = self._known(self._main.body.body)
        results = outputs if isinstance(outputs, tuple) else (outputs,)
        if not results or any(isinstance(r, tuple) for r in results):
            raise Reject("its result is a tuple of tuples, or of nothing")
        params = [graph.tensors[i.tensor] for i in graph.inputs if i.tensor is not None]
        self._check_dtypes(param.dtype for param in params)
        self._check_dtypes(r.dtype for r in results)
        bound = {dim for param in params for dim in param.shape if isinstance(dim, str)}
        if loose := graph.symbols - bound:
            raise Reject(f"the size {min(loose)} is the dim of no input")
        signature = {
            "inputs": [asdict(i) for i in inputs_of(self._main)],
            "outputs": [asdict(o) for o in outputs_of(self._main)],
            "is_tuple": isinstance(outputs, tuple),
        }
        whole = graph.to_dict()
        kept = {key: whole[key] for key in ("name", "tensors", "inputs")}
        kept |= {"constants": self._constants, "calls": self._calls}
        return kept | {"outputs": [r.id for r in results], "signature": signature}

    @staticmethod
    def _check_dtypes(dtypes: Any) -> None:
        if others := set(dtypes) - _ARRAYS:
            raise Reject(f"NumPy has no arrays of {min(others)}")

    def _known(self, expr: Any) -> Any:
        """A value that is there already; the builder would make an input of any other."""
        if is_a(expr, relax.Tuple):
            return tuple(self._known(field) for field in items(expr.fields))
        if is_constant(expr):
            return self._constant(expr)
        if is_a(expr, relax.Call):
            raise Reject("it returns a call")
        return self._builder.values(expr)

    def _constant(self, expr: Any) -> Value:
        array = constant_numpy(expr)
        if array.size > _FEW:
            raise Reject(f"it returns, or gives to a region, a constant {array.dtype}{list(array.shape)}")
        if array.dtype.name not in _INTEGERS:
            array = array.view(f"int{8 * array.itemsize}")  # its bits
        value = self._builder.new_value(expr.ty)
        self._constants.append({"tensor": value.id, "numbers": array.astype("int64").ravel().tolist()})
        return value

    def _value(self, var: Any, value: Any) -> Any:
        if not is_a(value, relax.Call):
            if is_a(value, (relax.Var, relax.Tuple, relax.TupleGetItem)):
                return self._known(value)
            raise Reject(f"it has a {type(value).__name__}")
        name = str(getattr(value.op, "name", value.op))
        if name in RESHAPES:
            source = self._known(value.args[0])
            return self._call({}, [source.id], var.ty)
        if name in _HOST_OPERATORS and (operands := self._operands(_HOST_OPERATORS[name], value, var)):
            return self._host_call(_HOST_OPERATORS[name], operands, value, var)
        is_extern = name in ("relax.call_dps_packed", "relax.call_pure_packed")
        symbol = str(getattr(value.args[0], "global_symbol", "")) if is_extern else ""
        region = self._regions.get(symbol)
        if region is None and symbol and any(m.implements_function(symbol) for m in self._modules):
            raise Reject(f"region {symbol} is run by its vendor's own code")
        if region is None:
            raise Reject(f"TVM computes {symbol or name}")
        if list(region["caches"]()):
            raise Reject(f"region {symbol} has caches that grow")
        return self._call({"region": symbol}, [self._argument(arg) for arg in items(value.args[1].fields)], var.ty)

    def _operands(self, name: str, call: Any, var: Any) -> list[Value]:
        """The operands of arithmetic on few numbers; none of any other."""
        computed_for = call.args[0] if name in _REDUCTIONS else var
        if math.prod(d for d in self._builder.shape_of(computed_for.ty) if isinstance(d, int)) > _FEW:
            return []
        given = {"arange": (0, 2), "clip": (1, 2)}.get(name, ())
        numbers: list[Any] = [getattr(call.args[i], "value", None) for i in given]
        if given and not (dtype_of(var.ty) in _INTEGERS and all(isinstance(n, (int, tirx.IntImm)) for n in numbers)):
            return []
        constants = [self._constant(relax.const(int(n), "int64")) for n in numbers]
        if name == "arange":
            return constants
        args = [arg for arg in call.args if is_a(arg.ty, relax.TensorType)]  # and not the shape of full
        dtypes, made = [dtype_of(arg.ty) for arg in args], dtype_of(var.ty)
        if name == "gather_nd":
            is_taken = int(call.attrs.batch_dims) == 0 and dtypes[1] in _INTEGERS
        else:
            computed = dtypes[1:] if name == "where" else dtypes
            is_integer = computed[0] in _INTEGERS
            kind, refused = (_INTEGERS, _OF_REALS_ALONE) if is_integer else (_REALS, _OF_INTEGERS_ALONE)
            results = _INTEGERS | _REALS if name == "astype" else kind | {"bool"}
            is_taken = kind.issuperset(computed) and name not in refused and made in results
        return [self._known(arg) for arg in args] + constants if is_taken else []

    def _host_call(self, name: str, operands: list[Value], call: Any, var: Any) -> Value:
        ids = [o.id for o in operands]
        if name == "clip":
            least = self._call({"operator": "maximum"}, ids[:2], var.ty)
            return self._call({"operator": "minimum"}, [least.id, ids[2]], var.ty)
        if name not in _REDUCTIONS or call.attrs.keepdims:
            return self._call({"operator": name}, ids, var.ty)
        axes = range(operands[0].ndim) if call.attrs.axis is None else [int(a) for a in call.attrs.axis]
        reduced = {axis % operands[0].ndim for axis in axes}
        dims = [1 if axis in reduced else dim for axis, dim in enumerate(call.args[0].ty.shape)]
        kept = self._call({"operator": name}, ids, relax.TensorType(dims, dtype_of(var.ty)))
        return self._call({}, [kept.id], var.ty)

    def _argument(self, arg: Any) -> Any:
        if is_a(arg, relax.ShapeExpr):
            return {"shape": [self._builder.dim(dim) for dim in arg.values]}
        return self._known(arg).id

    def _call(self, call: Mapping[str, Any], inputs: list[Any], ty: Any) -> Any:
        value = self._made(ty)
        outputs = [v.id for v in (value if isinstance(value, tuple) else (value,))]
        self._calls.append({**call, "inputs": inputs, "outputs": outputs})
        return value

    def _made(self, ty: Any) -> Value | tuple[Value, ...]:
        fields = items(ty.fields) if is_a(ty, relax.TupleType) else [ty]
        if not all(is_a(field, relax.TensorType) for field in fields):
            raise Reject("a call gives back a tuple of tuples")
        made = tuple(map(self._builder.new_value, fields))
        return made if is_a(ty, relax.TupleType) else made[0]
