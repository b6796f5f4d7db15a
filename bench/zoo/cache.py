"""Exports are made once and kept on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

import onnx

__all__ = ["cached", "folder"]


def folder() -> Path:
    """The folder of models: ``$XDG_CACHE_HOME`` or ``~/.cache``, below ``tvm_byoc_dnnl/zoo``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tvm_byoc_dnnl" / "zoo"


def cached(name: str, make: Callable[[], onnx.ModelProto], sources: Iterable[Path], packages: Iterable[str]) -> Path:
    """The file of a model, made when it is missing or when what makes it has changed.

    Parameters
    ----------
    name : str
        The model.
    make : callable
        Makes it.
    sources : iterable of Path
        The code that makes it.
    packages : iterable of str
        The distributions that make it.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    for package in packages:
        digest.update(f"{package} {version(package)}".encode())
    path = folder() / f"{name}-{digest.hexdigest()[:12]}.onnx"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{name}-{'?' * 12}.onnx"):
            old.unlink()
        unfinished = path.with_suffix(f".{os.getpid()}")
        onnx.save(make(), unfinished)
        unfinished.rename(path)  # another process never sees half a file
    return path
