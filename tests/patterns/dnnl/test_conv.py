"""Convolutions and their transposes, 1-D to 3-D: groups, padding, dilation, layouts; against TVM's own kernels."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.harness import Case, accept, const, data, refuse, table_tests
from tests.unit.graph_reference import deconvolution

nn = relax.op.nn


def conv(d, transposed=False, **options):
    f = getattr(nn, f"conv{d}d_transpose" if transposed else f"conv{d}d")
    return lambda x, w: f(x, w, **options)


def cases(d):
    """Rows of a convolution with ``d`` spatial axes."""
    spatial = (7, 6, 5)[:d]
    last, kernel = "N" + "DHW"[3 - d :] + "C", (3,) * d
    ones, hwio = (1,) * d, "DHW"[3 - d :] + "IO"
    dense = (2, 3, *spatial), (5, 3, *kernel)
    yield "plain", conv(d), *dense
    yield "stride-padding", conv(d, strides=2, padding=1), *dense
    yield "uneven-padding", conv(d, padding=[0] * d + [2] * d), *dense
    yield "dilation", conv(d, dilation=2, padding=2), *dense
    yield "pointwise", conv(d), (1, 17, *spatial), (13, 17, *ones)
    yield "groups", conv(d, groups=3, padding=1), (2, 6, *spatial), (9, 2, *kernel)
    yield "depthwise", conv(d, groups=17, padding=1), (1, 17, *spatial), (17, 1, *kernel)
    yield "channels-last", conv(d, data_layout=last, padding=1), (2, *spatial, 3), (5, 3, *kernel)
    yield "kernel-last", conv(d, data_layout=last, kernel_layout=hwio), (2, *spatial, 3), (*kernel, 3, 5)
    yield "one", conv(d), (1, 1, *ones), (1, 1, *ones)
    yield "no-batch", conv(d, padding=1), (0, 3, *spatial), (5, 3, *kernel)
    if d == 2:  # images of one column, which oneDNN is given as images of one row
        long = {"strides": [2, 1], "padding": [2, 0, 1, 0], "dilation": [2, 1]}
        yield "column", conv(d, **long), (2, 17, 19, 1), (13, 17, 3, 1)
        yield "column-groups", conv(d, groups=3, padding=[1, 0]), (2, 6, 19, 1), (9, 2, 4, 1)
        yield "column-depthwise", conv(d, groups=17, **long), (2, 17, 19, 1), (17, 1, 3, 1)
        yield "column-of-pixels", conv(d, padding=[2, 0]), (1, 1, 19, 1), (1, 1, 5, 1)
        yield "column-padded", conv(d, padding=1), (1, 3, 19, 1), (5, 3, 3, 3)
        yield "column-channels-last", conv(d, data_layout=last, padding=[1, 0]), (2, 19, 1, 3), (5, 3, 3, 1)
        down = {"padding": [2, 0, 1, 0], "dilation": [2, 1]}
        yield "short-rows", conv(d, **down), (2, 17, 19, 3), (13, 17, 3, 1)
        yield "short-rows-depthwise", conv(d, groups=17, **down), (2, 17, 19, 2), (17, 1, 3, 1)
        yield "short-rows-channels-last", conv(d, data_layout=last, padding=[1, 0]), (2, 19, 7, 3), (5, 3, 3, 1)
        yield "short-rows-strided", conv(d, strides=[2, 1], padding=[2, 0]), (2, 17, 19, 2), (13, 17, 3, 1)


def transposed_cases(d):
    """Rows of a transposed convolution with ``d`` spatial axes."""
    spatial, kernel, ones = (4, 3, 5)[:d], (3,) * d, (1,) * d
    dense = (2, 3, *spatial), (3, 5, *kernel)
    yield "plain", conv(d, True), *dense
    yield "stride-padding", conv(d, True, strides=2, padding=1), *dense
    yield "output-padding", conv(d, True, strides=2, output_padding=1), *dense
    yield "uneven-padding", conv(d, True, padding=[0] * d + [2] * d), *dense
    yield "groups", conv(d, True, groups=3), (2, 6, *spatial), (6, 3, *kernel)
    yield "one", conv(d, True), (1, 1, *ones), (1, 1, *ones)
    yield "no-batch", conv(d, True, strides=2), (0, 3, *spatial), (3, 5, *kernel)
    if d == 2:
        yield "column", conv(d, True, strides=[3, 1], padding=[1, 0]), (2, 3, 7, 1), (3, 5, 4, 1)
        yield "short-rows", conv(d, True, padding=[1, 0], dilation=[2, 1]), (2, 3, 7, 3), (3, 5, 4, 1)


def transposed_by_numpy(d, stride, dilation):
    """Of channels last, with the kernel's last too: TVM has neither these layouts nor dilation."""
    attrs = {"strides": [stride] * d, "dilations": [dilation] * d, "pad_begin": [0] * d, "pad_end": [0] * d}

    def reference(x, w):
        weights = np.moveaxis(w, (-1, -2), (0, 1))  # spatial, I, O -> O, I, spatial
        return np.moveaxis(deconvolution([np.moveaxis(x, -1, 1), weights], attrs, None), 1, -1)

    return reference


