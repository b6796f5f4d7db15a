"""compile, emit, run, bench, generate and new-backend: commands that make or run something."""

from __future__ import annotations

import json
import keyword
import re
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click

from ..core.errors import InputError
from ..core.files import opened, written, written_folder
from ..core.machine import progress
from ..core.tensor_info import CACHE_DTYPES
from ..vendors.namespaces import ARGUMENTS, HOST, INT8, PRECISIONS, check_arguments, find_namespace, parse_option
from .common import (
    AS_JSON,
    CACHE_DIR,
    EXISTING_FILE,
    FORMAT,
    NEW_FILE,
    NEW_FOLDER,
    PLACE,
    SHAPE,
    THREADS,
    Build,
    Shapes,
    announce,
    check_outputs,
    model_options,
    precision_options,
    say,
)

#: how far results may be from the reference's with fewer digits, as a share of the largest
_TOLERANCE = 5e-2


def _options(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {}
    for compiler, option, value in map(parse_option, values):
        options.setdefault(compiler, {})[option] = value
    return options


def _counts(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[int]:
    try:
        found = [int(part) for part in (text or "").split(",") if part.strip()]
        if min(found, default=1) < 1:
            raise ValueError
    except ValueError:
        raise click.BadParameter(f"got {text!r}; expected positive numbers, separated by commas") from None
    return found


@click.command(short_help="Compile a model into one shared library.")
@model_options
@PLACE
@click.option("--database", type=EXISTING_FILE, help="Place calls by the times that `tvm-byoc tune` has measured.")
@precision_options
@click.option("-o", "--output", type=NEW_FILE, required=True, help="The library to write, such as model.so.")
@click.option("--target", default="llvm", show_default=True, help="TVM's target for the calls that stay with TVM.")
@click.option("--option", "options", multiple=True, callback=_options, metavar="NAME.OPTION=VALUE",
              help="Set an option of a compiler, as in my_npu.level=3. May be repeated.")  # fmt: skip
@CACHE_DIR
@click.option("--strict", is_flag=True, help="Fail where an accepted call cannot be offloaded in the end.")
@FORMAT
@AS_JSON
def compile(build: Build, output: Path, output_format: str, as_json: bool, **others: Any) -> None:
    """Compile MODEL into one shared library.

    \b
      tvm-byoc compile resnet50.onnx -o resnet50.so
      tvm-byoc compile bert.onnx --shape input_ids=1,128 --shape mask=1,128 -o bert.so
      tvm-byoc compile resnet50.onnx --format source -o resnet50.so     needs TVM's runtime and the vendor's library

    The library loads with TVM's `tvm.runtime.load_module`, with `tvm_byoc_dnnl.load`, or with `tvm-byoc run`.
    """
    from .. import api

    check_outputs(output)
    model = build.model
    with progress(f"compiling {model.name}") as show:
        executable = api.compile(model.load(), build.compiler, **build.settings, **others, output=output_format)
        show(f"linking {output.name}")
        executable.export_library(str(output))
    if output.is_file():
        say(f"{model.name}: {output.stat().st_size / 1e6:.1f} MB")
    announce(output, as_json)


@click.command(short_help="Write a model as a C program without TVM and Python.")
@model_options
@PLACE
@precision_options
@click.option("-o", "--output", type=NEW_FOLDER, required=True, help="The folder to write; made if it does not exist.")
@AS_JSON
def emit(build: Build, output: Path, as_json: bool) -> None:
    """Write MODEL as a C program without TVM and Python, with its weights and a CMakeLists.txt.

    \b
      tvm-byoc emit resnet50.onnx -o resnet50
      cmake -S resnet50 -B build && cmake --build build
      build/program resnet50/weights.bin input.bin output.bin

    The whole model must be one region of static shapes; otherwise the message lists the calls that stay with TVM.
    """
    from .. import api

    check_outputs(folder=output)
    model, settings = build.model, build.settings
    with progress(f"writing {model.name} as source"):
        files = api.emit(model.load(), output, build.compiler, **settings)
    say(f"{model.name}: {', '.join(file.name for file in files)}")
    announce(output, as_json)


@click.command(short_help="Run a compiled library.")
@click.argument("library", type=EXISTING_FILE)
@click.option("--inputs", type=EXISTING_FILE, help="A .npz with one array per input, or a .npy.  [default: random]")
@SHAPE
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random inputs.")
@click.option("--warmup", type=click.IntRange(0), default=0, show_default=True, help="Calls before the counted ones.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Counted calls.")
@THREADS
@click.option("-o", "--output", type=NEW_FILE, help="Write the outputs, under their names, to this .npz.")
@AS_JSON
def run(
    library: Path,
    inputs: Path | None,
    shapes: Shapes,
    seed: int,
    warmup: int,
    repeat: int,
    threads: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run a compiled LIBRARY, with arrays of a file or with random ones.

    \b
      tvm-byoc run resnet50.so
      tvm-byoc run resnet50.so --inputs picture.npz -o scores.npz
      tvm-byoc run bert.so --shape input_ids=1,128 --warmup 5 --repeat 50

    Arrays are matched with the model's inputs by their names; arrays without names (`numpy.savez(file, a, b)`, or a
    single .npy) by their order. Without -o, one line for each output describes it.
    """
    from ..runtime import load

    check_outputs(output)
    arrays = None if inputs is None else read_arrays(inputs)
    if arrays is not None and shapes:
        raise InputError("--shape is for random inputs; --inputs has arrays of their own shapes: leave one of them out")
    with progress(f"loading {library.name}") as show:
        runner = load(library, runtime="tvm", threads=threads)
        show("running")
        if arrays is None:
            tensors = runner.random_tensors(seed, shapes)
        elif list(arrays) == [f"arr_{i}" for i in range(len(arrays))]:
            tensors = runner.tensors(list(arrays.values()))
        else:
            tensors = runner.tensors((), arrays)
        times = []
        for _ in range(warmup + repeat):
            started = time.perf_counter()
            outputs = runner.named(*tensors)
            times.append(1e3 * (time.perf_counter() - started))
    counted = sorted(times[warmup:])
    spread = f", median of {repeat}; {counted[0]:.1f} to {counted[-1]:.1f} ms" if repeat > 1 else ""
    say(f"{counted[len(counted) // 2]:.1f} ms{spread}" + ("" if warmup else ", the first run's preparation included"))
    described = {name: {"dtype": str(a.dtype), "shape": list(a.shape)} for name, a in outputs.items()}
    if output is not None:
        write_arrays(output, outputs)
    if as_json:
        click.echo(json.dumps({"milliseconds": times[warmup:], "outputs": described}, indent=1))
        return
    if output is not None:
        announce(output)
        return
    for name, array in outputs.items():
        span = f"  min {array.min():.4g}  mean {array.mean():.4g}  max {array.max():.4g}" if array.size else ""
        click.echo(f"{name}  {array.dtype}[{', '.join(map(str, array.shape))}]{span}")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a .npz; `numpy.savez` cannot write an array of the name ``file``."""
    import numpy as np

    with written(path) as aside, zipfile.ZipFile(aside, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def read_arrays(path: Path) -> dict[str, Any]:
    """Arrays by name; those without names are called arr_0, arr_1 … as NumPy does."""
    import numpy as np

    try:
        with opened(path) as file:
            if not file.read(6).startswith((b"PK", b"\x93NUMPY")):
                raise ValueError("it is no NumPy file")
            file.seek(0)
            data = np.load(file, allow_pickle=False)
            return {"arr_0": data} if isinstance(data, np.ndarray) else {name: data[name] for name in data.files}
    except Exception as error:  # of NumPy, zipfile and zlib, each with its own; no memory for what the file promises
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"cannot read {path}: {reason}; expected a file of numpy.savez, or a .npy") from error


@click.command(short_help="Measure models beside other engines.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL…")
@click.option("--peers", default="onnxruntime", show_default=True, help="Engines to compare with, separated by commas.")
@click.option("--threads", callback=_counts, metavar="N[,N…]",
              help="Threads of each call.  [default: all cores; with --throughput 1]")  # fmt: skip
@SHAPE
@click.option("--inputs", type=EXISTING_FILE, help="A .npz with one array per input.  [default: random]")
@precision_options
@click.option("--rounds", type=click.IntRange(1), help="Turns of each engine.  [default: 20; with --throughput 5]")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True),
    help="How long each engine is measured, all turns together.  [default: 0.2 a turn; with --throughput 2]",
)  # fmt: skip
@click.option("--throughput", is_flag=True, help="Requests per second and their latencies, many at once.")
@click.option("--streams", callback=_counts, metavar="N[,N…]",
              help="Requests at once; implies --throughput.  [default: cores ÷ threads]")  # fmt: skip
