"""Models of PyTorch with dynamic sizes, through torch.export and through both of its ONNX exporters."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.tvm_version import open_cache
from tvm_byoc_dnnl.core.errors import UnsupportedError

torch = pytest.importorskip("torch", reason="needs torch, which `make test-torch` installs")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = [pytest.mark.native, open_cache]

BATCH, LENGTH, PAST = (torch.export.Dim(name) for name in ("batch", "length", "past"))
HALF, SIDE = torch.export.Dim("half"), torch.export.Dim("side")


class Picture(nn.Module):
    """A U-Net of one level: halves a picture, and makes it as large as it was in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 4, 1)
        nn.init.normal_(self.norm.weight)

    def forward(self, x: Any) -> Any:
        full = torch.relu(self.norm(self.first(x)))
        small = functional.max_pool2d(full, 2)
        small = torch.relu(self.second(small) + small)
        large = functional.interpolate(small, scale_factor=2, mode="nearest")
        large = self.last(torch.cat([large, full], 1))
        return functional.interpolate(large, size=x.shape[2:], mode="bilinear") + large


class Encoder(nn.Module):
    """One layer of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(31, 16), nn.Embedding(320, 16), nn.LayerNorm(16)
        self.query, self.key, self.value, self.last = (nn.Linear(16, 16) for _ in range(4))
        self.wide, self.narrow, self.pool = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 5)

    def forward(self, ids: Any, mask: Any) -> Any:
        batch, length = ids.shape
        x = self.norm(self.words(ids) + self.places(torch.arange(length)))
        query, key, value = (
            linear(x).view(batch, length, 2, 8).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / 8**0.5 + (1.0 - mask[:, None, None].float()) * -1e4
        x = x + self.last((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, 16))
        x = self.norm(x + self.narrow(functional.gelu(self.wide(x))))
        return x, torch.tanh(self.pool(x[:, 0]))


class Decoder(nn.Module):
    """One layer of GPT, whose cache goes in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(31, 16), nn.LayerNorm(16)
        self.query, self.key, self.value, self.last = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, ids: Any, mask: Any, past: tuple[Any, Any]) -> Any:
        batch, length = ids.shape
        x = self.norm(self.words(ids))
        query, key, value = (
            linear(x).view(batch, length, 2, 8).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        bias = torch.where(mask[:, None, None].bool(), 0.0, -torch.inf)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return x + self.last(mixed.transpose(1, 2).reshape(batch, length, 16)), key, value


class GroupedDecoder(nn.Module):
    """One layer of Llama: rotated queries and keys, two heads for each pair of them, and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(31, 32), nn.LayerNorm(32)
        self.query, self.key, self.value, self.last = (nn.Linear(32, n) for n in (32, 16, 16, 32))

    def forward(self, ids: Any, mask: Any, past: tuple[Any, Any]) -> Any:
        batch, length = ids.shape
        first = past[0].shape[2]
        places = torch.arange(first, first + length)
        turns = places[:, None].float() * (10.0 ** -torch.arange(4).float())
        cos, sin = torch.cat([turns, turns], -1).cos(), torch.cat([turns, turns], -1).sin()
        causal = torch.arange(first + length) <= places[:, None]
        bias = torch.where(causal & mask[:, None, None].bool(), 0.0, torch.finfo(torch.float32).min)

        x = self.norm(self.words(ids))
        query, key, value = (
            linear(x).view(batch, length, -1, 8).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        query, key = (t * cos + torch.cat([-t[..., 4:], t[..., :4]], -1) * sin for t in (query, key))
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        shape = (batch, 2, 2, first + length, 8)
        keys, values = (t[:, :, None].expand(shape).reshape(batch, 4, first + length, 8) for t in (key, value))
        mixed = torch.softmax(query @ keys.transpose(2, 3) / 8**0.5 + bias, -1) @ values
        return x + self.last(mixed.transpose(1, 2).reshape(batch, length, 32)), key, value


def picture(batch: int, half: int, side: int) -> tuple[Any, ...]:
    return (torch.randn(batch, 3, 2 * half, 2 * side),)


def text(batch: int, length: int) -> tuple[Any, ...]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1:, 1 + length // 2 :] = 0
    return torch.randint(0, 31, (batch, length)), mask


def step(batch: int, length: int, past: int) -> tuple[Any, ...]:
    cache = tuple(torch.randn(batch, 2, past, 8) for _ in range(2))
    mask = torch.ones(batch, past + length, dtype=torch.long)
    mask[-1, : past + length - 1] = 0
    return torch.randint(0, 31, (batch, length)), mask, cache


STEP_DIMS = ({0: BATCH, 1: LENGTH}, {0: BATCH, 1: torch.export.Dim.AUTO}, ({0: BATCH, 2: PAST},) * 2)
STEPS = [(1, 1, 0), (3, 1, 5), (2, 7, 1), (1, 1, 300)]
PICTURES = [(1, 1, 2), (3, 4, 3), (0, 2, 7), (1, 150, 2)]

#: model, its inputs of some sizes, its dynamic sizes, the sizes for the exporter, and those to run
MODELS: dict[str, Any] = {
    "picture": (Picture, picture, ({0: BATCH, 2: 2 * HALF, 3: 2 * SIDE},), (2, 5, 3), PICTURES),
    "encoder": (Encoder, text, ({0: BATCH, 1: LENGTH},) * 2, (2, 5), [(1, 1), (3, 7), (0, 2), (1, 300)]),
    "decoder": (Decoder, step, STEP_DIMS, (2, 3, 4), STEPS),
    "grouped decoder": (GroupedDecoder, step, STEP_DIMS, (2, 3, 4), STEPS),
}


def _flat(values: Any) -> list[Any]:
    return [values] if isinstance(values, (torch.Tensor, dict)) else [v for value in values for v in _flat(value)]


def _by_torch_export(model: Any, args: Any, dims: Any) -> Any:
    return torch.export.export(model, args, dynamic_shapes=dims)


def _by_dynamo(model: Any, args: Any, dims: Any) -> onnx.ModelProto:
    return torch.onnx.export(model, args, dynamo=True, dynamic_shapes=dims, verbose=False).model_proto


def _by_old_exporter(model: Any, args: Any, dims: Any) -> onnx.ModelProto:
    names = [f"input_{i}" for i in range(len(_flat(args)))]
    axes = {
        name: {axis: getattr(dim, "__name__", "total").replace("2*", "twice_") for axis, dim in of_input.items()}
        for name, of_input in zip(names, _flat(dims), strict=True)
    }
    file = io.BytesIO()
    torch.onnx.export(model, args, file, dynamo=False, input_names=names, dynamic_axes=axes, opset_version=17)
    return onnx.load_from_string(file.getvalue())


DOORS = [_by_torch_export, _by_dynamo, _by_old_exporter]


@functools.cache
def exported(name: str, door: Any) -> tuple[Any, byoc.Runner]:
    torch.manual_seed(0)
    make, inputs, dims, sizes, _ = MODELS[name]
    model = make().eval()
    return model, byoc.Runner(byoc.compile(door(model, inputs(*sizes), dims)))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_every_size(name: str, door: Any) -> None:
    model, runner = exported(name, door)
    _, inputs, _, _, sizes = MODELS[name]
    for some in sizes:
        args = inputs(*some)
        with torch.no_grad():
            want = [w.numpy() for w in _flat(model(*args))]
        got = runner(*(a.numpy() for a in _flat(args)))
        for result, wanted in zip(got if isinstance(got, list) else [got], want, strict=True):
            assert_right(np.ascontiguousarray(result), wanted, 2e-4)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["decoder", "grouped decoder"])
@pytest.mark.filterwarnings("ignore")
def test_a_cache_grows_in_place(name: str, door: Any) -> None:
    """Its masks have the length ``n + p`` where the cache has ``p + n``; in ONNX a symbol of their own."""
    _, runner = exported(name, door)
    ids, mask, past = step(1, 1, 5)
    _, keys, _ = runner(ids.numpy(), mask.numpy(), *(p.numpy() for p in past))
    ids, mask, _ = step(1, 2, 6)
    _, more, values = runner(ids.numpy(), mask.numpy(), keys, np.ascontiguousarray(keys))
    assert np.shares_memory(keys, more)
    assert not np.shares_memory(keys, values)


@pytest.mark.parametrize("size", [(5, 3), (11, 13), (4, 9)])
def test_nearest_pixels_are_those_of_torch(size: tuple[int, int]) -> None:
    class Resize(nn.Module):
        def forward(self, x: Any) -> Any:
            return functional.interpolate(x, size=size, mode="nearest")

    x = torch.randn(1, 2, 7, 6)
    program = torch.export.export(Resize(), (x,))
    result = byoc.Runner(byoc.compile(program))(x.numpy())
    assert_right(result, Resize()(x).numpy(), 0)


def test_open_sizes_by_a_broken_factor() -> None:
    class Resize(nn.Module):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.options = options

        def forward(self, x: Any) -> Any:
            return functional.interpolate(x, scale_factor=1.5, **self.options)

    def exported(model: Any) -> Any:
        return torch.export.export(model, (torch.randn(1, 2, 8, 6),), dynamic_shapes=({2: torch.export.Dim("h")},))

    nearest = Resize(mode="nearest")
    run, x = byoc.Runner(byoc.compile(exported(nearest))), torch.randn(1, 2, 11, 6)
    assert_right(run(x.numpy()), nearest(x).numpy(), 1e-6)
    with pytest.raises(UnsupportedError, match="whole factors or a size"):  # PyTorch counts in the pixels of the result
        byoc.compile(exported(Resize(mode="bilinear", align_corners=True)))


def test_sizes_that_the_model_fixes_are_not_open() -> None:
    class Sum(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x.reshape(-1, 5) @ torch.ones(5, 2)).reshape(x.shape[0], 3, 2) + torch.ones(3, 2)

    any_size = torch.export.Dim.AUTO
    dims = dict.fromkeys(range(3), any_size)
    program = torch.export.export(Sum(), (torch.ones(4, 3, 5),), dynamic_shapes=(dims,))
    run = byoc.Runner(byoc.compile(program))
    (sizes,) = [i.shape for i in run.inputs]
    assert tuple(sizes[1:]) == (3, 5) and isinstance(sizes[0], str)
    x = np.random.default_rng(0).standard_normal((2, 3, 5), "float32")
    assert_right(np.asarray(run(x)), Sum()(torch.from_numpy(x)).numpy(), 1e-6)
