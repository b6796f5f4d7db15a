"""new-backend: a package for a vendor to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from .common import check_outputs, say


@click.command("new-backend")
@click.argument("name")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), help="Folder to write; NAME by default.")
def new_backend(name: str, folder: Path | None) -> None:
    """Write a package with the backend NAME: ten operators, two patterns, their code, tests and a CI workflow.

    \b
      tvm-byoc new-backend my_npu
      cd my_npu && pip install -e '.[test]' && pytest
      python -m tvm_byoc_dnnl.testing my_npu
    """
    from ..vendors.new_backend import new_backend as write

    folder = folder or Path(name)
    check_outputs(folder=folder)
    for file in write(name, folder):
        click.echo(file)
    say(f"next: cd {folder} && pip install -e '.[test]' && pytest && python -m tvm_byoc_dnnl.testing {name}")
