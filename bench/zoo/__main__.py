"""Measure models of the zoo: ``python -m bench.zoo [MODEL ...] [--page FILE.md]``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from tvm_byoc_dnnl.core.errors import InputError

from . import ZOO, ZooModel, page, zoo_model
from .measure import FORMS, Result, measure

_SECONDS = 1800  # no model takes a quarter of this, on a busy machine either


def _apart(entry: ZooModel, form: str) -> Result:
    """One measurement in a process of its own: the next begins with empty memory."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, entry.name, "--form", form, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_SECONDS)
    if done.returncode:
        raise click.ClickException(f"measuring `{entry.name}` as {form} failed with status {done.returncode}")
    return page.from_dict(json.loads(done.stdout.splitlines()[-1]))


@click.command()
@click.argument("models", nargs=-1)
@click.option("--form", "forms", multiple=True, type=click.Choice(FORMS), help="Only in this form.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON per model and form, measured in this process.")
@click.option("--page", "page_file", type=click.Path(path_type=Path), help="Write this page, and the JSON beside it.")
def main(models: tuple[str, ...], forms: tuple[str, ...], as_json: bool, page_file: Path | None) -> None:
    """Measure MODELS, or all that are installed."""
    try:
        entries = [zoo_model(name) for name in models] or list(ZOO.values())
    except InputError as error:
        raise click.UsageError(str(error)) from error
    for form in forms or FORMS:
        for entry in entries:
            if entry.is_file and form != FORMS[0]:
                continue
            if entry.missing():
                click.echo(f"{entry.name}: skipped, needs {entry.missing()}", err=True)
                continue
            if as_json:
                click.echo(json.dumps(page.to_dict(measure(entry, form))))
                continue
            result = _apart(entry, form)
            click.echo(_line(result))
            if page_file is not None:
                data = page_file.with_suffix(".json")
                page.save(data, [result])
                page_file.write_text(page.render(page.load(data)))


def _line(r: Result) -> str:
    if r.refusal:
        return f"{r.name} ({r.form}): not imported: {r.refusal}"
    return (
        f"{r.name} ({r.form}): error {r.error:.0e}, {r.offloaded_calls} of {r.calls} calls, "
        f"{r.flops_share:.2%} of FLOPs, {r.regions} regions"
    )


if __name__ == "__main__":
    main(prog_name="python -m bench.zoo")
