"""Data that a compiled model contains about itself: inputs, outputs, versions, and the compiler of each call; which
inputs may lie at any address; and how it calls its regions.

Stored as Relax functions that return bytes in a tensor, so that it survives ``export_library`` with nothing but TVM's
VM. The account of the calls is a function of its own, which only a report calls. To write it takes as long as a
twelfth of compiling a small network, so that waits until somebody asks, or exports the model.

TVM's generated code assumes 64 bytes of a tensor's first byte, which NumPy's arrays seldom have; they must be copied.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from .._version import __version__
from ..calls.account import account_of
from ..calls.model import ReportData, from_bytes, to_bytes
from ..core import _native
from ..core.errors import ArtifactError
from ..core.ledger import ASKED, read_facts, read_log
from ..ir.relax_utils import bindings_of, external_modules
from ..ir.signature import inputs_of, outputs_of
from ..ir.tvm_compat import make_constant
from .kernels import Kernels
from .program import PROGRAM_FUNCTION, program_of
from .weights import LateTensors


def unaligned_inputs(mod: tvm.IRModule, function: relax.Function) -> list[int]:
    """Positions of those inputs.

    Parameters
    ----------
    mod : IRModule
        The module, its regions built.
    function : Function
        The model's function.
    """
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


_logger = logging.getLogger("tvm_byoc_dnnl")

METADATA_FUNCTION = "byoc_metadata"
METADATA_VERSION = 1
REPORT_FUNCTION = "byoc_report"
KERNELS_FUNCTION = "byoc_kernels"
_LATE = "{}_data"


def attach_metadata(
    mod: tvm.IRModule, regions: tvm.IRModule, entry: str = "main", *, account_is_late: bool = False
) -> tuple[tvm.IRModule, LateTensors]:
    """Add functions that describe ``entry``; without ``entry`` the module stays as it is.

    Parameters
    ----------
    mod : IRModule
        The module, its regions built.
    regions : IRModule
        The same module with its regions as functions.
    entry : str
        Name of the model's function.
    account_is_late : bool
        Do not write the account yet.

    Returns
    -------
    mod : IRModule
        With these functions.
    late : mapping
        For `OwnWeights`: makes the account, if it is late. It keeps ``regions`` alive until then.
    """
    names = {gv.name_hint: gv for gv in mod.get_global_vars()}
    if entry not in names or METADATA_FUNCTION in names:
        return mod, {}
    record = {
        "version": METADATA_VERSION,
        "tvm": tvm.__version__,
        "tvm_byoc_dnnl": __version__,
        "inputs": [asdict(i) for i in inputs_of(mod[names[entry]])],
        "outputs": [asdict(o) for o in outputs_of(mod[names[entry]])],
        "unaligned": unaligned_inputs(mod, mod[names[entry]]),
        "log": [asdict(e) for e in read_log(mod)],
    }
    own = {METADATA_FUNCTION: json.dumps(record).encode()}
    if entry == "main" and _native.regions(external_modules(mod)):
        own[PROGRAM_FUNCTION] = program_of(mod, mod[names[entry]])
    mod = _with_data(mod, own)
    if REPORT_FUNCTION in names:
        return mod, {}
    if account_is_late:
        return _with_late(mod, REPORT_FUNCTION), {_LATE.format(REPORT_FUNCTION): partial(_account_tensor, regions)}
    data = _account(regions)
    return _with_data(mod, {REPORT_FUNCTION: data}) if data else mod, {}


def attach_kernels(mod: tvm.IRModule, kernels: Kernels) -> tvm.IRModule:
    """Add a function that says which calls TVM's kernels run, if there are any."""
    return _with_data(mod, {KERNELS_FUNCTION: json.dumps(kernels, separators=(",", ":")).encode()}) if kernels else mod


def _with_data(mod: tvm.IRModule, functions: Mapping[str, bytes]) -> tvm.IRModule:
    """The module with functions that return bytes."""
    bb = relax.BlockBuilder(mod)
    for name, data in functions.items():
        with bb.function(name, []):
            bb.emit_func_output(make_constant(np.frombuffer(data, dtype="uint8")))
    return bb.finalize()


def _with_late(mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """The module with a function that returns a late tensor of bytes."""
    bb = relax.BlockBuilder(mod)
    with bb.function(name, []):
        ty = relax.TensorType(ndim=1, dtype="uint8")
        bb.emit_func_output(bb.emit(relax.op.call_pure_packed(_LATE.format(name), ty_args=ty)))
    return bb.finalize()


def _account_tensor(regions: tvm.IRModule) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.frombuffer(_account(regions), dtype="uint8"))


def _account(regions: tvm.IRModule) -> bytes:
    try:
        asked = [fact.compiler for fact in read_facts(regions) if fact.stage == ASKED]
        return to_bytes(account_of(regions, asked, with_primitives=False))
    except Exception:  # a model without its account is better than none
        _logger.warning("the compiled model will not say what runs where", exc_info=True)
        return b""


def read_account(module: tvm.runtime.Module) -> ReportData | None:
    """The account of a compiled model: who runs which call; ``None`` where the model does not say.

    Raises
    ------
    ArtifactError
        If it is of another version.
    """
    vm = relax.VirtualMachine(module, tvm.cpu())
    if not vm.module.implements_function(REPORT_FUNCTION):
        return None
    data = vm[REPORT_FUNCTION]().numpy().tobytes()
    return from_bytes(data) if data else None


def read_kernels(vm: relax.VirtualMachine) -> Kernels:
    """Kernel of TVM's → for each use the names of its calls; empty where the model does not say."""
    if not vm.module.implements_function(KERNELS_FUNCTION):
        return {}
    kernels: Kernels = json.loads(bytes(vm[KERNELS_FUNCTION]().numpy()))
    return kernels


def read_metadata(vm: relax.VirtualMachine) -> dict[str, Any] | None:
    """The description inside a compiled model, ``None`` when it has none (it was built without our pipeline).

    Raises
    ------
    ArtifactError
        If it is of another version.
    """
    if not vm.module.implements_function(METADATA_FUNCTION):
        return None
    record = json.loads(bytes(vm[METADATA_FUNCTION]().numpy()))
    if record.get("version") != METADATA_VERSION:
        raise ArtifactError(
            f"the model's description has version {record.get('version')} (written by tvm-byoc-dnnl "
            f"{record.get('tvm_byoc_dnnl', 'of unknown version')}), expected {METADATA_VERSION}: use the version of "
            "tvm-byoc-dnnl that built the model, or build it again"
        )
    return record
