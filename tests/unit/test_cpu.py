"""The name of a CPU by its numbers."""

from __future__ import annotations

import platform

import pytest

from tvm_byoc_dnnl.core.machine import cpu_kind, cpu_name, kind_of


@pytest.mark.parametrize(
    ("vendor", "family", "model", "stepping", "kind"),
    [
        ("AuthenticAMD", 25, 1, 1, "znver3"),
        ("AuthenticAMD", 25, 17, 1, "znver4"),
        ("AuthenticAMD", 25, 33, 0, "znver3"),
        ("AuthenticAMD", 25, 160, 2, "znver4"),
        ("AuthenticAMD", 26, 2, 1, "znver5"),
        ("AuthenticAMD", 27, 2, 1, "AuthenticAMD family 27 model 2"),
        ("GenuineIntel", 6, 85, 4, "skylake-avx512"),
        ("GenuineIntel", 6, 85, 7, "cascadelake"),
        ("GenuineIntel", 6, 85, 11, "cooperlake"),
        ("GenuineIntel", 6, 143, 8, "sapphirerapids"),
        ("GenuineIntel", 6, 173, 1, "graniterapids"),
        ("GenuineIntel", 6, 255, 1, "GenuineIntel family 6 model 255"),
        ("GenuineIntel", 15, 143, 1, "GenuineIntel family 15 model 143"),
    ],
)
def test_the_kind_follows_from_the_numbers(vendor: str, family: int, model: int, stepping: int, kind: str) -> None:
    fields = {"vendor_id": vendor, "cpu family": f"{family}", "model": f"{model}", "stepping": f"{stepping}"}
    assert kind_of(fields) == kind


@pytest.mark.parametrize("fields", [{}, {"vendor_id": "X", "model": "many"}], ids=["nothing", "no numbers"])
def test_without_numbers_the_system_names_it(fields: dict[str, str]) -> None:
    assert kind_of(fields) == platform.machine()


def test_this_cpu_has_a_name() -> None:
    assert cpu_kind() and cpu_name()
