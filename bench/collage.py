"""Networks of Collage's table that the zoo does not have, built in code: true sizes, seeded random weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from examples.open_models import Net

__all__ = ["COLLAGE"]


class _Net(Net):
    """A network whose input is ``x``; the number of channels of each value is known."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__(0)
        self._shape, self._axes = shape, len(shape) - 2
        self.channels = {"x": shape[1]}

    def op(self, kind: str, *inputs: Any, channels: int = 0, **attributes: Any) -> str:
        name: str = self(kind, *inputs, **attributes)
        self.channels[name] = channels or self.channels[inputs[0]]
        return name

    def conv(
        self, x: str, channels: int, kernel: int, stride: int | Sequence[int] = 1, groups: int = 1, act: str = "Relu"
    ) -> str:
        """Convolution and activation; batch norms are folded already, as in a deployed model."""
        strides = [stride] * self._axes if isinstance(stride, int) else list(stride)
        inputs, window = self.channels[x] // groups, [kernel] * self._axes
        weight = self.weight(channels, inputs, *window, std=float(np.sqrt(2 / inputs / kernel**self._axes)))
        sizes = {"strides": strides, "pads": [kernel // 2] * 2 * self._axes, "group": groups}
        y = self.op("Conv", x, weight, self.weight(channels, std=0.1), channels=channels, **sizes)
        if act == "LeakyRelu":
            return self.op(act, y, alpha=0.1)
        return self.op(act, y) if act else y

    def pool(self, kind: str, x: str, kernel: int = 3, stride: int | Sequence[int] = 1) -> str:
        strides = [stride] * self._axes if isinstance(stride, int) else list(stride)
        pads = [kernel // 2] * 2 * self._axes
        return self.op(kind, x, kernel_shape=[kernel] * self._axes, strides=strides, pads=pads)

    def concat(self, *parts: str) -> str:
        return self.op("Concat", *parts, channels=sum(self.channels[p] for p in parts), axis=1)

    def classes(self, x: str, count: int = 1000) -> str:
        flat = self.op("Flatten", self.op("GlobalAveragePool", x))
        weights = self.weight(self.channels[x], count, std=0.1), self.weight(count, std=0.1)
        return self.op("Gemm", flat, *weights, channels=count)

    def of(self, *outputs: str) -> onnx.ModelProto:
        named = {f"y{i}": (name, None) for i, name in enumerate(outputs)}
        return onnx.shape_inference.infer_shapes(self.model({"x": (onnx.TensorProto.FLOAT, self._shape)}, named))


def _dcgan() -> onnx.ModelProto:
    """The generator of 64 by 64 pictures."""
    net, x = _Net((1, 100, 1, 1)), "x"
    for number, channels in enumerate((512, 256, 128, 64, 3)):
        weight = net.weight(net.channels[x], channels, 4, 4, std=0.02)
        sizes = {"strides": [2, 2], "pads": [1] * 4} if number else {}
        x = net.op("ConvTranspose", x, weight, net.weight(channels, std=0.1), channels=channels, **sizes)
        x = net.op("Relu" if channels > 3 else "Tanh", x)
    return net.of(x)


def _bottlenecks(net: _Net, x: str, width: int, groups: int) -> str:
    """The four stages of ResNet-50, ``width`` channels inside of the first."""
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            inside, outputs, stride = width << stage, 256 << stage, 2 if stage and not block else 1
            y = net.conv(net.conv(x, inside, 1), inside, 3, stride, groups)
            y = net.conv(y, outputs, 1, act="")
            x = net.op("Relu", net.op("Add", y, x if block else net.conv(x, outputs, 1, stride, act="")))
    return net.classes(x)


def _resnext50() -> onnx.ModelProto:
    """32 groups of 4 channels."""
    net = _Net((1, 3, 224, 224))
    return net.of(_bottlenecks(net, net.pool("MaxPool", net.conv("x", 64, 7, 2), 3, 2), 128, 32))


def _resnet50_3d() -> onnx.ModelProto:
    """16 pictures of a film."""
    net = _Net((1, 3, 16, 112, 112))
    return net.of(_bottlenecks(net, net.pool("MaxPool", net.conv("x", 64, 7, (1, 2, 2)), 3, 2), 64, 1))


def _yolov3() -> onnx.ModelProto:
    """Darknet-53 and three heads, 416 by 416."""
    net = _Net((1, 3, 416, 416))

    def conv(x: str, channels: int, kernel: int, stride: int = 1) -> str:
        return net.conv(x, channels, kernel, stride, act="LeakyRelu")

    x, stages = conv("x", 32, 3), []
    for channels, count in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        x = conv(x, channels, 3, 2)
        for _ in range(count):
            x = net.op("Add", conv(conv(x, channels // 2, 1), channels, 3), x)
        stages.append(x)
    outputs = []
    for channels, beside in ((512, None), (256, stages[3]), (128, stages[2])):
        if beside is not None:
            scales = np.array([1, 1, 2, 2], "float32")
            x = net.concat(net.op("Resize", conv(x, channels, 1), "", scales, mode="nearest"), beside)
        for _ in range(2):
            x = conv(conv(x, channels, 1), 2 * channels, 3)
        x = conv(x, channels, 1)
        outputs.append(net.conv(conv(x, 2 * channels, 3), 255, 1, act=""))
    return net.of(*outputs)


def _nasnet_a() -> onnx.ModelProto:
    """NASNet-A's shape, mobile: cells of separable convolutions and pools of two inputs."""
    net = _Net((1, 3, 224, 224))

    def separable(x: str, channels: int, kernel: int, stride: int = 1) -> str:
        for step in (stride, 1):
            wide = net.conv(net.op("Relu", x), net.channels[x], kernel, step, net.channels[x], act="")
            x = net.conv(wide, channels, 1, act="")
        return x

    def cell(x: str, before: str, width: int, stride: int) -> str:
        x, before = net.conv(net.op("Relu", x), width, 1, act=""), net.conv(net.op("Relu", before), width, 1, act="")
        pairs = (
            (separable(x, width, 5, stride), separable(before, width, 3, stride)),
            (separable(before, width, 5, stride), separable(before, width, 3, stride)),
            (net.pool("AveragePool", x, 3, stride), net.pool("MaxPool", before, 3, stride)),
            (net.pool("AveragePool", before, 3, stride), separable(x, width, 3, stride)),
        )
        return net.concat(*(net.op("Add", *pair) for pair in pairs))

    x = before = net.conv("x", 32, 3, 2, act="")
    for width, stride, count in ((11, 2, 0), (22, 2, 0), (44, 1, 3), (88, 2, 3), (176, 2, 3)):
        x = before = cell(x, before, width, stride)
        for _ in range(count):
            x, before = cell(x, before, width, 1), x
    return net.of(net.classes(net.op("Relu", x)))


#: name → builder
COLLAGE: dict[str, Callable[[], onnx.ModelProto]] = {
    "dcgan": _dcgan,
    "nasnet_a": _nasnet_a,
    "resnet50_3d": _resnet50_3d,
    "resnext50": _resnext50,
    "yolov3": _yolov3,
}
