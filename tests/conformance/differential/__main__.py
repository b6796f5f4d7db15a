"""Many random functions, in rounds that each have a seed: ``make test-differential ARGS='--examples 2000'``.

A round is a process of its own: a crash, of TVM or of ours, ends the round, and the function is known.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TVM_BIND_THREADS", "0")
os.environ.setdefault("DIFFERENTIAL_RUN", str(os.getpid()))  # rounds share a file with the process that starts them

from hypothesis import HealthCheck, Phase, given, seed, settings

from .compare import ReferenceFailed, check, why
from .generate import programs
from .program import Program
from .shrink import shrink

_ROUND = 100
#: so many failures of a round are made small: they tend to be of one kind
_MOST = 3
#: the function that a round is at, for the case that it ends there
_LAST = Path(tempfile.gettempdir()) / f"tvm_byoc_dnnl_differential_{os.environ.get('DIFFERENTIAL_RUN', os.getpid())}"


def main() -> int:
    """Exit status 1 if a function differed or crashed."""
    parser = argparse.ArgumentParser(prog="make test-differential", description=__doc__)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round (default: the time)")
    parser.add_argument("--compiler", default="dnnl")
    parser.add_argument("--only", action="store_true", help="this one round, in this process")
    options = parser.parse_args()
    if options.only:
        return _report(options.seed, min(_ROUND, options.examples), options.compiler)
    failed, done, start = [], 0, time.monotonic()
    while done < options.examples:
        seed_now, count = options.seed + done // _ROUND, min(_ROUND, options.examples - done)
        command = ["--only", "--seed", str(seed_now), "--examples", str(count), "--compiler", options.compiler]
        status = subprocess.run([sys.executable, "-m", __spec__.parent, *command], check=False).returncode
        done += count
        if status != 0:
            failed.append(seed_now)
        if status < 0:
            print(f"== seed {seed_now}: crashed with signal {-status}, in\n{_LAST.read_text()}")
        print(f"-- {done} functions, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{done} functions from seed {options.seed} on; rounds that failed: {failed or 'none'}")
    return 1 if failed else 0


def _report(number: int, examples: int, compiler: str) -> int:
    counts: collections.Counter[str] = collections.Counter()
    failed = _round(number, examples, compiler, counts)
    print(f"seed {number}: {dict(counts)}, {failed} failed", flush=True)
    return 1 if failed else 0


def _round(number: int, examples: int, compiler: str, counts: collections.Counter[str]) -> int:
    checks = list(HealthCheck)
    failed: list[Program] = []

    @seed(number)
    @settings(
        max_examples=examples, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=checks
    )
    @given(programs())
    def run(program: Program) -> None:
        counts["functions"] += 1
        _LAST.write_text(repr(program))
        try:
            regions = check(program, compiler)
        except ReferenceFailed:
            counts["TVM failed"] += 1
        except Exception:  # an error of the build is a failure like another number
            failed.append(program)
        else:
            counts["offloaded"] += bool(regions)

    run()
    for program in failed[:_MOST]:
        small = shrink(program, lambda smaller: why(smaller, compiler) is not None)
        print(f"== seed {number}: {why(small, compiler)}\n{small!r}\n{small.module.script()}", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
