"""This package and its peers side by side on one model, each in a process of its own."""

# ruff: noqa: I001 - it would give each name a statement of its own
from __future__ import annotations

from .engines import ENGINES as ENGINES, Engine as Engine
from .measure import (
    Comparison as Comparison,
    Measurement as Measurement,
    Settings as Settings,
    Spread as Spread,
    compare as compare,
)
from ..models import Model as Model, find_model as find_model
from .run import to_json as to_json, to_table as to_table
from .run import (
    Load as Load,
    Throughput as Throughput,
    choose_engines as choose_engines,
    measure_throughput as measure_throughput,
    run as run,
)
