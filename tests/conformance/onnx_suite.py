"""ONNX's own backend tests as a list of cases, and the outcome of each.

    python -m tests.conformance.onnx_suite ours stock              # run everything, write the records
    python -m tests.conformance.onnx_suite ours --only resize scan  # these alone, into the record

An engine is a Backend: ours, or TVM as it comes. Both get the inputs that decide shapes as constants, since neither can
compile without them; TVM as it comes is tried with them as inputs first.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import warnings
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
import tvm

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.ir.relax_utils import codegen_of
from tvm_byoc_dnnl.onnx_backend import Backend, PreparedModel
from tvm_byoc_dnnl.runtime.runner import Runner

HERE = Path(__file__).parent
ENGINES = ("ours", "stock")
#: The outcomes of a case. "wrong": wrong numbers, shapes or dtypes; "failed": any error that is no refusal; "random":
#: other numbers of an operator that gives random ones, which tests/unit/test_frontend_random.py judges.
STATUSES = ("passed", "random", "wrong", "unsupported", "failed")
_RANDOM = ("test_bernoulli_",)
_MODELS = tempfile.TemporaryDirectory(prefix="onnx-models-")  # until the process ends
# One case in SAMPLE runs on every commit: all of them take minutes.
SAMPLE = 8


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    Attributes
    ----------
    name : str
        ONNX's name of the test.
    status : str
        One of `STATUSES`.
    reason : str
        The first line of the error.
    regions : int
        How many regions were offloaded.
    """

    name: str
    status: str
    reason: str = ""
    regions: int = 0


#: Cases that the suite compares too strictly. In float16 it uses the tolerance for float32, 1e-3, though each rounding
#: may cost 2^-11 and an attention has six. (For bfloat16 the suite itself allows more.) Its inverse Fourier transforms
#: have 2e-7 where 0 is right, and no tolerance for small numbers.
_TOLERANCES = {
    f"test_{name}{end}": {"rtol": 2**-8}
    for name in (
        "attention_4d_fp16",
        "attention_4d_causal_fp16",
        "attention_4d_gqa_causal_nonpad_decode_fp16",
        "attention_4d_gqa_with_past_and_present_fp16",
        "causal_conv_with_state_silu_fp16",
    )
    for end in ("", "_expanded")
} | {f"test_dft_inverse{end}": {"atol": 1e-6} for end in ("", "_opset19")}


class _Ours(PreparedModel):
    """Counts what is offloaded."""

    regions = 0

    def build(self, model: onnx.ModelProto) -> Runner:
        module = byoc.partition(byoc.to_relax(model))
        type(self).regions += sum(1 for f in module.functions.values() if codegen_of(f))
        return Runner(tvm.compile(module, "llvm", relax_pipeline="byoc"))


class _Stock(PreparedModel):
    """TVM as it comes."""

    regions = 0

    def build(self, model: onnx.ModelProto) -> Runner:
        from tvm.relax.frontend.onnx import from_onnx

        return Runner(tvm.compile(from_onnx(model, keep_params_in_input=False), "llvm"))

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        if self.deciding:
            with contextlib.suppress(Exception):
                return self.outputs(self.build(self.model)(*inputs))
        return super().run(inputs, **kwargs)


_PREPARED: dict[str, Any] = {"ours": _Ours, "stock": _Stock}


