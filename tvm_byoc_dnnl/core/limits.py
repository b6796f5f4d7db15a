"""The most that a model and a call may ask for: what is more is refused, before memory or time is spent on it.

`docs/limits.md` says of each limit what would happen without it.
"""

#: elements of one tensor, and of sizes that a call computes
MOST_ELEMENTS = 1 << 38
#: each number of a window's kernel_shape, pads, strides and dilations
MOST_EXTENT = (1 << 31) - 1
#: graphs inside of graphs, and functions that call each other
MOST_NESTED = 32
#: nodes of a model whose functions are written out
MOST_NODES = 1 << 20
#: pixels between the first one of a picture and a corner of a box, where `MOST_SAMPLES` does not allow more
MOST_PIXELS = 1 << 13
#: samples along one axis of one bin of roi_align, in boxes of more than `MOST_PIXELS`
MOST_SAMPLES = 1 << 10
