"""This package and its peers side by side on one model, each in a process of its own."""

from __future__ import annotations

from .engines import ENGINES, Engine
from .measure import Comparison, Measurement, Settings, Spread, compare
from .report import to_json, to_table
from .run import Load, Model, Throughput, choose_engines, find_model, measure_throughput, run

__all__ = [
    "ENGINES",
    "Comparison",
    "Engine",
    "Load",
    "Measurement",
    "Model",
    "Settings",
    "Spread",
    "Throughput",
    "choose_engines",
    "compare",
    "find_model",
    "measure_throughput",
    "run",
    "to_json",
    "to_table",
]
