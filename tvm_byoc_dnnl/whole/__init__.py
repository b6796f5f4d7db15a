"""Operators of ONNX that stay one call until no compiler takes them."""

from . import recurrent  # noqa: F401 - declares LSTM, GRU and RNN
from .table import (
    DECLARED_LATER,
    ROUNDED,
    Expand,
    Operator,
    attributes_of,
    block_of,
    declare,
    expand,
    inputs_of,
    is_whole,
    operator,
    rounded,
    wanted_of,
    whole_ops,
)

__all__ = [
    "DECLARED_LATER",
    "ROUNDED",
    "Expand",
    "Operator",
    "attributes_of",
    "block_of",
    "declare",
    "expand",
    "inputs_of",
    "is_whole",
    "operator",
    "rounded",
    "wanted_of",
    "whole_ops",
]