@click.option("--batch", callback=_counts, metavar="N[,N…]",
              help="Rows of each request, where the first dim is open; implies --throughput.")  # fmt: skip
@AS_JSON
@click.option("--picture", type=NEW_FILE, help="Draw the times: a file .svg, .png or .pdf; needs Matplotlib.")
def bench(
    models: Sequence[str],
    peers: str,
    threads: list[int],
    shapes: Shapes,
    inputs: Path | None,
    rounds: int | None,
    seconds: float | None,
    throughput: bool,
    streams: list[int],
    batch: list[int],
    as_json: bool,
    picture: Path | None,
    **own: str | None,
) -> int:
    """Measure each MODEL beside other engines, each in a process of its own, in turns.

    \b
      tvm-byoc bench model.onnx
      tvm-byoc bench model.onnx --shape input=1,3,224,224
      tvm-byoc bench model.onnx --peers onnxruntime,openvino,tvm --picture result.svg
      tvm-byoc bench model.onnx --json > samples.json
      tvm-byoc bench model.onnx --precision bfloat16 --peers openvino-bf16
      tvm-byoc bench model.so --inputs in.npz --seconds 10
      tvm-byoc bench model.onnx --threads 1,2 --streams 1,2,4 --batch 1,8

    The settings of precision are this package's; peers named -bf16 compute in bfloat16. A MODEL is an .onnx file, a
    compiled library, which only this package runs, or the name of a network inside the onnx package, such as resnet50.
    Peers that are not installed are left out with a note. With --throughput clients send requests all the time, and the
    table has the requests per second, and the times within which 50, 95 and 99 % of them are answered, for each
    combination of --threads, --streams and --batch.
    """
    from ..testing.bench import Load, choose_engines, measure_throughput
    from ..testing.bench import run as measure
    from ..testing.bench.measure import Settings
    from ..testing.models import find_model

    check_outputs(picture)
    found = [find_model(name) for name in models]
    engines = choose_engines(["byoc", *(p.strip() for p in peers.split(",") if p.strip())])
    check_arguments(**own)
    throughput |= bool(streams or batch) or len(threads) > 1
    arrays = None if inputs is None else read_arrays(inputs)
    if own != {name: allowed[0] for name, allowed in ARGUMENTS.items()}:
        if compiled := [str(model.library) for model in found if model.library]:
            raise InputError(f"{compiled[0]} is compiled already: options of precision would have no effect on it")
        stored = [f"{own[name]} {name}" for name in ("weights", "activations") if own[name]]
        chosen = [own["precision"], *stored, f"int8 {own['int8']}" if own["int8"] != INT8[0] else None]
        label = ", ".join([engines["byoc"].label, *(text for text in chosen if text and text != PRECISIONS[0])])
        engines["byoc"] = replace(engines["byoc"], options=own, label=label, tolerance=_TOLERANCE)
    if throughput:
        if picture is not None:
            raise InputError("--picture draws the times of single calls; leave it out with --throughput")
        turns = rounds or 5
        turn = 2.0 if seconds is None else seconds / turns
        combined = product(threads or [1], streams or [0], batch or [0])
        loads = [Load(t, turns, turn, streams=s or None, batch=b or None) for t, s, b in combined]
        times = measure_throughput(found, engines, loads, as_json=as_json, given=arrays, shapes=shapes)
        return int(any(t.failure for t in times))
    settings = Settings(rounds=rounds or 20)
    if threads:
        settings = replace(settings, threads=threads[0])
    if seconds is not None:
        settings = replace(settings, block_ms=1e3 * seconds / settings.rounds)
    measured = measure(found, engines, settings, as_json=as_json, given=arrays, shapes=shapes, picture=picture)
    return int(any(c.failures for c in measured))


