"""Operators of ONNX that stay one call until no compiler takes them."""

from . import recurrent  # noqa: F401 - declares LSTM, GRU and RNN
from .expand import Expand, expand, whole_ops
from .table import Operator, attributes_of, declare, inputs_of, is_whole, operator, wanted_of

__all__ = [
    "Expand",
    "Operator",
    "attributes_of",
    "declare",
    "expand",
    "inputs_of",
    "is_whole",
    "operator",
    "wanted_of",
    "whole_ops",
]
