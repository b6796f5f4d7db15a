"""A .tflite model, compiled by Vela, and what Vela expects of it."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from ai_edge_litert import schema_py_generated as schema
from ethosu.vela import vela
from ethosu.vela.errors import VelaError

import tvm_byoc_dnnl as byoc

__all__ = ["Compiled", "compiled"]

_LOCK = threading.Lock()  # Vela prints, and keeps settings in globals


@dataclass(frozen=True)
class Compiled:
    """What Vela made: the model, its estimates for one run, and the operators that it leaves to the CPU."""

    model: bytes
    sram_bytes: int
    flash_bytes: int
    cycles: int
    seconds: float
    left: tuple[str, ...]

    def __str__(self) -> str:
        sizes = f"SRAM {self.sram_bytes / 1024:.1f} KiB, flash {self.flash_bytes / 1024:.1f} KiB"
        return f"{sizes}, {self.cycles} cycles, {1e3 * self.seconds:.3f} ms by Vela's estimate"


@functools.lru_cache(maxsize=256)
def compiled(model: bytes, accelerator: str, sram: int = 0) -> Compiled:
    """Compile a model for an accelerator, such as ``ethos-u55-128``, and for so many bytes of SRAM, if not 0."""
    said = io.StringIO()
    with _LOCK, tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "region.tflite"
        source.write_bytes(model)
        arguments = [str(source), "--output-dir", folder, "--accelerator-config", accelerator]
        arguments += ["--arena-cache-size", str(sram)] if sram else []
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                vela.main(arguments)
        except (VelaError, SystemExit, RuntimeError, ValueError) as error:
            raise byoc.Reject(f"Vela: {error}; {' '.join(said.getvalue().split())[-200:]}") from error
        (summary,) = Path(folder).glob("region_summary_*.csv")
        row = next(csv.DictReader(summary.read_text().splitlines()))
        made = (Path(folder) / "region_vela.tflite").read_bytes()
    memory = {name: float(row[f"{name}_memory_used"]) for name in ("sram", "on_chip_flash", "off_chip_flash")}
    flash = memory["on_chip_flash"] + memory["off_chip_flash"]
    return Compiled(
        made,
        round(1024 * memory["sram"]),
        round(1024 * flash),
        int(float(row["cycles_total"])),
        float(row["inference_time"]),
        _left(made),
    )


def _left(model: bytes) -> tuple[str, ...]:
    """The operators beside the one that the NPU runs."""
    codes = schema.ModelT.InitFromPackedBuf(model, 0).operatorCodes
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
    return tuple(names[c.builtinCode] for c in codes if c.customCode != b"ethos-u")
