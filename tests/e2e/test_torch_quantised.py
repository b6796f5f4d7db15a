"""PyTorch's quantised models: its operators become those of Relax, and networks of its pt2e flow run on integers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tvm

import tvm_byoc_dnnl as byoc
from tests.e2e.test_quantized import graphs_of, products_of
from tests.harness import assert_right
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.runtime.comparison import difference

torch = pytest.importorskip("torch", reason="needs torch, which `make test-torch` installs")


def run_by_tvm(program, *inputs):
    machine = tvm.relax.VirtualMachine(tvm.compile(to_relax(program), "llvm"), tvm.cpu())
    results = machine["main"](*(tvm.runtime.tensor(x.numpy()) for x in inputs))
    return [np.asarray(result.numpy()) for result in results]


def calls():
    """Each operator of PyTorch's with arguments of its own."""
    import torch.ao.quantization.fx._decomposed

    ops = torch.ops.quantized_decomposed
    scale, zero = torch.tensor([0.03], dtype=torch.double), torch.tensor([7])
    scales, zeros = torch.tensor([0.02, 0.03, 0.05], dtype=torch.double), torch.tensor([0, -3, 5])
    limits = (torch.tensor(-100), torch.tensor(90))

    def there_and_back(quantize, dequantize):
        return lambda x: dequantize(quantize(x))

    def tensor(form, *params):
        q, d = getattr(ops.quantize_per_tensor, form), getattr(ops.dequantize_per_tensor, form)
        return there_and_back(lambda x: q(x, *params), lambda y: d(y, *params))

    def channels(axis, low, high):
        params = (scales, zeros, axis, low, high, torch.int8)
        return there_and_back(
            lambda x: ops.quantize_per_channel(x, *params), lambda y: ops.dequantize_per_channel(y, *params)
        )

    def chosen(choose, low, high, dtype):
        def quantised(x):
            params = (*choose(x, low, high, 1e-6, dtype), low, high, dtype)
            return ops.dequantize_per_tensor.tensor(ops.quantize_per_tensor.tensor(x, *params), *params)

        return quantised

    def tokens(choose):
        def quantised(x):
            params = choose(x, torch.int8)
            stored = ops.quantize_per_token(x, *params, -128, 127, torch.int8)
            return ops.dequantize_per_token(stored, *params, -128, 127, torch.int8, torch.float32)

        return quantised

    return {
        "tokens": tokens(ops.choose_qparams_per_token),
        "tokens, asymmetric": tokens(ops.choose_qparams_per_token_asymmetric),
        "whole uint8": tensor("default", 0.03, 120, 0, 255, torch.uint8),
        "a part of uint8": tensor("default", 0.03, 60, 0, 127, torch.uint8),
        "a part of int8": tensor("default", 0.03, 0, -127, 127, torch.int8),
        "tensors": tensor("tensor", scale, zero, -128, 127, torch.int8),
        "tensors for limits too": tensor("tensor2", scale, zero, *limits, torch.int8),
        "channels": channels(1, -128, 127),
        "channels, a part": channels(1, -90, 100),
        "chosen": chosen(ops.choose_qparams.tensor, 0, 255, torch.uint8),
        "chosen, a part": chosen(ops.choose_qparams.tensor, 0, 127, torch.uint8),
        "chosen, symmetric": chosen(ops.choose_qparams_symmetric.tensor, -127, 127, torch.int8),
        "chosen, symmetric uint8": chosen(ops.choose_qparams_symmetric.tensor, 0, 255, torch.uint8),
    }


def test_operators_give_the_numbers_of_torch():
    made = calls()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.arange(-6, 6, dtype=torch.int8).reshape(3, 4))
            self.register_buffer("s", torch.tensor([0.5, 0.25, 2.0]))

        def forward(self, x):
            dequantize = torch.ops.quantized_decomposed.dequantize_per_channel
            half = dequantize(self.w, self.s, None, 0, -128, 127, torch.int8, out_dtype=torch.float16)
            return (*(call(x) for call in made.values()), half.float() + x[0, 0, 0])

    # Multiples of a number that divides no scale: no quotient lies halfway between two integers.
    x = torch.tensor(np.random.default_rng(0).integers(-999, 999, (2, 3, 40)) * 0.0077, dtype=torch.float32)
    model = Model().eval()
    wanted = model(x)
    results = run_by_tvm(torch.export.export(model, (x,)), x)
    for name, got, want in zip([*made, "without a zero point, to float16"], results, wanted, strict=True):
        wrong = difference(got, want.numpy(), 1e-6)
        assert not wrong, f"{name}: {wrong}"


class Network(torch.nn.Module):
    """Convolutions, plain and depthwise, a residual sum, pooling and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(16)
        self.depthwise = torch.nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.pointwise = torch.nn.Conv2d(16, 16, 1)
        self.linear = torch.nn.Linear(16, 10)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        y = torch.relu(self.depthwise(x))
        return self.linear(torch.relu(self.pointwise(y) + x).mean((2, 3)))


def quantised(**config):
    """The network and its exported program after PyTorch's pt2e flow for x86."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao", reason="needs torchao, which `make test-torch` installs")
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        torch.manual_seed(0)
        example = (torch.randn(1, 3, 16, 16),)
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(**config))
        model = prepare_pt2e(torch.export.export(Network().eval(), example).module(), quantizer)
        for _ in range(4):
            model(torch.randn(1, 3, 16, 16))
        model = convert_pt2e(model)
        return model, torch.export.export(model, example)


