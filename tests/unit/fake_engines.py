"""Engines that misbehave on purpose, for test_bench.py; loaded in a process of their own."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

_loaded: list[str] = []


def load(path: str, threads: int, behaviour: str) -> tuple:
    """An engine for the model ``y = relu(x)``."""
    if behaviour == "refuses":
        raise ValueError("this model is not for me\nand more lines")
    if behaviour == "dies":
        os._exit(7)
    if behaviour == "one load":
        _loaded.append(path)
        assert len(_loaded) == 1
    calls = []

    def run(inputs: list) -> list:
        calls.append(None)
        if behaviour == "dies later" and len(calls) > 6:
            os._exit(7)
        print("a library that prints")
        y = np.maximum(inputs[0], 0)
        return {"wrong": [y + 1], "nan": [y * np.nan], "wrong shape": [y[:1]]}.get(behaviour, [y])

    return run, "1.0"


def loader() -> Callable[..., tuple]:
    """There is nothing to import."""
    return load
