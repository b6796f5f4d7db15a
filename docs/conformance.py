"""Write docs/conformance.md from the records of ONNX's backend tests, or check it.

`make docs-conformance` runs the tests and writes the records first; this alone takes seconds.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"

_HEAD = """# Conformance

`make docs-conformance` writes this page; it runs ONNX's backend tests, which takes minutes. `make docs` writes it from
the records of the last run: [the known failures](../tests/conformance/onnx_known_failures.txt), one by one with the
reason, and [those of TVM alone](../tests/conformance/onnx_stock_failures.txt).

## ONNX's backend tests

The `onnx` package contains tests of every operator, of models exported by PyTorch, and of nine networks. They run
through `tvm_byoc_dnnl.onnx_backend`. `tests/conformance/test_onnx_backend.py` compares every case with its record: a
case that fails but is not recorded as a failure is an error, and so is a recorded failure that passes. One case in
eight runs in `make test`, all of them run in `make test-onnx`. The results of offloaded regions must be right, without
exceptions.
"""

_AFTER_COUNTS = """
*Random* numbers cannot be compared one by one; their distribution has tests of its own. *Wrong* means wrong numbers,
shapes or dtypes. *Unsupported* means refused with a reason, by this package or by TVM's
importer. *Failed* is any other error. Inputs that decide shapes or axes become constants of the compiled model, for
both; TVM alone is first tried with them as inputs. Ten cases in float16 are compared with a tolerance of 2⁻⁸ in place
of the 10⁻³ that the suite uses for float32: six roundings, one after the other, cause such an error. Two inverse
Fourier transforms may differ by 10⁻⁶, because the suite expects 2·10⁻⁷ there where 0 is right.
"""


def _onnx() -> Iterator[str]:
    from tests.conformance import onnx_suite

    versions, ours = onnx_suite.read_record("ours")
    _, stock = onnx_suite.read_record("stock")
    names = list(onnx_suite.cases())
    yield f"\nRecorded with {versions}: {len(names):,} cases.\n\n| | passed | random | wrong | unsupported | failed |\n"
    yield "|---|---:|---:|---:|---:|---:|\n"
    for title, record in (("this package", ours), ("TVM alone", stock)):
        counts = Counter(o.status for o in record.values())
        cells = [len(names) - len(record), *(counts[s] for s in ("random", "wrong", "unsupported", "failed"))]
        yield f"| {title} | {' | '.join(f'{c:,}' for c in cells)} |\n"
    yield _AFTER_COUNTS
    reverse = sorted(set(ours) - set(stock))
    yield f"\nPassed by TVM alone but not by this package: {', '.join(f'`{n}`' for n in reverse) or 'none'}.\n"
    yield "\n### Why cases do not pass\n\n| cases | why |\n|---:|---|\n"
    causes = Counter(_cause(o.status, o.reason) for o in ours.values())
    for cause, count in sorted(causes.items(), key=lambda item: (-item[1], item[0])):
        yield f"| {count} | {cause} |\n"
    silent = [n for n, o in stock.items() if o.status == "wrong" and n not in ours]
    yield f"\n### Wrong with TVM alone, without a message, and right here\n\n{len(silent)} cases:\n\n"
    for family, members in sorted(_families(silent).items()):
        yield f"* {family}: {len(members)}\n" if len(members) > 1 else f"* {members[0]}\n"


def _cause(status: str, reason: str) -> str:
    """The reason without what is particular to the case."""
    operator = re.match(r"no Relax equivalent for ONNX operators? (?:ai\.onnx\.)?(\S+)", reason)
    if operator:
        return f"no converter for `{operator[1]}`"
    cast = re.match(r"no Relax equivalent for Cast(?:Like)? from (\w+) to (\w+)", reason)
    if cast:
        small = re.compile(r"INT[24]$|FLOAT4|FLOAT8")
        return f"casts to or from {'FLOAT8' if 'FLOAT8' in cast[0] else 'types of 2 or 4 bits'}" if small else cast[0]
    text = re.sub(r" \(node `[^`]*`\)", "", reason)
    text = re.sub(r"the input `[^`]*`", "an input", text)
    return f"{status}: {text.replace('|', '/')}" if status != "unsupported" else text.replace("|", "/")


def _families(names: list[str]) -> dict[str, list[str]]:
    """Cases by the first words of their names."""
    found: dict[str, list[str]] = {}
    for name in names:
        plain = name.removeprefix("test_").removesuffix("_cpu")
        found.setdefault("_".join(plain.split("_")[:2]), []).append(f"`{name}`")
    return {f"`{k}`": v for k, v in found.items()}


def render() -> str:
    """The page."""
    return "".join([_HEAD, *_onnx()])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    text = render()
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f"{PAGE} is not current: run `make docs`")
