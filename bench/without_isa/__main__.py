"""Run a command as on a CPU without AVX-512 and AMX, or without AMX only: every engine, and our C++ tests.

``ONEDNN_MAX_CPU_ISA`` limits oneDNN and our kernels, but no other engine. All of them ask the CPU by the instruction
CPUID, and each place of it in the libraries of this environment, and in what was compiled from these sources, is made
to answer without these instructions: see cpuid.c.

    python -m bench.without_isa amx make test
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from . import HIDDEN, SETS, environment, has, is_loadable


def _libraries() -> Iterator[Path]:
    """Every library of this environment, and every library and program of this package's sources."""
    for folder, names in ((Path(sys.prefix), "*.so*"), (Path("tvm_byoc_dnnl"), "*.so*"), (Path("build"), "*")):
        for path in folder.rglob(names):
            if path.is_file() and is_loadable(path):
                yield path


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}, help=__doc__)
@click.option("--unless-absent", is_flag=True, help="Do nothing on a CPU that lacks these instructions anyway.")
@click.argument("hidden", type=click.Choice(list(SETS)))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(hidden: str, command: tuple[str, ...], unless_absent: bool) -> None:
    """Become the command, with the variables that hide the instructions."""
    if unless_absent and not has(hidden):
        click.echo(f"skipped: this CPU has no {hidden} to hide, so that the run would be the same as without hiding")
        return
    if HIDDEN in os.environ:
        raise click.UsageError(f"{os.environ[HIDDEN]} is hidden already; only one set can be hidden")
    os.environ |= environment(hidden, _libraries(), Path("build") / "without_isa")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(prog_name="python -m bench.without_isa")
