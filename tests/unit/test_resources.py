"""Where no memory or no descriptor is left, the error says so, and is of the type that Python has for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tvm_byoc_dnnl import load
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.core.errors import ArtifactError, InputError, OutOfFilesError, OutOfMemoryError, out_of_resources
from tvm_byoc_dnnl.frontends.onnx import importer as onnx_import
from tvm_byoc_dnnl.frontends.onnx.importer import load_apart, load_onnx

FILES, MEMORY = (OSError(n, os.strerror(n)) for n in (errno.EMFILE, errno.ENOMEM))
CAUSES = [
    (FILES, OutOfFilesError, OSError),
    (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), OutOfFilesError, OSError),
    (ArtifactError(f"cannot load x.so: {os.strerror(errno.EMFILE)}"), OutOfFilesError, OSError),
    (MEMORY, OutOfMemoryError, MemoryError),
    (MemoryError(), OutOfMemoryError, MemoryError),
]


@pytest.mark.parametrize(("cause", "kind", "builtin"), CAUSES)
def test_the_kinds(cause: Exception, kind: type[Exception], builtin: type[Exception]) -> None:
    error = out_of_resources(cause)
    assert type(error) is kind and isinstance(error, builtin)
    assert str(error)


@pytest.mark.parametrize("other", [ValueError("bad"), FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))])
def test_other_causes(other: Exception) -> None:
    assert out_of_resources(other) is None


@pytest.mark.parametrize(("cause", "kind", "_builtin"), CAUSES)
def test_while_a_library_is_loaded(
    cause: Exception, kind: type[Exception], _builtin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(b"")

    def fail(*_: Any) -> Any:
        raise cause

    monkeypatch.setattr(_native, "load_library", fail)
    with pytest.raises(kind):
        load(path)


@pytest.fixture
def no_descriptors() -> Iterator[None]:
    """A process that has as many open files as it may have."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 256), limits[1]))
    try:
        while True:
            try:
                opened.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("read", [load_onnx, load_apart])
def test_a_model_that_cannot_be_opened(read: Any, tmp_path: Path, no_descriptors: None) -> None:
    with pytest.raises((OutOfFilesError, InputError)) as error:
        read(Path(onnx_import.__file__))  # exists; it was not opened here
    assert type(error.value) is OutOfFilesError
    assert "ulimit" in str(error.value)