def cases(engine: str = "ours") -> dict[str, Callable[[], None]]:
    """Every test of the suite for the CPU, by name; calling one raises what goes wrong."""
    from onnx.backend.test import BackendTest

    class Engine(Backend):
        prepared = _PREPARED[engine]

        @classmethod
        def is_compatible(cls, *_args: Any, **_kwargs: Any) -> bool:
            return True  # no case is left out: a model that cannot be imported has to fail

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
            return super().prepare(model, device, **{k: v for k, v in kwargs.items() if k not in ("rtol", "atol")})

    # The suite writes inputs and outputs of the light models here; its default is the home directory.
    os.environ.setdefault("ONNX_MODELS", _MODELS.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the suite makes its overflows on purpose
        suites = BackendTest(Engine, __name__, _TOLERANCES).test_cases
    found = {}
    for suite in suites.values():
        for name in dir(suite):
            if name.startswith("test_") and name.endswith("_cpu"):
                found[name] = getattr(suite(name), name)
    return dict(sorted(found.items()))


def sampled(name: str) -> bool:
    """Whether a case runs on every commit; the answer does not depend on the other cases."""
    return zlib.crc32(name.encode()) % SAMPLE == 0


def run_case(name: str, run: Callable[[], None], engine: str = "ours") -> Outcome:
    """Run one case."""
    prepared = _PREPARED[engine]
    prepared.regions = 0
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            run()
        status, reason = "passed", ""
    except AssertionError as error:  # the suite's comparison
        is_random = name.startswith(_RANDOM) and "Mismatched elements" in str(error)
        status, reason = ("random", "the numbers are random") if is_random else ("wrong", _comparison(error))
    except UnsupportedError as error:
        status, reason = "unsupported", _first_line(error)
    except unittest.SkipTest as error:
        raise RuntimeError(f"{name} was skipped: {error}") from error
    except Exception as error:
        status, reason = "failed", f"{type(error).__name__}: {_first_line(error)}"
    return Outcome(name, status, reason, prepared.regions)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    text = re.sub(r"/\S*/(\S+:\d+)", r"\1", text)  # the folder in which somebody built the library
    return re.sub(r"\s+", " ", text)[:200]


def _comparison(error: AssertionError) -> str:
    """One line about the difference, out of NumPy's several."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [
        line for line in lines if line.startswith(("Mismatched elements", "ACTUAL", "DESIRED", "Output", "x and"))
    ]
    return re.sub(r"\s+", " ", "; ".join(telling or lines[:1]))[:200]


# ---- the record ----------------------------------------------------------------------------------------


def record(engine: str) -> Path:
    """The file that says which cases an engine does not pass, one by one."""
    return HERE / {"ours": "onnx_known_failures.txt", "stock": "onnx_stock_failures.txt"}[engine]


def versions() -> str:
    """The versions for which a record is true."""
    release = ".".join(tvm.__version__.split(".")[:2])
    return f"onnx {onnx.__version__}, TVM {release}"


def read_record(engine: str) -> tuple[str, dict[str, Outcome]]:
    """The versions, and the cases that do not pass."""
    head, *lines = record(engine).read_text().splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, status, reason = line.split(" | ", 2)
            if status not in STATUSES or name in found:
                raise ValueError(f"{record(engine).name}: {line!r}: unknown status, or the second line of this name")
            found[name] = Outcome(name, status, reason)
    return head.removeprefix("# ").split(":")[0], found


def write_record(engine: str, outcomes: Iterable[Outcome]) -> None:
    """Write the file again."""
    lines = [f"# {versions()}: the cases of ONNX's backend tests that do not pass, with what happens instead."]
    lines += [
        f"{o.name} | {o.status} | {o.reason}" for o in sorted(outcomes, key=lambda o: o.name) if o.status != "passed"
    ]
    record(engine).write_text("\n".join(lines) + "\n")


def run_all(engine: str, names: list[str], jobs: int) -> list[Outcome]:
    """Run cases in processes of their own, so that a crash costs one case, which counts as failed."""
    shares = [names[i::jobs] for i in range(jobs)]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        while any(shares):
            running = [_start(engine, share, Path(folder) / str(i)) for i, share in enumerate(shares)]
            for i, process in enumerate(running):
                process.wait()
                done = _read_outcomes(Path(folder) / str(i))
                if len(done) < len(shares[i]):
                    done.append(Outcome(shares[i][len(done)], "failed", f"the process ended with {process.returncode}"))
                outcomes += done
                shares[i] = shares[i][len(done) :]
    return outcomes


def _start(engine: str, names: list[str], folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    (folder / "names.json").write_text(json.dumps(names))
    (folder / "outcomes").write_text("")
    command = [sys.executable, "-m", __spec__.name, engine, "--folder", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _read_outcomes(folder: Path) -> list[Outcome]:
    return [Outcome(**json.loads(line)) for line in (folder / "outcomes").read_text().splitlines()]


def _work(engine: str, folder: Path) -> None:
    """Run the cases of one process of `run_all`."""
    known = cases(engine)
    with (folder / "outcomes").open("a") as out:
        for name in json.loads((folder / "names.json").read_text()):
            print(json.dumps(asdict(run_case(name, known[name], engine))), file=out, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run ONNX's backend tests and write down what does not pass.")
    parser.add_argument("engines", nargs="+", choices=ENGINES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only cases with one of these in their names")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        _work(options.engines[0], options.folder)
        return
    for engine in options.engines:
        names = [n for n in cases(engine) if not options.only or any(text in n for text in options.only)]
        outcomes = run_all(engine, names, options.jobs)
        for o in outcomes:
            if o.regions and o.status == "wrong":
                print(f"wrong, and offloaded in part: {o.name}: {o.reason}")
        others = [o for n, o in read_record(engine)[1].items() if n not in names] if options.only else []
        write_record(engine, [*outcomes, *others])
        counts = {s: sum(o.status == s for o in outcomes) for s in STATUSES}
        print(f"{engine}: {', '.join(f'{n} {s}' for s, n in counts.items())}; written to {record(engine).name}")


if __name__ == "__main__":
    main()
