"""doctor: what it says of a machine that lacks something."""

from __future__ import annotations

import pytest

from tvm_byoc_dnnl.report import doctor
from tvm_byoc_dnnl.runtime.base import Company


def finding(name: str) -> doctor.Finding:
    return next(f for f in doctor.examine() if f.name == name)


def test_without_a_compiler_it_says_what_will_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding("C++ compiler").status == doctor.OK
    monkeypatch.setattr(doctor, "get_cc", lambda: None)
    found = finding("C++ compiler")
    assert found.status == doctor.WARNING
    assert "none on PATH" in found.value and "export_library" in found.value and "output='source'" in found.value
    assert "apt-get install g++" in found.fix


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    found = finding("C++ compiler")
    assert found.status == doctor.WARNING and "/nowhere/g++ of the variable CXX is no program" in found.value


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        (Company(late=0, narrowed=2), doctor.OK),  # one look at fewer threads
        (Company(late=9, narrowed=2), doctor.OK),  # late now and then
        (Company(late=0, narrowed=90), doctor.OK),  # fewer threads are faster
        (Company(late=3, narrowed=90), doctor.WARNING),
    ],
)
def test_calls_that_run_on_fewer_threads_because_of_other_programs(calls: Company, status: str) -> None:
    _, found, *problem = doctor._in_company(calls)
    assert f"{calls.late} of 100 calls" in found and f"{calls.narrowed} ran on fewer threads" in found
    assert (problem or [doctor.OK])[0] == status
