"""Operators of ONNX that stay one call until no compiler takes them."""

from . import recurrent  # noqa: F401 - declares LSTM, GRU and RNN