ACCEPT = [
    *(
        accept(f"conv{d}d-{name}", function, data(*x), const(*w), within=1e-4)
        for d in (1, 2, 3)
        for name, function, x, w in cases(d)
    ),
    *(
        accept(f"conv{d}d_transpose-{name}", function, data(*x), const(*w), within=1e-4)
        for d in (1, 2, 3)
        for name, function, x, w in transposed_cases(d)
    ),
    *(
        accept(
            f"conv{d}d_transpose-channels-last",
            conv(
                d, True, dilation=2, strides=2, data_layout=f"N{'DHW'[3 - d :]}C", kernel_layout=f"{'DHW'[3 - d :]}IO"
            ),
            *(data(2, *(4, 3, 5)[:d], 3), const(*(3,) * d, 3, 5)),
            reference=transposed_by_numpy(d, 2, 2),
        )
        for d in (1, 2, 3)
    ),
    accept("conv2d-weights-at-run-time", conv(2, padding=1), data(2, 3, 7, 5), data(5, 3, 3, 3), within=1e-4),
]

REFUSE = [
    refuse(
        "int8",
        "dtype int8",
        conv(2, out_dtype="int32"),
        data(1, 3, 5, 5, dtype="int8"),
        const(5, 3, 3, 3, dtype="int8"),
    ),
    refuse(
        "blocked", "NCHW4c", conv(2, data_layout="NCHW4c", kernel_layout="OIHW"), data(1, 1, 5, 5, 4), const(4, 4, 3, 3)
    ),
    refuse(
        "open-channels", "whose channels are open", conv(2), data(1, "c", 5, 5), const(5, 3, 3, 3), symbols={"c": 3}
    ),
    refuse(
        "transposed-float64",
        "dtype float64",
        conv(1, True),
        data(1, 3, 5, dtype="float64"),
        const(3, 5, 3, dtype="float64"),
    ),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)


def test_a_symbolic_batch():
    Case(
        conv(2, padding=1), (data("n", 3, 7, 5), const(5, 3, 3, 3)), symbols={"n": 3}, within=1e-4
    ).offloads().matches()


def test_columns_with_what_follows_them():
    """The operands of their post-ops are columns, too."""

    def network(x, v, w, b, z):
        y = nn.relu(relax.op.add(nn.conv2d(x, v, padding=[2, 0]), b))
        y = nn.conv2d(y, w, padding=[2, 0], strides=[2, 1])
        return nn.gelu_tanh(relax.op.add(relax.op.add(y, b), z))

    weights = const(32, 32, 5, 1, low=-0.2, high=0.2)
    inputs = data(2, 32, 37, 1), weights, weights, const(1, 32, 1, 1), data(2, 32, 19, 1)
    Case(network, inputs, within=1e-4).offloads().matches()


# Input channels, output channels, groups, size of the kernel, stride.
FEW_CHANNELS = [(24, 112, 4, 1, 1), (24, 112, 4, 3, 1), (10, 20, 5, 3, 1), (21, 42, 3, 1, 2), (14, 7, 7, 5, 2)]


@pytest.mark.parametrize(("channels", "outputs", "groups", "kernel", "stride"), FEW_CHANNELS)
def test_groups_of_few_channels(channels: int, outputs: int, groups: int, kernel: int, stride: int):
    """Their layouts are chosen by another question to oneDNN: alone, and fused with what follows."""

    def network(x, w, b, z):
        y = nn.conv2d(x, w, groups=groups, padding=kernel // 2, strides=stride)
        return nn.relu(relax.op.add(relax.op.add(y, b), z))

    size = -(-13 // stride)
    Case(
        network,
        (
            data(2, channels, 13, 13),
            const(outputs, channels // groups, kernel, kernel),
            const(1, outputs, 1, 1),
            data(2, outputs, size, size),
        ),
        within=1e-4,
    ).offloads().matches()
