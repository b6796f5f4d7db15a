"""Limits of what a model and a call may ask for, each with its reason; `docs/limits.md` shows this table.

A model or a call beyond a limit is refused with an error that names the limit, before memory or time is spent on it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """One limit, by its name in this module."""

    name: str
    value: int  #: the largest that is accepted
    what: str  #: is counted
    reason: str  #: what would happen without it


MOST_ELEMENTS = 1 << 38
MOST_EXTENT = (1 << 31) - 1
MOST_NESTED = 32
MOST_NODES = 1 << 20
MOST_PIXELS = 1 << 13
MOST_ROUNDS = 1 << 24
MOST_SAMPLES = 1 << 10

LIMITS = (
    Limit(
        "MOST_ELEMENTS",
        MOST_ELEMENTS,
        "elements of one tensor: of a constant, an input, a result of constant sizes, or of sizes that a call computes",
        "the number of bytes may not fit into 64 bits, and a small buffer would be written beyond its end",
    ),
    Limit(
        "MOST_EXTENT",
        MOST_EXTENT,
        "each number of a window's kernel_shape, pads, strides and dilations",
        "libraries compute with them in 32 bits",
    ),
    Limit(
        "MOST_NESTED",
        MOST_NESTED,
        "graphs inside of graphs, and functions that call each other, of an ONNX model",
        "the stack of the process is bounded, and a function that calls itself has no end",
    ),
    Limit(
        "MOST_NODES",
        MOST_NODES,
        "nodes of an ONNX model whose functions are written out",
        "forty functions, each of which calls the next one twice, are 10¹² nodes",
    ),
    Limit(
        "MOST_PIXELS",
        MOST_PIXELS,
        "pixels between the first one of a picture and a corner of a box, where MOST_SAMPLES does not allow more",
        "the same",
    ),
    Limit(
        "MOST_ROUNDS",
        MOST_ROUNDS,
        "rounds of a loop of an ONNX model whose number a call knows",
        "a loop whose condition never fails has no end",
    ),
    Limit(
        "MOST_SAMPLES",
        MOST_SAMPLES,
        "samples along one axis of one bin of roi_align, in boxes of more than MOST_PIXELS",
        "a box of 10⁹ pixels is sampled 10¹⁸ times",
    ),
)
