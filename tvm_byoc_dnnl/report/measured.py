"""What is measured: a compiled model, wherever it comes from."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import tvm

from ..api.compile import compile
from ..pipeline.library_file import is_library
from ..runtime.runner import Runner, load


def runner_of(model: Any) -> Runner:
    """A runner of what `compile` or `load` returned, of a library's path, or of a model, which is compiled."""
    if isinstance(model, Runner):
        return model
    if isinstance(model, (str, PathLike)) and is_library(Path(model)):
        return load(model)
    is_compiled = isinstance(model, (tvm.runtime.Executable, tvm.runtime.Module))
    return Runner(model if is_compiled else compile(model))