@click.command(short_help="Write text with a language model.")
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.argument("text")
@click.option("--max-new-tokens", type=click.IntRange(1), help="Tokens to write.  [default: as the folder says]")
@click.option("--temperature", type=float, help="Divisor of the logits; 0 takes the most likely token.")
@click.option("--top-k", type=int, help="Draw among so many tokens; 0 is all.")
@click.option("--top-p", type=float, help="Draw among the likeliest tokens that together have this share.")
@click.option("--repetition-penalty", type=float, help="Divisor of the logits of tokens that were there before.")
@click.option("--seed", type=int, help="The same seed gives the same text.")
@click.option("--stop", multiple=True, metavar="STRING", help="End before this string. May be repeated.")
@click.option(
    "--cache-dtype", type=click.Choice(CACHE_DTYPES), help="Keep keys and values so.  [default: as the model]"
)
@THREADS
@CACHE_DIR
@precision_options
@AS_JSON
def generate(folder: Path, text: str, max_new_tokens: int | None, as_json: bool, **others: Any) -> None:
    """Write what follows TEXT, with the language model in FOLDER or a file.

    \b
      tvm-byoc generate qwen "The capital of France is" --max-new-tokens 20
      tvm-byoc generate qwen "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 1 --cache-dir ~/.cache/models

    FOLDER is one that onnxruntime-genai's model builder wrote, or a .gguf file. The text is printed piece by piece; the
    last line, on standard error, says how many tokens a second were read and written. It needs the package tokenizers,
    and gguf for such a file.
    """
    from ..text.generator import TextGenerator

    settings = {name: others.pop(name) for name in (*ARGUMENTS, "threads", "cache_dir", "cache_dtype")}
    with progress(f"compiling {folder.name}"):
        generator = TextGenerator(folder, **settings)
    stream = generator.stream(text, max_new_tokens, **others)
    pieces = []
    for piece in stream:
        pieces.append(piece)
        if not as_json:
            click.echo(piece, nl=False)
    numbers = {n: getattr(stream, n) for n in ("prompt_tokens", "tokens", "prompt_seconds", "step_seconds")}
    click.echo(json.dumps({"text": "".join(pieces), **numbers}) if as_json else "")
    rates = [
        f"{count} tokens{f', {of / seconds:.1f} tokens/s' if seconds else ''}"
        for count, of, seconds in (
            (stream.prompt_tokens, stream.prompt_tokens, stream.prompt_seconds),
            (stream.tokens, stream.steps, stream.step_seconds),
        )
    ]
    say(f"prompt: {rates[0]}; text: {rates[1]}")


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
    folder = folder or Path(name)
    check_outputs(folder=folder)
    for file in write_backend(name, folder):
        click.echo(file)
    say(f"next: cd {folder} && pip install -e '.[test]' && pytest && python -m tvm_byoc_dnnl.testing {name}")


#: the example of the docs: a backend that conforms, with its tests
_TEMPLATE = Path(__file__).resolve().parents[1] / "template"
_NAME = "toy_npu"


def write_backend(name: str, folder: Path) -> list[Path]:
    """Write a package of a name with a backend that conforms; its files, in order. `InputError` if it cannot be so."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise InputError(f"the name is {name!r}; expected lower case letters, digits and _, such as my_npu")
    if name == HOST or find_namespace(name):
        raise InputError(f"there is a backend {name!r} already; choose another name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists; give a folder that is new or empty")
    with written_folder(folder) as aside:
        made = [path.relative_to(aside) for path in _write(aside, name)]
    return [folder / path for path in made]


def _write(folder: Path, name: str) -> list[Path]:
    made = []
    for source in sorted(_TEMPLATE.rglob("*")):
        if source.is_dir() or "__pycache__" in source.parts or source.suffix == ".pyc":
            continue
        target = folder / _renamed(str(source.relative_to(_TEMPLATE)), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_renamed(source.read_text(encoding="utf-8"), name), encoding="utf-8")
        made.append(target)
    return made


def _renamed(text: str, name: str) -> str:
    return text.replace(_NAME, name).replace(_NAME.replace("_", "-"), name.replace("_", "-"))
