"""The command line: ``tvm-byoc``, and ``python -m tvm_byoc_dnnl``.

Results go to standard output, everything else to standard error. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .api import DEFAULT_COMPILER
from .errors import ArtifactError, ByocError, InputError, UnsupportedError

if TYPE_CHECKING:
    from .report import Report

__all__ = ["cli", "main"]

Shapes = dict[str, tuple[int, ...]]
_F = TypeVar("_F", bound=Callable[..., Any])

_WIDTH = 110
_BAD_INPUT = (InputError, ArtifactError, UnsupportedError)
_DEBUG = "TVM_BYOC_DEBUG"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed or something to be looked at, 2 bad input."""
    status = 0
    try:
        status = cli.main(arguments, prog_name="tvm-byoc", standalone_mode=False)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        _fail(error.format_message() + (f" ({context.command_path} --help)" if context else ""), 2)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get(_DEBUG):
            raise
        if isinstance(error, ByocError):
            _fail(str(error), 2 if isinstance(error, _BAD_INPUT) else 1)
        _fail(f"{type(error).__name__}: {error}".splitlines()[0] + f"; {_DEBUG}=1 shows where", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> None:
    text = " ".join(message.splitlines()) if message.count("\n") < 2 else message
    click.echo(f"tvm-byoc: {text}", err=True)
    sys.exit(status)


def _say(message: str) -> None:
    click.echo(message, err=True)


@contextlib.contextmanager
def _progress(message: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; the value changes the message."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield lambda message: None
        return
    with console.status(message) as status:
        yield status.update


# ---------------------------------------------------------------- parameters that several commands have
def _compilers(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    return _registered(n.strip() for n in value.split(",") if n.strip())


def _registered(names: Iterable[str]) -> list[str]:
    from .registry import compilers

    wanted = list(names)
    for name in wanted:
        if name not in compilers():
            raise InputError(f"unknown compiler {name!r}; registered: {', '.join(compilers())}")
    return wanted


def _shapes(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> Shapes:
    shapes: Shapes = {}
    for value in values:
        name, separator, dims = value.rpartition("=")
        try:
            shapes[name] = tuple(int(d) for d in dims.split(",") if d.strip())
        except ValueError:
            separator = ""
        if not separator or not name or min(shapes[name], default=1) < 1:
            raise click.BadParameter(f"got {value!r}; expected NAME=DIM,DIM,… as in data=1,3,224,224")
    return shapes


_PATH = click.Path(dir_okay=False, path_type=Path)
_EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


def _model_options(command: _F) -> _F:
    """MODEL, and how to read and partition it."""
    for decorate in (
        click.option(
            "--shape", "shapes", multiple=True, callback=_shapes, metavar="NAME=DIMS",
            help="Fix an input's shape, as in data=1,3,224,224. May be repeated.",
        ),
        click.option(
            "--compiler", default=DEFAULT_COMPILER, show_default=True, callback=_compilers, metavar="NAMES",
            help="Who may take calls, in order of priority, separated by commas.",
        ),
        click.argument("model", type=_EXISTING),
    ):  # fmt: skip
        command = decorate(command)
    return command


_EPILOG = (
    "Exit status: 0 done, 1 failed or (check, doctor) something to look at, 2 bad input. "
    f"{_DEBUG}=1 shows where an error was raised."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.version_option(package_name="tvm-byoc-dnnl", message="%(package)s %(version)s")
def cli() -> None:
    """Run ONNX models on TVM with a vendor's library: compile, run, measure, and see what runs where and why.

    \b
      tvm-byoc explain model.onnx                     what goes to the library, and why the rest does not
      tvm-byoc compile model.onnx -o model.so         one file that TVM alone can load
      tvm-byoc run model.so --inputs in.npz -o out.npz
      tvm-byoc bench model.onnx --peers onnxruntime   side by side, each in a process of its own
      tvm-byoc doctor                                 is this machine set up well?

    A command's --help has examples.
    """


@cli.command(short_help="Compile a model into one shared library.")
@_model_options
@click.option("-o", "--output", type=_PATH, required=True, help="The library to write, such as model.so.")
@click.option("--target", default="llvm", show_default=True, help="TVM's target for what stays with TVM.")
@click.option("--strict", is_flag=True, help="Fail where an accepted call cannot be offloaded in the end.")
def compile(model: Path, compiler: list[str], shapes: Shapes, output: Path, target: str, strict: bool) -> None:
    """Compile MODEL into one shared library.

    \b
      tvm-byoc compile resnet50.onnx -o resnet50.so
      tvm-byoc compile bert.onnx --shape input_ids=1,128 --shape mask=1,128 -o bert.so

    The library loads with TVM's `tvm.runtime.load_module`, with `tvm_byoc_dnnl.load`, or with `tvm-byoc run`.
    """
    from . import api

    _check_folder(output)
    with _progress(f"compiling {model.name}") as show:
        executable = api.compile(str(model), compiler, shapes=shapes or None, target=target, strict=strict)
        show(f"linking {output.name}")
        executable.export_library(str(output))
    _say(f"{model.name}: {output.stat().st_size / 1e6:.1f} MB")
    click.echo(output)


def _check_folder(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.absolute().parent} does not exist; make it first")


@cli.command(short_help="Run a compiled library once.")
@click.argument("library", type=_EXISTING)
@click.option("--inputs", type=_EXISTING, required=True, help="A .npz with one array per input, or a .npy.")
@click.option("-o", "--output", type=_PATH, help="Write the outputs to this .npz: output_0, output_1 …")
def run(library: Path, inputs: Path, output: Path | None) -> None:
    """Run a compiled LIBRARY once.

    \b
      tvm-byoc run resnet50.so --inputs picture.npz -o scores.npz

    Arrays are matched with the model's inputs by their names; arrays without names (`numpy.savez(file, a, b)`, or a
    single .npy) by their order. Without -o, a line per output says what came out.
    """
    import numpy as np

    from .runner import load

    if output is not None:
        _check_folder(output)
    arrays = _read_arrays(inputs)
    with _progress(f"loading {library.name}") as show:
        runner = load(library)
        show("running")
        started = time.perf_counter()
        unnamed = [f"arr_{i}" for i in range(len(arrays))]
        result = runner(*arrays.values()) if list(arrays) == unnamed else runner(**arrays)
        seconds = time.perf_counter() - started
    outputs = {f"output_{i}": o for i, o in enumerate(result if isinstance(result, list) else [result])}
    _say(f"{1e3 * seconds:.1f} ms, the first run's preparation included")
    if output is not None:
        with output.open("wb") as file:
            np.savez(file, **outputs)
        click.echo(output)
        return
    for name, array in outputs.items():
        span = f"  min {array.min():.4g}  mean {array.mean():.4g}  max {array.max():.4g}" if array.size else ""
        click.echo(f"{name}  {array.dtype}[{', '.join(map(str, array.shape))}]{span}")


def _read_arrays(path: Path) -> dict[str, Any]:
    """Arrays by name; those without names are called arr_0, arr_1 … as NumPy does."""
    import numpy as np

    try:
        with path.open("rb") as file:
            if not file.read(6).startswith((b"PK", b"\x93NUMPY")):
                raise ValueError("it is no NumPy file")
        data = np.load(path, allow_pickle=False)
        return {"arr_0": data} if isinstance(data, np.ndarray) else {name: data[name] for name in data.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot read {path}: {reason}; expected a file of numpy.savez, or a .npy") from error


@cli.command(short_help="Measure models beside other engines.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL…")
@click.option("--peers", default="onnxruntime", show_default=True, help="Engines to compare with, by commas.")
@click.option("--threads", type=click.IntRange(1), help="Threads of each engine.  [default: all cores]")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True, help="Turns of each engine.")
@click.option("--json", "json_file", metavar="FILE", help="Write every sample to FILE; - is standard output.")
def bench(models: Sequence[str], peers: str, threads: int | None, rounds: int, json_file: str | None) -> int:
    """Measure each MODEL beside other engines, each in a process of its own, in turns.

    \b
      tvm-byoc bench model.onnx
      tvm-byoc bench model.onnx --peers onnxruntime,openvino,tvm --json result.json

    A MODEL is an .onnx file, or the name of a network inside the onnx package, such as resnet50. Peers that are not
    installed are left out with a note.
    """
    from .testing.bench import Settings, choose_engines, find_model
    from .testing.bench import run as measure

    found = [find_model(name) for name in models]
    engines = choose_engines(["byoc", *(p.strip() for p in peers.split(",") if p.strip())])
    settings = Settings(rounds=rounds) if threads is None else Settings(rounds=rounds, threads=threads)
    return int(any(c.failures for c in measure(found, engines, settings, json_file=json_file)))


def _explained(model: Path, compiler: list[str], shapes: Shapes) -> Report:
    from .report import explain

    with _progress(f"partitioning {model.name}"):
        return explain(str(model), compiler, shapes or None)


@cli.command(short_help="Say what runs where, and why the rest stays with TVM.")
@_model_options
@click.option("--html", "html_file", type=_PATH, help="Write a page with the graph drawn; reasons on hover.")
@click.option("--json", "json_file", metavar="FILE", help="Write the data; - is standard output instead of the text.")
@click.option("--all", "every_call", is_flag=True, help="List every call, not only those that stay with TVM.")
def explain(
    model: Path,
    compiler: list[str],
    shapes: Shapes,
    html_file: Path | None,
    json_file: str | None,
    every_call: bool,
) -> None:
    """Say what of MODEL runs where, and why the rest stays with TVM; nothing is compiled.

    \b
      tvm-byoc explain model.onnx
      tvm-byoc explain model.onnx --html model.html
      tvm-byoc explain model.onnx --json - | jq '.calls[] | select(.compiler == null) | .reasons'
    """
    for path in (html_file, Path(json_file) if json_file not in (None, "-") else None):
        if path is not None:
            _check_folder(path)
    report = _explained(model, compiler, shapes)
    if html_file is not None:
        report.to_html(html_file)
        _say(f"wrote {html_file}")
    if json_file == "-":
        click.echo(report.to_json())
        return
    if json_file is not None:
        Path(json_file).write_text(report.to_json() + "\n")
    is_terminal = sys.stdout.isatty()
    width = min(os.get_terminal_size().columns, 160) if is_terminal else _WIDTH
    click.echo(report.to_text(width=width, color=is_terminal, every_call=every_call), nl=False, color=is_terminal)


@cli.command(short_help="Look at this machine: versions, library, threads, conflicts.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> int:
    """Look at this machine: versions, the library and its oneDNN, instructions, threads, OpenMP runtimes, conflicts.

    Exit status 1 means that something is broken; warnings alone give 0.
    """
    import json

    from .doctor import FAILURE, OK, examine

    with _progress("looking around"):
        findings = examine()
    if as_json:
        click.echo(json.dumps([f.to_dict() for f in findings], indent=1))
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


@cli.command(short_help="List the operators that a compiler may take.")
@click.argument("compiler", default=DEFAULT_COMPILER)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def ops(compiler: str, as_json: bool) -> None:
    """List the operators and patterns that COMPILER may take, how, and in which dtypes.

    \b
      tvm-byoc ops
      tvm-byoc ops my_npu

    Each call is decided with its own shapes and attributes; `tvm-byoc explain` gives the verdict on a model's.
    """
    import json

    from .registry import namespace
    from .report.op_support import support_of

    rows = support_of(namespace(_registered([compiler])[0]))
    if as_json:
        fields = ("name", "how", "dtypes", "notes")
        click.echo(json.dumps([{f: getattr(row, f) for f in fields} for row in rows], indent=1))
        return
    widths = [max((len(text) for text in column), default=0) for column in zip(*_op_cells(rows), strict=True)]
    for cells in _op_cells(rows):
        click.echo("  ".join(f"{text:<{width}}" for text, width in zip(cells, widths, strict=True)).rstrip())


def _op_cells(rows: Iterable[Any]) -> list[tuple[str, ...]]:
    return [(row.name, row.how, " ".join(row.dtypes), row.notes) for row in rows]


@cli.command(short_help="Write down what runs where, for `check`.")
@_model_options
@click.option("-o", "--output", type=_PATH, help="The lock file.  [default: MODEL.lock]")
def lock(model: Path, compiler: list[str], shapes: Shapes, output: Path | None) -> None:
    """Write down what of MODEL runs where, for `tvm-byoc check`.

    \b
      tvm-byoc lock model.onnx            writes model.onnx.lock; commit it
      tvm-byoc check model.onnx           in CI: fails when a call is no longer offloaded
    """
    from .lock import make_lock

    path = output or _lock_of(model)
    _check_folder(path)
    written = make_lock(_explained(model, compiler, shapes), shapes)
    path.write_text(written.to_text())
    _say(written.comment)
    click.echo(path)


def _lock_of(model: Path) -> Path:
    return model.with_name(model.name + ".lock")


@cli.command(short_help="Fail when a call runs elsewhere than locked.")
@click.argument("model", type=_EXISTING)
@click.option("--lock", "lock_file", type=_EXISTING, help="The lock file.  [default: MODEL.lock]")
@click.option("--exact", is_flag=True, help="Fail on every difference, also on calls that are offloaded now.")
def check(model: Path, lock_file: Path | None, exact: bool) -> int:
    """Fail when a call of MODEL runs elsewhere than its lock file says.

    Compilers and shapes are those of the lock file. Calls that a compiler took over since, or that the model no longer
    has, are only mentioned: write the lock again to keep them.
    """
    from .lock import Lock, compare

    path = lock_file or _lock_of(model)
    if not path.is_file():
        raise InputError(f"{path} does not exist; write it with `tvm-byoc lock {model}`")
    locked = Lock.from_text(path.read_text())
    drift = compare(locked, _explained(model, _registered(locked.compilers), locked.shapes))
    if drift:
        click.echo(drift.to_text())
    if drift.lost or (drift and exact):
        _say(f"{path} was written with: {locked.comment}; if the change is wanted: tvm-byoc lock {model}")
        return 1
    _say(f"{model.name} runs where {path.name} says" + (", or better" if drift else ""))
    return 0


if __name__ == "__main__":
    main()
