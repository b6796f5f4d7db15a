"""explain, inputs, lock, check, diff, ops and doctor: commands that look at something and change nothing."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..api import DEFAULT_COMPILER
from ..core.errors import InputError, first_line
from ..core.files import read_text, write_text
from ..core.machine import progress
from ..core.tensor_info import TensorInfo, shape_options
from ..partitioning.report_data import ReportData, from_record
from ..pipeline.executable import is_library
from ..vendors.namespaces import ARGUMENTS, namespace
from .common import (
    AS_JSON,
    EXISTING_FILE,
    FORMAT,
    NEW_FILE,
    PLACE,
    Build,
    ModelFile,
    announce,
    check_outputs,
    model_options,
    precision_options,
    registered,
    say,
)

if TYPE_CHECKING:
    from ..report import Report

_WIDTH = 110


def _explained(build: Build, **how: Any) -> Report:
    from ..report import explain

    with progress(f"partitioning {build.model.name}"):
        report = explain(build.model.load(), build.compiler, **build.settings, **how)
    report.model = build.model.name
    return report


@click.command(short_help="Show which call runs where, and why the others stay with TVM.")
@model_options
@click.option("--html", "html_file", type=NEW_FILE, help="Write a page with the graph drawn; reasons on hover.")
@AS_JSON
@click.option("--all", "every_call", is_flag=True, help="List every call, not only those that stay with TVM.")
@click.option("--database", type=EXISTING_FILE, help="Show the times that `tvm-byoc tune` has measured.")
@click.option("--dry-run", is_flag=True, help="Run no compiler of a vendor's, which may take long.")
@PLACE
@precision_options
@FORMAT
def explain(
    build: Build, html_file: Path | None, as_json: bool, every_call: bool, output_format: str, **how: Any
) -> None:
    """Show which call of MODEL, an .onnx file or a compiled library, runs where, and why the others stay with TVM.

    Nothing is compiled.

    \b
      tvm-byoc explain model.onnx
      tvm-byoc explain model.so                        shows what its build has noted
      tvm-byoc explain model.onnx --html model.html
      tvm-byoc explain model.onnx --format source       also lists regions that cannot be source
      tvm-byoc explain model.onnx --json | jq '.calls[] | select(.compiler == null) | .reasons'
    """
    check_outputs(html_file)
    report = _explained(build, output=output_format, **how)
    if html_file is not None:
        with progress(f"drawing {len(report.calls)} calls"):
            report.to_html(html_file)
        say(f"wrote {html_file}")
    if as_json:
        click.echo(report.to_json())
        return
    is_terminal = sys.stdout.isatty()
    width = min(os.get_terminal_size().columns, 160) if is_terminal else _WIDTH
    click.echo(report.to_text(width=width, color=is_terminal, every_call=every_call), nl=False, color=is_terminal)


@click.command(short_help="Check this machine: versions, library, threads, conflicts.")
@AS_JSON
def doctor(as_json: bool) -> int:
    """Check this machine: versions, libraries, instructions, threads, OpenMP runtimes, conflicts.

    Exit status 1 means that something is broken; warnings alone give 0.
    """
    from ..report.doctor import FAILURE, OK, examine

    with progress("looking around"):
        findings = examine()
    if as_json:
        click.echo(json.dumps([asdict(f) for f in findings], indent=1))
    else:
        marks = {OK: click.style("ok", fg="green"), FAILURE: click.style("!!", fg="red", bold=True)}
        section = ""
        for finding in findings:
            if finding.section != section:
                section = finding.section
                click.secho(section, bold=True)
            mark = marks.get(finding.status, click.style("? ", fg="yellow", bold=True))
            click.echo(f"  {mark} {finding.name:<18} {finding.value}")
            if finding.fix:
                click.echo(f"     {'':<18} → {finding.fix}")
    return int(any(f.status == FAILURE for f in findings))


@click.command(short_help="List the operators that a compiler may take.")
@click.argument("compiler", default=DEFAULT_COMPILER)
@AS_JSON
def ops(compiler: str, as_json: bool) -> None:
    """List the operators and patterns that COMPILER may take, how, and in which dtypes.

    \b
      tvm-byoc ops
      tvm-byoc ops my_npu

    Each call is decided with its own shapes and attributes; `tvm-byoc explain` shows the result for a model.
    """
    from ..testing.conformance.report import support_of

    rows = support_of(namespace(registered([compiler])[0]))
    fields = ("name", "how", "dtypes", "notes")
    if as_json:
        click.echo(json.dumps([{f: getattr(row, f) for f in fields} for row in rows], indent=1))
        return
    table = [(row.name, row.how, " ".join(row.dtypes), row.notes) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        click.echo("  ".join(f"{text:<{width}}" for text, width in zip(cells, widths, strict=True)).rstrip())


@click.command(short_help="Write which call runs where to a file, for `check`.")
@model_options
@click.option("-o", "--output", type=NEW_FILE, help="The lock file.  [default: MODEL.lock]")
@precision_options
@AS_JSON
def lock(build: Build, output: Path | None, as_json: bool) -> None:
    """Write a file that says which call of MODEL runs where, for `tvm-byoc check`.

    \b
      tvm-byoc lock model.onnx            writes model.onnx.lock; commit it
      tvm-byoc check model.onnx           in CI: fails when a call is no longer offloaded
    """
    from ..report.lock import make_lock

    path, settings = output or _lock_of(build.model.path), build.settings
    check_outputs(path)
    precision = {name: settings[name] for name in ARGUMENTS}
    written = make_lock(_explained(build), settings["shapes"], settings["policy"], build.model.values, precision)
    write_text(path, written.to_text())
    say(written.comment)
    announce(path, as_json)


@click.command(short_help="List a model's inputs and outputs, and what it is made of.")
@click.argument("model", type=EXISTING_FILE)
@AS_JSON
def inputs(model: Path, as_json: bool) -> None:
    """List the inputs and outputs of MODEL, or of a compiled library: name, dtype and shape; of an .onnx file also its
    opset, operators and weights.

    \b
      tvm-byoc inputs model.onnx
      tvm-byoc inputs model.so

    Dims with a name are open: `--shape` fixes them. For an input that decides shapes or axes, give the
    value when you compile: `--value`.
    """
    found = _signature(model) if is_library(model) or model.suffix == ".pt2" else _of_file(model)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    rows = [_Row(side=side, **row) for side in ("inputs", "outputs") for row in found[side]]
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        decides = "  decides what is compiled" if row.decides else ""
        click.echo(f"{row.side[:-1]:<7} {row.name:<{width}}  {row.type_text}{decides}")
    if "opset" not in found:
        return
    for title, numbers in (("opset", found["opset"]), ("nodes", found["nodes"])):
        click.echo(f"{title:<7} " + ", ".join(f"{name or 'ai.onnx'} {n}" for name, n in numbers.items()))
    click.echo(f"weights {found['weights']['bytes'] / 1e6:.1f} MB in {found['weights']['tensors']} tensors")
    given = [row for row in rows if row.side == "inputs"]
    options = [shape_options([row for row in given if not row.decides])]
    options += [f"--value {row.name}=NUMBERS" for row in given if row.decides]
    if any(options):
        say(f"to fix them: tvm-byoc explain {model} {' '.join(filter(None, options))}")


@dataclass(frozen=True)
class _Row(TensorInfo):
    """A line of `inputs`."""

    side: str = ""
    decides: bool = False


def _signature(model: Path) -> dict[str, Any]:
    if is_library(model):
        from ..runtime.runner import described

        runner = described(model)
        sides: Any = runner.inputs, runner.outputs
    else:
        from ..frontends import to_relax
        from ..ir.relax_utils import inputs_of, outputs_of

        main = to_relax(model)["main"]
        sides = inputs_of(main), outputs_of(main)
    return {name: list(map(asdict, side)) for name, side in zip(("inputs", "outputs"), sides)}


def _of_file(model: Path) -> dict[str, Any]:
    from ..frontends.onnx.importer import load_onnx, refuse_empty
    from ..frontends.onnx.inputs import contents, deciding_inputs, described, model_inputs

    proto = load_onnx(model)
    refuse_empty(proto)
    deciding = deciding_inputs(proto)
    return {
        "inputs": [{**asdict(row), "decides": row.name in deciding} for row in model_inputs(proto)],
        "outputs": [asdict(described(value)) for value in proto.graph.output],
        **contents(proto),
    }


def _lock_of(model: Path) -> Path:
    return model.with_name(model.name + ".lock")


@click.command(short_help="Compare where the calls of two models, libraries or reports run.")
@click.argument("before", type=EXISTING_FILE)
@click.argument("after", type=EXISTING_FILE)
@AS_JSON
def diff(before: Path, after: Path, as_json: bool) -> int:
    """Compare where the calls of BEFORE and AFTER run; exit status 1 where that differs.

    \b
      tvm-byoc diff old.so new.so
      tvm-byoc explain model.onnx --precision bfloat16 --json > new.json && tvm-byoc diff model.onnx new.json

    Each is a model, which is explained with the default options, a compiled library, or a file of `explain --json`.
    """
    from ..report.lock import compare, make_lock
    from ..report.text import count

    old, new = map(_report_of, (before, after))
    drift = compare(make_lock(old), new)
    text = drift.to_text() if drift else "every call runs where it did"
    click.echo(json.dumps(asdict(drift)) if as_json else text)
    for path, totals in ((before, old.totals), (after, new.totals)):
        regions = count(totals.regions, "region")
        say(f"{path.name}: {totals.offloaded_calls} of {totals.calls} calls offloaded, in {regions}")
    return int(bool(drift))


def _report_of(path: Path) -> ReportData:
    if path.suffix != ".json":
        from ..report import explain as ask

        return ask(str(path))
    try:
        return from_record(json.loads(read_text(path, "a file that `tvm-byoc explain --json` has written")))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else first_line(error)
        raise InputError(f"{path} is no file that `tvm-byoc explain --json` has written: {why}") from error


@click.command(short_help="Fail when a call runs elsewhere than the lock file says.")
@click.argument("model", type=EXISTING_FILE)
@click.option("--lock", "lock_file", type=EXISTING_FILE, help="The lock file.  [default: MODEL.lock]")
@click.option("--exact", is_flag=True, help="Fail on every difference, also on calls that are offloaded now.")
@AS_JSON
def check(model: Path, lock_file: Path | None, exact: bool, as_json: bool) -> int:
    """Fail when a call of MODEL runs elsewhere than its lock file says.

    Compilers, shapes, policy and precision are those of the lock file. Calls that a compiler now takes in addition, or
    that the model no longer has, are only mentioned: write the lock again to keep them.
    """
    from ..report.lock import Lock, compare

    path = lock_file or _lock_of(model)
    if not path.exists():
        raise InputError(f"{path} does not exist; write it with `tvm-byoc lock {model}`")
    locked = Lock.from_text(read_text(path, "a file that `tvm-byoc lock` has written"))
    source = ModelFile(model, locked.values)
    settings = {"shapes": locked.shapes or None, "policy": locked.policy, **locked.precision}
    drift = compare(locked, _explained(Build(source, registered(locked.compilers), settings)))
    if as_json or drift:
        click.echo(json.dumps(asdict(drift)) if as_json else drift.to_text())
    if drift.lost or (drift and exact):
        say(f"{path} was written with: {locked.comment}; if the change is wanted: tvm-byoc lock {model}")
        return 1
    say(f"{model.name} runs where {path.name} says" + (", or better" if drift else ""))
    return 0
