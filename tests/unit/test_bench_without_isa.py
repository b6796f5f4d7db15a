"""Instructions are hidden from libraries and programs that ask the CPU for them, and from no others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.without_isa import HIDDEN, SETS, environment, is_loadable, places
from bench.without_isa.__main__ import main

#: prints what CPUID says in its leaf 7: EBX, ECX and EDX of part 0, EAX and EDX of part 1; the number of `trap` has
#: the two bytes of CPUID in it
SOURCE = """
#include <cpuid.h>
#include <stdio.h>
int trap(void) { return 0x5ca20f77; }
void ask(void) {
  unsigned a, b, c, d;
  __cpuid_count(7, 0, a, b, c, d);
  printf("%u %u %u ", b, c, d);
  __cpuid_count(7, 1, a, b, c, d);
  printf("%u %u\\n", a, d);
  fflush(stdout);
}
int main(void) { ask(); }
"""
ASK = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).ask()"

#: by what is hidden: the bits of each number above that are cleared, as Intel's manual numbers them
AMX = [set(), set(), {22, 24, 25}, {21}, {8}]
CLEARED = {
    "amx": AMX,
    "avx512": [
        {16, 17, 21, 26, 27, 28, 30, 31},
        {1, 6, 11, 12, 14},
        {2, 3, 8, 23} | AMX[2],
        {4, 5, 23} | AMX[3],
        set(range(32)),
    ],
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A library and a program that ask the CPU, and a library of which nobody was told."""
    folder = tmp_path_factory.mktemp("compiled")
    paths = {name: folder / name for name in ("library.so", "program", "other.so")}
    for path in paths.values():
        kind = ["-shared", "-fPIC"] if path.suffix else []
        subprocess.run(["cc", *kind, "-x", "c", "-", "-o", path], input=SOURCE, text=True, check=True)
    return paths


def ask(path: Path, variables: dict[str, str]) -> list[int]:
    command = [sys.executable, "-c", ASK, path] if path.suffix else [path]
    ran = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return list(map(int, ran.stdout.split()))


@pytest.mark.parametrize("hidden", SETS)
@pytest.mark.parametrize("who", ["library.so", "program"])
def test_only_the_bits_of_what_is_hidden_are_cleared(
    compiled: dict[str, Path], hidden: str, who: str, tmp_path: Path
) -> None:
    known = ask(compiled["other.so"], {})
    for _ in range(2):  # the second time with the places that were kept
        variables = environment(hidden, [compiled[who]], tmp_path)
        assert variables[HIDDEN] == hidden
        assert (tmp_path / "sites").read_text().startswith(f"{compiled[who]}\t")
        wanted = [n & ~sum(1 << bit for bit in bits) for n, bits in zip(known, CLEARED[hidden])]
        assert ask(compiled[who], variables) == wanted
        assert ask(compiled["other.so"], variables) == known


def test_a_file_that_changed_is_read_again(compiled: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "changed.so"
    path.write_bytes(compiled["library.so"].read_bytes())
    environment("amx", [path], tmp_path / "kept")
    path.write_bytes(Path(compiled["program"]).read_bytes())
    os.utime(path, ns=(1, 1))
    environment("amx", [path], tmp_path / "kept")
    kept = (tmp_path / "kept" / "sites").read_text().splitlines()
    assert kept == [f"{path}\t{' '.join(f'{at:x}' for at in places(compiled['program']))}"]


def test_numbers_with_the_bytes_of_cpuid_are_left_alone(compiled: dict[str, Path]) -> None:
    data = compiled["library.so"].read_bytes()
    assert data.count(b"\x0f\xa2") > len(places(compiled["library.so"])) == 2


def test_only_programs_and_libraries_are_read(compiled: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    assert [is_loadable(path) for path in (*compiled.values(), tmp_path / "text")] == [True, True, True, False]


def test_hiding_what_the_cpu_lacks_is_skipped_where_one_asks_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.without_isa.__main__.has", lambda hidden: False)
    done = CliRunner().invoke(main, ["--unless-absent", "amx", "false"])
    assert done.exit_code == 0
    assert done.output.startswith("skipped: this CPU has no amx to hide")


def test_one_set_is_hidden_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDDEN, "amx")
    done = CliRunner().invoke(main, ["avx512", "false"])
    assert done.exit_code == 2
    assert "amx is hidden already" in done.output
