"""Which groups are taken, the code of a region, and Vela's estimates as limits, notes and costs.

A host has no NPU. There LiteRT's reference kernels compute a region from the model that Vela has compiled: they define
the integers that an Ethos-U computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm_byoc_litert.region import model_of, runner

import tvm_byoc_dnnl as byoc

from .vela import Compiled, compiled

__all__ = ["OPTIONS", "check", "check_group", "codegen", "cost", "fits", "load", "notes"]

#: options of the namespace: the NPU, its SRAM in bytes (0 for as much as Vela wants), and a folder for its models
OPTIONS = {"accelerator": "ethos-u55-128", "sram": 0, "folder": ""}


def check_group(group: Any) -> bool | byoc.Reject:
    """Whether the NPU computes all of a quantised group: what Vela says of the group as a model."""
    left = compiled(model_of(group, is_tried=True), str(OPTIONS["accelerator"])).left
    return not left or byoc.Reject(f"Vela leaves {', '.join(left)} to the CPU")


def _of_region(region: Any, options: Mapping[str, Any] | None) -> Compiled:
    chosen = {**OPTIONS, **(options or {})}
    return compiled(model_of(region), str(chosen["accelerator"]), int(chosen["sram"]))


def fits(region: Any, options: Mapping[str, Any]) -> bool | byoc.Reject:
    """Whether the NPU has room for a region."""
    if not options["sram"]:
        return True
    need = _of_region(region, options).sram_bytes
    return need <= options["sram"] or byoc.Reject(f"{need} bytes of SRAM; the device has {options['sram']}")


def notes(region: Any, options: Mapping[str, Any]) -> str:
    """What Vela expects of a region."""
    return f"{options['accelerator']}: {_of_region(region, options)}"


def cost(mod: tvm.IRModule) -> float:
    """Seconds of the region that a module calls."""
    (region,) = (f for f in mod.functions.values() if f.attrs and f.attrs.get("Codegen") == "ethosu")
    return _of_region(region, None).seconds


def codegen(
    functions: Sequence[Any], options: Mapping[str, Any] | None, constant_names: Mapping[Any, str]
) -> list[tvm.runtime.Module]:
    """A module of each region: what Vela made for the device, and for the host what it was made from."""
    modules, folder = [], str((options or {}).get("folder", ""))
    for function in functions:
        model = model_of(function)
        made, symbol = _of_region(function, options), str(function.attrs["global_symbol"])
        if made.left:
            raise byoc.Reject(f"Vela leaves {', '.join(made.left)} to the CPU")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{symbol}.tflite").write_bytes(made.model)
        header = f"{len(model)}\n".encode()
        modules.append(byoc.blob_module("ethosu", symbol, header + model + made.model, ""))
    return modules


def check(compatibility: str) -> bool:
    """Any host can compute a region."""
    return True


def load(data: bytes) -> Callable[..., None]:
    """``run(*arguments, *results)`` of a blob, by LiteRT's reference kernels."""
    header, _, models = data.partition(b"\n")
    return runner(models[: int(header)], "reference")
