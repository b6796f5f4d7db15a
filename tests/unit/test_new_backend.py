"""`tvm-byoc new-backend`: names, folders and files; tests/packaging installs and tests what it writes."""

from pathlib import Path

import pytest

from tvm_byoc_dnnl.cli.build import write_backend
from tvm_byoc_dnnl.core.errors import InputError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "vendor_package"


def test_it_writes_the_example_under_another_name(tmp_path):
    written = write_backend("my_npu", tmp_path / "new")
    names = {str(file.relative_to(tmp_path / "new")) for file in written}
    assert {"pyproject.toml", "src/my_npu/__init__.py", "tests/test_my_npu.py", ".github/workflows/test.yml"} <= names
    for file in written:
        text = file.read_text()
        assert "toy" not in text
        source = str(file.relative_to(tmp_path / "new")).replace("my_npu", "toy_npu")
        assert text.replace("my_npu", "toy_npu").replace("my-npu", "toy-npu") == (EXAMPLE / source).read_text()


@pytest.mark.parametrize("name", ["My", "9x", "a-b", "", "class", "_x", "a__b", "x/../y"])
def test_a_name_that_is_none_is_refused(name, tmp_path):
    with pytest.raises(InputError, match="expected lower case letters"):
        write_backend(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["dnnl", "tvm"])
def test_a_name_that_is_taken_is_refused(name, tmp_path):
    with pytest.raises(InputError, match="already"):
        write_backend(name, tmp_path / "new")


def test_files_are_never_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="new or empty"):
        write_backend("my_npu", tmp_path)
    with pytest.raises(InputError, match="new or empty"):
        write_backend("my_npu", tmp_path / "mine.txt")
    assert [f.name for f in tmp_path.iterdir()] == ["mine.txt"]
