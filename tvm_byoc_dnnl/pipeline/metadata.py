"""Data that a compiled model contains about itself: inputs, outputs, versions, calls that were not offloaded as asked.

Stored as a Relax function that returns JSON in a byte tensor, so that it survives ``export_library`` with nothing
but TVM's VM.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import tvm
from tvm import relax

from .._compat import make_constant
from .._version import __version__
from ..errors import ArtifactError
from ..log import read_log
from ..signature import inputs_of, outputs_of

__all__ = ["METADATA_FUNCTION", "attach_metadata", "read_metadata"]

METADATA_FUNCTION = "byoc_metadata"
METADATA_VERSION = 1


def attach_metadata(mod: tvm.IRModule, entry: str = "main") -> tvm.IRModule:
    """Add the function `METADATA_FUNCTION` that describes ``entry``; without ``entry`` the module stays as it is."""
    names = {gv.name_hint: gv for gv in mod.get_global_vars()}
    if entry not in names or METADATA_FUNCTION in names:
        return mod
    record = {
        "version": METADATA_VERSION,
        "tvm": tvm.__version__,
        "tvm_byoc_dnnl": __version__,
        "inputs": [asdict(i) for i in inputs_of(mod[names[entry]])],
        "outputs": [asdict(o) for o in outputs_of(mod[names[entry]])],
        "log": [asdict(e) for e in read_log(mod)],
    }
    data = np.frombuffer(json.dumps(record).encode(), dtype="uint8")
    bb = relax.BlockBuilder(mod)
    with bb.function(METADATA_FUNCTION, []):
        bb.emit_func_output(make_constant(data))
    return bb.finalize()


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
