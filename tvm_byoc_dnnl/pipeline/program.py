"""How a model calls its regions, written for the runtime that does without TVM: docs/portable_graph.md.

That is possible where ``main`` is nothing but calls of regions that the native library runs, and views of tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import tvm
from tvm import relax

from ..core import _native
from ..core.errors import GraphError
from ..core.tvm_fast import items
from ..core.verdict import Reject
from ..graph.builder import GraphBuilder, Value
from ..ir.relax_utils import bindings_of, external_modules
from ..ir.signature import inputs_of, outputs_of
from ..ir.tvm_compat import is_a, is_constant

FORMAT, VERSION = "tvm_byoc_dnnl.program", 1
PROGRAM_FUNCTION = "byoc_program"

#: the result has the elements of the argument, in their order
_VIEWS = {"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten"}
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
        self._regions = _native.regions(external_modules(mod))
        self._builder = GraphBuilder("main")
        self._calls: list[dict[str, Any]] = []

    def document(self) -> dict[str, Any]:
        for param in self._main.params:
            if not is_a(param.ty, relax.TensorType):
                raise Reject(f"its input {param.name_hint} is no tensor")
            self._builder.add_input(param)
        for var, value in bindings_of(self._main):
            self._builder.bind(var, self._value(var, value))
        graph = self._builder.graph
        outputs = self._known(self._main.body.body)
        if self._builder.constants:
            raise Reject("it returns a constant, or gives one to a region")
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
        return kept | {"calls": self._calls, "outputs": [r.id for r in results], "signature": signature}

    @staticmethod
    def _check_dtypes(dtypes: Any) -> None:
        if others := set(dtypes) - _ARRAYS:
            raise Reject(f"NumPy has no arrays of {min(others)}")

    def _known(self, expr: Any) -> Any:
        """A value that is there already; the builder would make an input of any other."""
        if is_a(expr, relax.Tuple):
            return tuple(self._known(field) for field in items(expr.fields))
        if is_constant(expr) or is_a(expr, relax.Call):
            raise Reject("it returns a constant, or gives one to a region")
        return self._builder.values(expr)

    def _value(self, var: Any, value: Any) -> Any:
        if not is_a(value, relax.Call):
            if is_a(value, (relax.Var, relax.Tuple, relax.TupleGetItem)):
                return self._known(value)
            raise Reject(f"it has a {type(value).__name__}")
        name = str(getattr(value.op, "name", value.op))
        if name in _VIEWS:
            source = self._known(value.args[0])
            return self._call({}, [source.id], var.ty)
        symbol = str(getattr(value.args[0], "global_symbol", "")) if name == "relax.call_dps_packed" else ""
        region = self._regions.get(symbol)
        if region is None:
            raise Reject(f"TVM computes {symbol or name}")
        if list(region["caches"]()):
            raise Reject(f"region {symbol} has caches that grow")
        return self._call({"region": symbol}, [self._argument(arg) for arg in items(value.args[1].fields)], var.ty)

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
        if is_a(ty, relax.TupleType):
            return tuple(self._builder.new_value(field) for field in items(ty.fields))
        return self._builder.new_value(ty)
