"""AVX-512 is hidden from a library that asks the CPU for it, and from no other."""

import os
import subprocess
import sys
from pathlib import Path

from bench.without_avx512 import HIDDEN, environment

SOURCE = """
#include <cpuid.h>
unsigned features(void) {
  unsigned a, b, c, d;
  __cpuid_count(7, 0, a, b, c, d);
  return b;
}
"""
#: prints what two libraries say: CPUID, leaf 7, register EBX
ASK = "import ctypes, sys; print(*(ctypes.CDLL(path).features() & 0xFFFFFFFF for path in sys.argv[1:]))"
AVX2, AVX512F = 1 << 5, 1 << 16


def test_only_the_bits_of_avx512_are_hidden(tmp_path: Path) -> None:
    changed, other = tmp_path / "changed.so", tmp_path / "other.so"
    for library in (changed, other):
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=SOURCE, text=True, check=True)

    for _ in range(2):  # the second time with the places that were kept
        variables = environment([changed], tmp_path / "kept")
        asked = subprocess.run(
            [sys.executable, "-c", ASK, changed, other],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        hidden, known = map(int, asked.stdout.split())
        assert HIDDEN in variables
        assert (tmp_path / "kept" / "sites").read_text().startswith(f"{changed}\t")
        assert not hidden & AVX512F
        assert hidden & AVX2 == known & AVX2
        assert known & ~hidden & ((1 << 16) - 1) == 0