@pytest.mark.parametrize("with_zeros", [False, True])
def test_weights_with_a_scale_for_each_group_are_a_compressed_product(with_zeros):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("stored", torch.randint(-128, 128, (48, 128), dtype=torch.int8))
            self.register_buffer("scales", torch.rand(48, 4) + 0.5)
            self.register_buffer("zeros", torch.randint(-9, 9, (48, 4), dtype=torch.int32) if with_zeros else None)

        def forward(self, x):
            dequantised = torch.ops.quantized_decomposed.dequantize_per_channel_group(
                self.stored, self.scales, self.zeros, -128, 127, torch.int8, 32, torch.float32
            )
            return torch.nn.functional.linear(x, dequantised)

    from torch.ao.quantization.fx import _decomposed  # noqa: F401  (it registers the operators)

    model, x = Model(), torch.randn(3, 128)
    ex = byoc.compile(torch.export.export(model, (x,)))
    assert [step.kind for step in byoc.profile(ex, repeat=1).steps] == ["compressed_matmul"]
    want = model(x).numpy()
    got = byoc.Runner(ex)(x.numpy())
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def unpacked(words, bits, axis):
    """The numbers in words of int32 along an axis, the lowest bits first, as layers of GPTQ and AWQ unpack them."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32).reshape([-1] + [1] * (1 - axis))
    numbers = torch.bitwise_right_shift(words.unsqueeze(axis + 1), shifts).to(torch.int8 if bits < 8 else torch.int16)
    return torch.bitwise_and(numbers, 2**bits - 1).flatten(axis, axis + 1)


class PackedLayer(torch.nn.Module):
    """A linear layer as GPTQ (words along the inner axis, ``order`` of groups) and AWQ (columns in turns) store it."""

    GROUP = 32

    def __init__(self, form, bits, order=False):
        super().__init__()
        self.form, self.bits = form, bits
        k, n = 256, 272
        words = [(k * bits // 32, n), (k // self.GROUP, n * bits // 32)]
        if form == "awq":
            words[0] = (k, n * bits // 32)
        for name, shape in zip(("numbers", "zeros"), words, strict=True):
            self.register_buffer(name, torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32))
        self.register_buffer("scales", torch.rand(k // self.GROUP, n) + 0.5)
        places = torch.randperm(k) if order else torch.arange(k)
        self.register_buffer("groups", (places // self.GROUP).to(torch.int32))

    def weights(self):
        numbers, zeros = (unpacked(w, self.bits, axis) for w, axis in ((self.numbers, 0), (self.zeros, 1)))
        if self.form == "gptq":
            return self.scales[self.groups.long()] * (numbers - zeros[self.groups.long()])
        numbers = unpacked(self.numbers, self.bits, 1)
        turns = torch.arange(numbers.shape[-1]).view(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].view(-1)
        scales, zeros = (each.repeat_interleave(self.GROUP, dim=0) for each in (self.scales, zeros[:, turns]))
        return (numbers[:, turns] - zeros) * scales

    def forward(self, x):
        return x @ self.weights()


@pytest.mark.parametrize(
    ("form", "bits", "order", "dtype"),
    [("gptq", 4, True, "float32"), ("gptq", 8, False, "float32"), ("gptq", 2, False, "float16"),
     ("awq", 4, False, "float16")],
)  # fmt: skip
def test_weights_that_a_layer_unpacks_are_a_compressed_product(form, bits, order, dtype):
    torch.manual_seed(bits)
    model, x = PackedLayer(form, bits, order).to(getattr(torch, dtype)), torch.randn(3, 256).to(getattr(torch, dtype))
    ex = byoc.compile(torch.export.export(model, (x,)))
    kinds = [step.kind for step in byoc.profile(ex, repeat=1).steps if step.kind != "reorder"]
    assert kinds == ["gather"] * order + ["compressed_matmul"]
    want = (x.double() @ model.double().weights()).numpy()
    atol = {"float32": 1e-6, "float16": 1e-3}[dtype] * np.abs(want).max()
    np.testing.assert_allclose(byoc.Runner(ex)(x.numpy()).astype("float64"), want, rtol=0, atol=atol)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_torchao_are_a_compressed_product(bits):
    quantization = pytest.importorskip("torchao.quantization", reason="needs torchao, which `make test-torch` installs")
    from torchao.quantization.granularity import PerAxis, PerGroup

    dtype, granularity = getattr(torch, f"int{bits}"), PerGroup(64) if bits == 4 else PerAxis(0)
    torch.manual_seed(bits)
    model, x = torch.nn.Sequential(torch.nn.Linear(256, 300)), torch.randn(3, 256)
    quantization.quantize_(model, quantization.IntxWeightOnlyConfig(weight_dtype=dtype, granularity=granularity))
    ex = byoc.compile(torch.export.export(model, (x,)))
    assert [step.kind for step in byoc.profile(ex, repeat=1).steps] == ["compressed_matmul"]
    want = model(x).detach().numpy()
    np.testing.assert_allclose(byoc.Runner(ex)(x.numpy()), want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("config", [{}, {"reduce_range": True}, {"is_dynamic": True}], ids=str)
def test_a_network_of_pt2e_runs_on_integers(config):
    model, program = quantised(**config)
    products = products_of(graphs_of(program))
    assert [(kind, *dtypes[:2]) for kind, *dtypes in products] == [
        ("convolution", "uint8", "int8"),
        ("convolution", "uint8", "int8"),
        ("convolution", "uint8", "int8"),
        ("matmul", "uint8", "int8"),
    ]
    run = byoc.Runner(byoc.compile(program))
    for seed in range(5):
        x = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        assert_right(np.asarray(run(x.numpy())), model(x).detach().numpy(), 1e-3)
