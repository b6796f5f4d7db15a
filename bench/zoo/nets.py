"""Convolutional networks in plain torch, so that torchvision is not needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["MobileNetV2", "ResNet", "UNet"]


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: Callable[[], nn.Module] | None = None
) -> nn.Sequential:
    """Convolution, batch norm and activation, as nearly all of these networks are made of."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([act()] if act else []))


class _InvertedResidual(nn.Module):
    """MobileNetV2's block: widen, filter each channel by itself, narrow without an activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int) -> None:
        super().__init__()
        wide = inputs * widen
        layers = [_conv(inputs, wide, 1, act=nn.ReLU6)] if widen > 1 else []
        layers += [_conv(wide, wide, 3, stride, groups=wide, act=nn.ReLU6), _conv(wide, outputs, 1)]
        self.body = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.has_shortcut else self.body(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 1.0, 1000 classes."""

    # widening, channels, blocks, stride of the first
    _STAGES = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_conv(3, 32, 3, 2, act=nn.ReLU6)]
        width = 32
        for widen, channels, count, stride in self._STAGES:
            for i in range(count):
                blocks.append(_InvertedResidual(width, channels, stride if i == 0 else 1, widen))
                width = channels
        blocks.append(_conv(width, 1280, 1, act=nn.ReLU6))
        self.features = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class _Residual(nn.Module):
    """ResNet's block: two 3×3 convolutions, or (``is_bottleneck``) a 3×3 between two 1×1."""

    def __init__(self, inputs: int, width: int, stride: int, is_bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if is_bottleneck else width
        if is_bottleneck:
            layers = [_conv(inputs, width, 1, act=nn.ReLU), _conv(width, width, 3, stride, act=nn.ReLU)]
            layers.append(_conv(width, outputs, 1))
        else:
            layers = [_conv(inputs, width, 3, stride, act=nn.ReLU), _conv(width, width, 3)]
        self.body = nn.Sequential(*layers)
        self.shortcut = _conv(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet of four stages, 1000 classes.

    Parameters
    ----------
    counts : tuple of int
        Blocks per stage: (2, 2, 2, 2) is ResNet-18, (3, 4, 6, 3) with bottlenecks ResNet-50.
    is_bottleneck : bool
        Which kind of block.
    """

    def __init__(self, counts: tuple[int, ...], is_bottleneck: bool) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_conv(3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, count in enumerate(counts):
            for i in range(count):
                width = 64 << stage
                blocks.append(_Residual(inputs, width, 2 if stage and not i else 1, is_bottleneck))
                inputs = 4 * width if is_bottleneck else width
        self.features = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class UNet(nn.Module):
    """U-Net with four levels: pooling on the way down, transposed convolutions on the way up.

    Parameters
    ----------
    width : int
        Channels of the first level; they double with each.
    classes : int
        Channels of the result.
    """

    def __init__(self, width: int = 32, classes: int = 2, depth: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(self._level(i, o) for i, o in zip([3, *widths], widths))
        self.lift = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(self._level(2 * w, w) for w in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _level(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(_conv(inputs, outputs, 3, act=nn.ReLU), _conv(outputs, outputs, 3, act=nn.ReLU))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[Any] = []
        for level in self.down:
            x = level(self.pool(x) if kept else x)
            kept.append(x)
        skips: Iterator[torch.Tensor] = reversed(kept[:-1])
        for lift, level, skip in zip(self.lift, self.up, skips):
            x = level(torch.cat([skip, lift(x)], 1))
        return self.head(x)
