"""Parts that several commands share: options, checks of the user's arguments, and messages about progress."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from ..api import DEFAULT_COMPILER
from ..core.errors import InputError
from ..core.files import why_not_written
from ..graph.cost import RegionPolicy
from ..pipeline.executable import is_library
from ..vendors.codegen import OUTPUTS
from ..vendors.namespaces import ACTIVATIONS, ARGUMENTS, INT8, PRECISIONS, WEIGHTS

Shapes = dict[str, tuple["int | str", ...]]
_F = TypeVar("_F", bound=Callable[..., Any])

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)


def say(message: str) -> None:
    click.echo(message, err=True)


def _compilers(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    return registered(n.strip() for n in value.split(",") if n.strip())


def registered(names: Iterable[str]) -> list[str]:
    """The names, if each of them is registered."""
    from ..vendors.namespaces import namespace

    return [namespace(name).name for name in names]


@dataclass(frozen=True)
class ModelFile:
    """The MODEL of a command, and the values that ``--value`` compiles into it."""

    path: Path
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)

    def load(self) -> Any:
        """The argument for the functions of the package: the path, or the model with the values inside."""
        if not self.values:
            return str(self.path)
        from ..frontends.onnx.importer import load_onnx
        from ..frontends.onnx.inputs import fix_values

        return fix_values(load_onnx(self.path), {name: _numbers(text) for name, text in self.values.items()})


@dataclass(frozen=True)
class Build:
    """The model of a command, and ``settings``: arguments of `compile`, `explain` and `verify`."""

    model: ModelFile
    compiler: list[str]
    settings: dict[str, Any]


def _numbers(text: str) -> list[float]:
    return [float(n) if any(c in n for c in ".en") else int(n) for n in text.split(",") if n.strip()]


def _numbers_as_text(text: str) -> str:
    _numbers(text)
    return text


def _dims(text: str) -> tuple[int | str, ...]:
    parts = [d.strip() for d in text.split(",") if d.strip()]
    if not all(re.fullmatch(r"0*[1-9]\d*|[^\W\d]\w*(:0*[1-9]\d*)?", part) for part in parts):
        raise ValueError
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def _some_name(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _named(parse: Callable[[str], Any], expected: str) -> Callable[..., dict[str, Any]]:
    """A callback that makes a dict of NAME=VALUE; ``parse`` raises a ValueError at a value that is none."""

    def callback(_context: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> dict[str, Any]:
        found = {}
        for each in given:
            name, _, value = each.rpartition("=")
            try:
                found[_some_name(name)] = parse(value)
            except ValueError:
                raise click.BadParameter(f"got {each!r}; expected {expected}") from None
        return found

    return callback


SHAPE = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=DIMS",
    callback=_named(_dims, "NAME=DIM,DIM,… as in data=1,3,224,224, or data=N,3,224,224 where N stays open (N:8 "
                           "optimises it for 8)"),
    help="Fix an input's shape, as in data=1,3,224,224; a name, as in data=N,3,224,224, leaves a dim open; "
    "N:8 optimises it for 8. May be repeated.",
)  # fmt: skip
PLACE = click.option(
    "--place", multiple=True, metavar="NAME=COMPILER",
    callback=_named(_some_name, "NAME=COMPILER as in relax.nn.relu=acme or acme.relu=tvm"),
    help="Give these calls, named as for --exclude, to another compiler, or to tvm. May be repeated.",
)  # fmt: skip
FORMAT = click.option(
    "--format", "output_format", type=click.Choice(OUTPUTS), default=OUTPUTS[0], show_default=True,
    help="The form of regions: modules that this package's library runs, or C source that calls the vendor's.",
)  # fmt: skip
THREADS = click.option("--threads", type=click.IntRange(1), help="Threads of each call.  [default: all cores]")


def _limit_threads(_context: click.Context, _parameter: click.Parameter, value: int | None) -> None:
    if value is not None:  # read once, when OpenMP and TVM's pool start
        os.environ["OMP_NUM_THREADS"] = os.environ["TVM_NUM_THREADS"] = str(value)


#: the same of all calls of this process, whatever makes them
ALL_THREADS = click.option(
    "--threads", type=click.IntRange(1), callback=_limit_threads, expose_value=False,
    help="Threads of each call.  [default: all cores]",
)  # fmt: skip
CACHE_DIR = click.option(
    "--cache-dir", type=NEW_FOLDER, help="Folder of compiled models: the same model is not compiled again."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, instead of the text.")


def _together(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


_OF_A_BUILD = ("compiler", "shapes", "values", "exclude", "force", "max_regions", "output_format")


def _with_build(command: _F) -> _F:
    """One argument, a `Build`, instead of the options that it is made of."""

    @functools.wraps(command)
    def call(*, model: Path, values: dict[str, str], compiler: list[str], shapes: Shapes, **others: Any) -> Any:
        _refuse_options_of_a_build(model)
        limits = {name: others.pop(name) for name in ("exclude", "force", "max_regions")}
        wanted = any(limit not in ((), None) for limit in limits.values())
        settings = {"shapes": shapes or None, "policy": RegionPolicy(**limits, on_top=True) if wanted else None}
        settings |= {name: others.pop(name) for name in (*ARGUMENTS, "place") if name in others}
        return command(Build(ModelFile(model, values), compiler, settings), **others)

    return cast(_F, call)


def _refuse_options_of_a_build(model: Path) -> None:
    """A compiled library takes none of the options that decide what is compiled."""
    context = click.get_current_context()
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in _OF_A_BUILD
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given and is_library(model):
        raise InputError(
            f"{model} is compiled already, so {' and '.join(given)} would have no effect on it; give the model that it "
            "was built from, or leave the option out"
        )


#: MODEL, and how to read and partition it, as one argument of the type `Build`
model_options = _together(
    click.argument("model", type=EXISTING_FILE),
    click.option(
        "--compiler", default=DEFAULT_COMPILER, show_default=True, callback=_compilers, metavar="NAMES",
        help="Compilers that may take calls, in order of priority, separated by commas.",
    ),
    SHAPE,
    click.option(
        "--value", "values", multiple=True, metavar="NAME=NUMBERS",
        callback=_named(_numbers_as_text, "NAME=NUMBER,NUMBER,… as in sr=16000"),
        help="Value of an input that decides shapes or axes, as in sr=16000; made a constant. May be repeated.",
    ),
    click.option(
        "--exclude", multiple=True, metavar="NAME",
        help="Leave these calls with TVM: an operator (relax.nn.*), a result's name, a pattern. May be repeated.",
    ),
    click.option(
        "--force", multiple=True, metavar="NAME",
        help="Offload these calls, named as for --exclude, even if a policy declines them. May be repeated.",
    ),
    click.option("--max-regions", type=click.IntRange(0), help="Keep only so many regions, those with most work."),
    _with_build,
)  # fmt: skip

#: the arguments of `namespaces.ARGUMENTS`
precision_options = _together(
    click.option(
        "--precision", type=click.Choice(PRECISIONS), default=PRECISIONS[0], show_default=True,
        help="The dtype in which regions compute; auto is bfloat16 where the CPU has it itself.",
    ),
    click.option(
        "--weights", type=click.Choice(WEIGHTS), default=None,
        help="Store large constant weights of matrix products in this dtype.  [default: as they are]",
    ),
    click.option(
        "--activations", type=click.Choice(ACTIVATIONS), default=None,
        help="In what products with such weights multiply their sources.  [default: as the model asks, or float32]",
    ),
    click.option(
        "--int8", type=click.Choice(INT8), default=INT8[0], show_default=True,
        help="How a quantised model sums its products on a CPU without VNNI; saturating is faster.",
    ),
)  # fmt: skip


def announce(path: Path, as_json: bool = False) -> None:
    """Print the path of the result; to standard error if the result itself is written to standard output."""
    is_output = not (path.is_file() or path.is_dir()) or path.resolve() == Path("/dev/stdout").resolve()
    click.echo(json.dumps({"path": str(path)}) if as_json else path, err=is_output)


def check_outputs(*files: Path | None, folder: Path | None = None) -> None:
    """Refuse, before the work, files that could not be written after it, or a folder that could not be made."""
    for path in files:
        if path is not None and (reason := why_not_written(path)) is not None:
            raise InputError(f"cannot write {path}: {reason}")
    if folder is not None and not folder.is_dir():
        if folder.exists():
            raise InputError(f"cannot write {folder}: it is no folder; choose another name")
        check_outputs(folder)
