"""Data that a compiled model contains about itself: inputs (and which may lie at any address), outputs, versions, the
compiler of each call, and which calls each kernel of TVM's runs, for `profile`.

Stored as Relax functions that return bytes in a tensor, so that it survives ``export_library`` with nothing but TVM's
VM. LegalizeOps keeps the variables of a function, FuseOps makes new ones. Behind it a kernel is found again by its
operands: values have equal numbers if the same kernel computes them from values with equal numbers.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..core import _native
from ..core.compilation import ASKED, read_facts, read_log
from ..core.errors import ArtifactError
from ..core.machine import own_version
from ..ir.relax_utils import (
    bindings_in,
    bindings_of,
    external_modules,
    inputs_of,
    is_host_function,
    is_op_call,
    make_constant,
    outputs_of,
)
from ..partitioning.account import account_of
from ..partitioning.flow import OnnxNodes
from ..partitioning.report_data import ReportData, from_bytes, to_bytes
from .standalone import PROGRAM_FUNCTION, program_of

#: kernel → for each use, in the order of execution, the names of the calls that it runs
Kernels = dict[str, list[list[str]]]


def kernel_names(model: tvm.IRModule, legal: tvm.IRModule, fused: tvm.IRModule, lowered: tvm.IRModule) -> Kernels:
    """Find the names, ONNX nodes or the variables that hold the results; both branches of an If count.

    The modules are that before its calls are lowered, and those behind LegalizeOps, behind FuseOps, and behind FuseTIR
    and RewriteDataflowReshape.
    """
    nodes = OnnxNodes(model)
    steps: dict[str, list[tuple[str, list[str] | None]]] = {}
    for function in [gv.name_hint for gv, func in model.functions.items() if is_host_function(func)]:
        labels = {
            b.var: nodes.of(function, b.var.name) or b.var.name
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

    follow("main", ())
    return uses


class _Numbers:
    """Numbers of values, the same for equal kernels of equal values; all constants have one, and all shapes."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}  # computation → number
        self._fields: dict[int, tuple[int, ...]] = {}  # of a tuple
        self._variables: dict[Any, int] = {}

    def start(self, func: relax.Function) -> None:
        for position, param in enumerate(func.params):
            self.bind(param, self._number("parameter", position))

    def bind(self, var: Any, number: int) -> None:
        self._variables[var] = number

    def of(self, value: Any) -> int:
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


def unaligned_inputs(mod: tvm.IRModule, function: relax.Function) -> list[int]:
    symbols = _native.regions(external_modules(mod)).keys()
    if not symbols:
        return []
    read = [*relax.analysis.free_vars(function.body.body)]
    for _, value in bindings_of(function):
        if not _calls_region(value, symbols):
            read += relax.analysis.free_vars(value)
    return [i for i, param in enumerate(function.params) if not any(param.same_as(var) for var in read)]


def _calls_region(value: Any, symbols: Collection[str]) -> bool:
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.call_dps_packed":
        return False
    callee = value.args[0]
    return isinstance(callee, relax.ExternFunc) and str(callee.global_symbol) in symbols


#: how long a model stays with TVM after a failure → the name of its second form
FALLBACK_FUNCTIONS = {True: "byoc_fallback", "once": "byoc_fallback_once"}
_logger = logging.getLogger("tvm_byoc_dnnl")

METADATA_FUNCTION = "byoc_metadata"
METADATA_VERSION = 1
REPORT_FUNCTION = "byoc_report"
KERNELS_FUNCTION = "byoc_kernels"


def attach_metadata(mod: tvm.IRModule, regions: tvm.IRModule) -> tvm.IRModule:
    """Add functions that describe ``main``, if there is one. ``regions`` is ``mod`` before its regions were built."""
    names = {gv.name_hint: gv for gv in mod.get_global_vars()}
    if "main" not in names or METADATA_FUNCTION in names:
        return mod
    main = mod[names["main"]]
    record = {
        "version": METADATA_VERSION,
        "tvm": tvm.__version__,
        "tvm_byoc_dnnl": own_version(),
        "inputs": [asdict(i) for i in inputs_of(main)],
        "outputs": [asdict(o) for o in outputs_of(main)],
        "unaligned": unaligned_inputs(mod, main),
        "log": [asdict(e) for e in read_log(mod)],
    }
    own = {METADATA_FUNCTION: json.dumps(record).encode()}
    if external_modules(mod):
        own[PROGRAM_FUNCTION] = program_of(mod, main)
    if REPORT_FUNCTION not in names and (account := _account(regions)):
        own[REPORT_FUNCTION] = account
    return _with_data(mod, own)


def attach_kernels(mod: tvm.IRModule, kernels: Kernels) -> tvm.IRModule:
    return _with_data(mod, {KERNELS_FUNCTION: json.dumps(kernels, separators=(",", ":")).encode()}) if kernels else mod


def _with_data(mod: tvm.IRModule, functions: Mapping[str, bytes]) -> tvm.IRModule:
    bb = relax.BlockBuilder(mod)
    for name, data in functions.items():
        with bb.function(name, []):
            bb.emit_func_output(make_constant(np.frombuffer(data, dtype="uint8")))
    return bb.finalize()


def _account(regions: tvm.IRModule) -> bytes:
    try:
        asked = [fact.compiler for fact in read_facts(regions) if fact.stage == ASKED]
        return to_bytes(account_of(regions, asked, with_primitives=False))
    except Exception:  # a model without its account is better than none
        _logger.warning("the compiled model will not say what runs where", exc_info=True)
        return b""


def _data(vm: relax.VirtualMachine, function: str) -> bytes:
    """What a function of a model says of it; empty where it has none."""
    return vm[function]().numpy().tobytes() if vm.module.implements_function(function) else b""


def read_account(module: tvm.runtime.Module) -> ReportData | None:
    """Who runs which call of a compiled model; ``None`` where it does not say, `ArtifactError` for another version."""
    data = _data(relax.VirtualMachine(module, tvm.cpu()), REPORT_FUNCTION)
    return from_bytes(data) if data else None


def read_kernels(vm: relax.VirtualMachine) -> Kernels:
    """Kernel of TVM's → for each use the names of its calls; empty where the model does not say."""
    return json.loads(_data(vm, KERNELS_FUNCTION) or b"{}")


def read_metadata(vm: relax.VirtualMachine) -> dict[str, Any] | None:
    """The description inside a compiled model; ``None`` without one, `ArtifactError` for another version."""
    data = _data(vm, METADATA_FUNCTION)
    if not data:
        return None
    record = json.loads(data)
    if record.get("version") != METADATA_VERSION:
        raise ArtifactError(
            f"the model's description has version {record.get('version')} (written by tvm-byoc-dnnl "
            f"{record.get('tvm_byoc_dnnl', 'of unknown version')}), expected {METADATA_VERSION}: use the version of "
            "tvm-byoc-dnnl that built the model, or build it again"
        )
    return record
