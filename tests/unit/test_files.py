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

from tvm_byoc_dnnl.core import files
from tvm_byoc_dnnl.core.errors import ExportError, InputError
from tvm_byoc_dnnl.core.files import (
    append,
    opened,
    read,
    read_text,
    why_not_written,
    write_text,
    written,
    written_folder,
)

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
from tvm_byoc_dnnl.core.files import write_text, written_folder
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
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert got == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_standard_output_is_written_to_also_where_it_is_a_file(tmp_path: Path) -> None:
    code = "from tvm_byoc_dnnl.core.files import write_text; write_text('/dev/stdout', 'text'); print(' and more')"
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


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ExportError, match="no process reads this pipe"):
        write_text(tmp_path / "pipe", "lost")


def odd_names(folder: Path) -> dict[str, tuple[Path, str]]:
    """What is no regular file → path, and the word for it."""
    os.mkfifo(folder / "pipe")
    (folder / "to_pipe").symlink_to("pipe")
    (folder / "folder").mkdir()
    (folder / "circle").symlink_to("circle")
    (folder / "file").write_text("text")
    return {
        "pipe": (folder / "pipe", "it is a pipe"),
        "link to a pipe": (folder / "to_pipe", "it is a pipe"),
        "folder": (folder / "folder", "it is a folder"),
        "device": (Path("/dev/zero"), "it is a device"),
        "circle of links": (folder / "circle", "symbolic links"),
        "below a file": (folder / "file" / "x", "Not a directory"),
        "null byte": (Path("a\0b"), "null"),
        "long name": (folder / ("n" * 300), "too long"),
    }


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    for path, why in odd_names(tmp_path).values():
        with pytest.raises(InputError, match=rf"cannot read .*{why}.*; expected a poem"):
            read(path, "a poem")
        with pytest.raises(OSError, match=why):
            opened(path)
    assert read_text(tmp_path / "file", "a poem") == "text"
    (tmp_path / "file").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="byte 3 is not UTF-8; expected a poem"):
        read_text(tmp_path / "file", "a poem")


def test_a_link_is_not_followed_where_it_must_not_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for target in ("file", "absent"):
        link = tmp_path / f"to_{target}"
        link.symlink_to(target)
        with pytest.raises(OSError, match="symbolic links"):
            opened(link, follow=False)
        with written(link, follow=False) as aside:
            aside.write_text("new")
        assert not link.is_symlink() and link.read_text() == "new"
    assert (tmp_path / "file").read_text() == "precious" and not (tmp_path / "absent").exists()


def test_what_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    for path, why in odd_names(tmp_path).values():
        assert why in (why_not_written(path) or ""), path
    assert "no folder" in (why_not_written(tmp_path / "none" / "x") or "")
    for path in (tmp_path / "file", tmp_path / "new", "/dev/stdout", "/dev/fd/7"):
        assert why_not_written(path) is None


def test_a_folder_that_is_not_ours_to_write_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_arguments: False)  # root may write anywhere
    assert "you may not write to the folder" in (why_not_written(tmp_path / "x") or "")


def test_bytes_are_added_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "times"
    append(path, b"one\n")
    append(path, b"two\nhal")
    append(path, b"three\n", end=8)
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    code = f"""
import resource
from tvm_byoc_dnnl.core.files import append
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
append({str(path)!r}, b"x" * 100)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "OSError" in done.stderr
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    with pytest.raises(OSError, match="No such device"):
        append(next(iter(odd_names(tmp_path).values()))[0], b"x")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    namespace = files._process_namespace()
    left = [tmp_path / f".r.{pid}-{namespace}-{'0' * 16}" for pid in (dead.pid, os.getpid(), 999_999_999)]
    for folder in left:
        folder.mkdir()
    (left[0] / "half").write_text("x")
    write_text(tmp_path / "r.json", "new")
    assert [folder.exists() for folder in left] == [False, True, False]


def test_files_of_a_folder_appear_together(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError), written_folder(tmp_path / "out") as aside:
        (aside / "a").write_text("half \udc80", encoding="utf-8")
    assert list((tmp_path / "out").iterdir()) == []
    with written_folder(tmp_path / "out") as aside:
        (aside / "a").write_text("1")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
