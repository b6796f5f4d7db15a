"""Files appear whole or not at all; devices, pipes and links are not replaced."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tvm_byoc_dnnl.errors import ExportError
from tvm_byoc_dnnl.files import write_text, written, written_folder

LIMIT = 4096


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    with written(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), written(path) as aside:
        aside.write_text("half \udc80", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("folder", [False, True])
def test_without_room_nothing_is_left(tmp_path: Path, folder: bool) -> None:
    """In a process of its own, whose files may not grow beyond a limit."""
    code = f"""
import resource
from pathlib import Path
from tvm_byoc_dnnl.files import write_text, written_folder
resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))
if {folder}:
    with written_folder(Path("out")) as aside:
        (aside / "small").write_text("x")
        (aside / "large").write_text("x" * {2 * LIMIT})
else:
    write_text("out", "x" * {2 * LIMIT})
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "ExportError: cannot write out: File too large; make room there" in done.stderr
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != LIMIT


def test_a_device_is_written_to() -> None:
    write_text("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(ExportError, match="cannot write /dev/full: No space left on device; make room"):
        write_text("/dev/full", "x")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_standard_output_is_written_to_also_where_it_is_a_file(tmp_path: Path) -> None:
    code = "from tvm_byoc_dnnl.files import write_text; write_text('/dev/stdout', 'text'); print(' and more')"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    for target in (subprocess.PIPE, (tmp_path / "out").open("w")):
        done = subprocess.run([sys.executable, "-c", code], stdout=target, env=env, check=True, text=True)
        assert (done.stdout or (tmp_path / "out").read_text()) == "text and more\n"


def test_a_link_stays_and_its_target_is_replaced_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert f"{link} is a link" in caplog.text and str(target) in caplog.text


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="No such file or directory; choose a place"):
        write_text(tmp_path / "no" / "r.json", "x")


def test_files_of_a_folder_appear_together(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError), written_folder(tmp_path / "out") as aside:
        (aside / "a").write_text("half \udc80", encoding="utf-8")
    assert list((tmp_path / "out").iterdir()) == []
    with written_folder(tmp_path / "out") as aside:
        (aside / "a").write_text("1")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
