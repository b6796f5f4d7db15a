"""Compare engines on several models, with progress on a terminal, for the command lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ...core.errors import InputError
from ...core.files import write_text, written
from ...frontends.onnx.importer import load_onnx
from ...frontends.onnx.inputs import fix_shapes
from ..models import LIGHT_MODELS, light_model, random_inputs
from .engines import ENGINES, Engine
from .measure import Comparison, Settings, busy_share, compare
from .picture import check_picture, to_picture
from .process import installed
from .report import to_json, to_table

_BUSY = 0.05  # share of the cores; above it, a warning


@dataclass(frozen=True)
class Model:
    """A model to measure: made or read only when its turn comes."""

    name: str
    read: Callable[[], onnx.ModelProto]


def find_model(name: str) -> Model:
    """A network of :data:`~tvm_byoc_dnnl.testing.models.LIGHT_MODELS` by its name, or an ``.onnx`` file."""
    if name in LIGHT_MODELS:
        return Model(name, lambda: light_model(name))
    if Path(name).is_file():
        return Model(Path(name).stem, lambda: load_onnx(Path(name)))
    raise InputError(f"no model `{name}`; expected an .onnx file or one of: {', '.join(LIGHT_MODELS)}")


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def choose_engines(names: Sequence[str]) -> dict[str, Engine]:
    """The named rows of the table; says which ones are left out because they are not installed."""
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise InputError(f"no engine `{unknown[0]}`; there are: {', '.join(ENGINES)}")
    chosen = {name: ENGINES[name] for name in names}
    for name, engine in chosen.items():
        if not installed(engine):
            _stderr().print(f"{name}: left out, `{engine.requires}` is not installed (`make bench` installs it)")
    return {name: engine for name, engine in chosen.items() if installed(engine)}


@contextmanager
def _progress(console: Console, models: int) -> Iterator[Callable[[str, float], None]]:
    """A function that shows the work in hand; the bar runs through all models once."""
    columns = SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=models)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def _warn_if_busy(console: Console) -> None:
    share = busy_share()
    if share > _BUSY:
        console.print(f"warning: other processes use {share:.0%} of this machine; the numbers will jump")


def run(
    models: Sequence[Model],
    engines: Mapping[str, Engine],
    settings: Settings,
    baseline: str | None = None,
    json_file: str | None = None,
    inputs_of: Callable[[onnx.ModelProto], Mapping[str, np.ndarray]] = random_inputs,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    picture: Path | None = None,
) -> list[Comparison]:
    """Measure, print the table to standard output and everything else to standard error.

    Parameters
    ----------
    models : Sequence[Model]
        What to run.
    engines : Mapping[str, Engine]
        What to run it on: the result of :func:`choose_engines`.
    settings : Settings
        How to measure.
    baseline : str, optional
        The engine that the others are divided by; by default the first.
    json_file : str, optional
        Where to write every sample; ``-`` is standard output, in place of the table.
    inputs_of : Callable, optional
        Makes a model's inputs.
    shapes : mapping, optional
        Input name to shape, to fix dimensions that the models leave open, for every engine.

    picture : Path, optional
        Where to draw the times, as SVG, PNG or PDF.

    Returns
    -------
    list of Comparison
        One per model.
    """
    if picture is not None:
        check_picture(picture)
    console = _stderr()
    _warn_if_busy(console)
    comparisons = []
    with TemporaryDirectory() as folder, _progress(console, len(models)) as show:
        for number, model in enumerate(models):
            proto = fix_shapes(model.read(), shapes or {})
            path = str(Path(folder, f"{model.name}.onnx"))
            onnx.save(proto, path)

            def progress(what: str, share: float, number: int = number, name: str = model.name) -> None:
                show(f"{name}: {what}", number + share)

            if not console.is_terminal:
                console.print(f"{model.name}: {', '.join(engines)}")
            inputs = inputs_of(proto)
            comparisons.append(compare(model.name, path, inputs, engines, settings, baseline, progress))
            Path(path).unlink()
    _show(comparisons, settings, json_file, picture)
    return comparisons


def _show(comparisons: Sequence[Comparison], settings: Settings, json_file: str | None, picture: Path | None) -> None:
    """The table on standard output, where that is not for JSON, and the files that are wanted."""
    if json_file != "-":
        stdout = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        stdout.print(to_table(comparisons, settings))
    if json_file is not None:
        text = json.dumps(to_json(comparisons, settings), indent=1)
        print(text) if json_file == "-" else write_text(json_file, text + "\n")
    if picture is not None:
        with written(picture) as aside:
            aside.write_bytes(to_picture(comparisons, settings, picture.suffix.removeprefix(".")))
