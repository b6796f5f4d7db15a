"""What several commands share: options, checks of what the user gave, and a word about what is being done."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from ..api import DEFAULT_COMPILER
from ..codegen.extern import OUTPUTS
from ..errors import InputError
from ..regions.policy import RegionPolicy

__all__ = [
    "EXISTING_FILE",
    "NEW_FILE",
    "NEW_FOLDER",
    "OUTPUTS",
    "Shapes",
    "check_folder",
    "format_option",
    "model_options",
    "progress",
    "registered",
    "say",
]

Shapes = dict[str, tuple[int, ...]]
_F = TypeVar("_F", bound=Callable[..., Any])

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)


def say(message: str) -> None:
    """A line that is no result."""
    click.echo(message, err=True)


@contextlib.contextmanager
def progress(message: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; the value changes the message."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield lambda message: None
        return
    with console.status(message) as status:
        yield status.update


def _compilers(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    return registered(n.strip() for n in value.split(",") if n.strip())


def registered(names: Iterable[str]) -> list[str]:
    """The names, if somebody registered each of them."""
    from ..registry import compilers

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


def _with_policy(command: _F) -> _F:
    """One argument ``policy`` out of the options that say what is worth a region; ``None`` without them."""

    @functools.wraps(command)
    def call(*, exclude: Sequence[str], force: Sequence[str], max_regions: int | None, **others: Any) -> Any:
        wanted = bool(exclude or force or max_regions is not None)
        policy = RegionPolicy(exclude=exclude, force=force, max_regions=max_regions, on_top=True) if wanted else None
        return command(policy=policy, **others)

    return cast(_F, call)


def model_options(command: _F) -> _F:
    """MODEL, and how to read and partition it."""
    command = _with_policy(command)
    for decorate in (
        click.option("--max-regions", type=click.IntRange(0), help="At most so many regions: those with most work."),
        click.option(
            "--force", multiple=True, metavar="NAME",
            help="Offload these calls, named as for --exclude, whatever they are worth. May be repeated.",
        ),
        click.option(
            "--exclude", multiple=True, metavar="NAME",
            help="Leave these calls with TVM: an operator (relax.nn.*), a result's name, a pattern. May be repeated.",
        ),
        click.option(
            "--shape", "shapes", multiple=True, callback=_shapes, metavar="NAME=DIMS",
            help="Fix an input's shape, as in data=1,3,224,224. May be repeated.",
        ),
        click.option(
            "--compiler", default=DEFAULT_COMPILER, show_default=True, callback=_compilers, metavar="NAMES",
            help="Who may take calls, in order of priority, separated by commas.",
        ),
        click.argument("model", type=EXISTING_FILE),
    ):  # fmt: skip
        command = decorate(command)
    return command


def format_option(command: _F) -> _F:
    """Argument ``output_format``: what regions become."""
    return click.option(
        "--format", "output_format", type=click.Choice(OUTPUTS), default=OUTPUTS[0], show_default=True,
        help="What regions become: modules that this package's library runs, or C source that needs oneDNN alone.",
    )(command)  # fmt: skip


def check_folder(path: Path) -> None:
    """Refuse before the work what cannot be written after it."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.absolute().parent} does not exist; make it first")
