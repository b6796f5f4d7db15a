"""Which calls of the model each kernel of TVM's runs, use by use, for `profile`.

LegalizeOps keeps the variables of a function, FuseOps makes new ones. Behind it a kernel is found again by its
operands: values have equal numbers if the same kernel computes them from values with equal numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import tvm
from tvm import relax

from ..calls.flow import OnnxNodes
from ..ir.relax_utils import bindings_in, is_host_function, is_op_call
from ..ir.tvm_compat import var_name

#: kernel → for each use, in the order of execution, the names of the calls that it runs
Kernels = dict[str, list[list[str]]]


def kernel_names(
    model: tvm.IRModule, legal: tvm.IRModule, fused: tvm.IRModule, lowered: tvm.IRModule, entry: str = "main"
) -> Kernels:
    """Find the names: ONNX nodes, or the variables that hold the results.

    Parameters
    ----------
    model, legal, fused, lowered : IRModule
        The module before its calls are lowered, behind LegalizeOps, behind FuseOps, and behind FuseTIR and
        RewriteDataflowReshape.
    entry : str
        Name of the function that is run; the functions that it calls are followed. Both branches of an If count.
    """
    nodes = OnnxNodes(model)
    steps: dict[str, list[tuple[str, list[str] | None]]] = {}
    for function in [gv.name_hint for gv, func in model.functions.items() if is_host_function(func)]:
        labels = {
            b.var: nodes.of(function, var_name(b.var)) or var_name(b.var)
            for b in bindings_in(model[function], local_functions=False)
            if is_op_call(b.value)
        }
        numbers = _Numbers()
        labelled = _labelled(numbers, legal[function], labels)
        names = list(_fused_names(numbers, fused, fused[function], labelled))
        symbols = list(_symbols(lowered[function]))
        if len(names) != len(symbols):
            return {}
        steps[function] = list(zip(symbols, names, strict=True))
    uses: Kernels = {}

    def follow(function: str, callers: tuple[str, ...]) -> None:
        for symbol, names in steps.get(function, ()) if function not in callers else ():
            if names is None:
                follow(symbol, (*callers, function))
            elif symbol:
                uses.setdefault(symbol, []).append(names)

    follow(entry, ())
    return uses


class _Numbers:
    """Numbers of values, the same for equal kernels of equal values; all constants have one, and all shapes."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}  # computation → number
        self._fields: dict[int, tuple[int, ...]] = {}  # of a tuple
        self._variables: dict[Any, int] = {}

    def start(self, func: relax.Function) -> None:
        """Number the parameters of a function by their position."""
        for position, param in enumerate(func.params):
            self.bind(param, self._number("parameter", position))

    def bind(self, var: Any, number: int) -> None:
        """Let a variable stand for a value."""
        self._variables[var] = number

    def of(self, value: Any) -> int:
        """The number of an expression."""
        if isinstance(value, relax.Var):
            return self._variables.get(value, -1)
        if isinstance(value, relax.Tuple):
            fields = tuple(map(self.of, value.fields))
            number = self._number("tuple", *fields)
            self._fields[number] = fields
            return number
        if isinstance(value, relax.TupleGetItem):
            whole = self.of(value.tuple_value)
            fields = self._fields.get(whole, ())
            return fields[value.index] if fields else self._number("item", whole, int(value.index))
        if isinstance(value, relax.Call):
            return self._number("call", self.of(value.op), *map(self.of, value.args))
        return self._number(type(value).__name__, str(getattr(value, "name_hint", getattr(value, "name", ""))))

    def _number(self, *computation: Any) -> int:
        return self._known.setdefault(computation, len(self._known))


def _labelled(numbers: _Numbers, func: relax.Function, labels: Mapping[Any, str]) -> dict[int, deque[str]]:
    """Number of a kernel's result → the label of its call; the kernels of a call are in front of its variable."""
    found: dict[int, deque[str]] = {}
    waiting: list[int] = []
    numbers.start(func)
    for binding in bindings_in(func, local_functions=False):
        number = numbers.of(binding.value)
        numbers.bind(binding.var, number)
        if _is_kernel(binding.value):
            waiting.append(number)
        if binding.var in labels:
            for kernel in waiting:
                found.setdefault(kernel, deque()).append(labels[binding.var])
            waiting = []
    return found


def _fused_names(
    numbers: _Numbers, mod: tvm.IRModule, func: relax.Function, labels: Mapping[int, deque[str]]
) -> Iterator[list[str] | None]:
    """The labels of each kernel in order, ``None`` for a call of another function."""

    def bind(binding: Any) -> list[str]:
        number = numbers.of(binding.value)
        numbers.bind(binding.var, number)
        left = labels.get(number) if _is_kernel(binding.value) else None
        return [left.popleft()] if left else []

    numbers.start(func)
    for binding in bindings_in(func, local_functions=False):
        callee = mod[binding.value.op] if _is_function_call(binding.value) else None
        if callee is None or not (callee.attrs and "Primitive" in callee.attrs):
            names = bind(binding)
            if callee is not None or _is_kernel(binding.value):
                yield None if callee is not None else names
            continue
        for param, argument in zip(callee.params, binding.value.args, strict=True):
            numbers.bind(param, numbers.of(argument))
        inside = [name for inner in bindings_in(callee) for name in bind(inner)]
        numbers.bind(binding.var, numbers.of(callee.body.body))
        yield list(dict.fromkeys(inside))


def _symbols(func: relax.Function) -> Iterator[str]:
    """The function that each call calls, ``""`` for a reshape: it was a kernel, and is none any longer."""
    for binding in bindings_in(func, local_functions=False):
        value = binding.value
        if _is_function_call(value):
            yield value.op.name_hint
        elif _is_kernel(value):
            yield value.args[0].name_hint
        elif is_op_call(value) and value.op.name == "relax.reshape":
            yield ""


def _is_kernel(value: Any) -> bool:
    return is_op_call(value) and value.op.name.startswith("relax.call_tir")


def _is_function_call(value: Any) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)
