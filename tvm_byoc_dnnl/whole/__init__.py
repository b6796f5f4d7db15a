"""Operators of ONNX that stay one call until no compiler takes them."""

from . import recurrent  # noqa: F401 - declares LSTM, GRU and RNN
from .table import (
    DECLARED_LATER,
    RELU_OF_NUMBERS,
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
    relu_of_numbers,
    rounded,
    wanted_of,
    whole_ops,
)

__all__ = [
    "DECLARED_LATER",
    "RELU_OF_NUMBERS",
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
    "relu_of_numbers",
    "rounded",
    "wanted_of",
    "whole_ops",
]
