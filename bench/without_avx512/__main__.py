"""Run a command as on a CPU with AVX2 only, every engine in it: ``python -m bench.without_avx512 COMMAND [ARG ...]``.

``ONEDNN_MAX_CPU_ISA`` limits oneDNN and our kernels, but no other engine. All of them ask the CPU by the instruction
CPUID, and each place of it in the libraries of this environment is made to answer without AVX-512 and AMX: see cpuid.c.
To find the places takes some minutes for the first time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from . import environment


def _libraries() -> Iterator[Path]:
    """Every library of this environment, and of this package's sources."""
    for folder in (Path(sys.prefix), Path("tvm_byoc_dnnl")):
        for path in folder.rglob("*.so*"):
            if path.is_file():
                with path.open("rb") as file:
                    if file.read(4) == b"\x7fELF":
                        yield path


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}, help=__doc__)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(command: tuple[str, ...]) -> None:
    """Become the command, with the variables that hide AVX-512."""
    os.environ |= environment(_libraries(), Path("build") / "without_avx512")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(prog_name="python -m bench.without_avx512")
