"""doctor: what it says of a machine that lacks something."""

from __future__ import annotations

import pytest

from tvm_byoc_dnnl.report import doctor


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
