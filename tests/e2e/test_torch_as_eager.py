"""torch.compile gives what PyTorch gives: strides, narrow floats, autocast, fused operators, negated memory."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which `make test-torch` installs")
from torch import nn  # noqa: E402

pytestmark = pytest.mark.native


def numbers(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def compare(function, *inputs, tolerance=1e-5, **more):
    """A compiled function beside itself, twice; the second call runs what the first has compiled."""
    torch.compiler.reset()
    fast = torch.compile(function, backend="tvm_byoc_dnnl", options={"strict": True}, **more)
    with torch.no_grad():
        want = function(*inputs)
        for got in (fast(*inputs), fast(*inputs)):
            assert got.dtype == want.dtype
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    return fast


def conv():
    torch.manual_seed(0)
    return nn.Conv2d(3, 7, 3, padding=1).eval()


STRIDES = {
    "channels_last": (conv(), lambda: numbers(2, 3, 5, 9).to(memory_format=torch.channels_last)),
    "channels_last of one picture": (conv(), lambda: numbers(1, 3, 5, 9).to(memory_format=torch.channels_last)),
    "permuted": (lambda x: torch.relu(x).permute(0, 2, 1), lambda: numbers(2, 3, 5)),
    "of a transposed input": (lambda x: x + 1, lambda: numbers(4, 6).t()),
    "repeated": (lambda x: torch.relu(x).expand(4, 5), lambda: numbers(1, 5)),
    "with gaps": (lambda x: torch.relu(x)[:, ::2], lambda: numbers(4, 7)),
    "of no elements": (lambda x: torch.relu(x).t(), lambda: numbers(0, 3)),
    "of a number": (lambda x: torch.relu(x).sum(), lambda: numbers(3, 2)),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides(name):
    function, inputs = STRIDES[name]
    compare(function, inputs())


def test_strides_of_open_sizes():
    fast = compare(lambda x: torch.relu(x).permute(0, 2, 1), numbers(2, 3, 5), dynamic=True)
    x = numbers(7, 4, 6)
    with torch.no_grad():
        assert fast(x).stride() == torch.relu(x).permute(0, 2, 1).stride()


NARROW = {
    "products": (lambda: nn.Sequential(nn.Linear(17, 32), nn.ReLU(), nn.Linear(32, 5)), (4, 17)),
    "a convolution": (conv, (2, 3, 5, 9)),
    "a convolution in one dim": (lambda: nn.Conv1d(3, 5, 3), (2, 3, 9)),
    "a transposed convolution": (lambda: nn.ConvTranspose2d(3, 5, 3), (2, 3, 5, 9)),
    "a batch norm": (lambda: nn.Sequential(conv(), nn.BatchNorm2d(7), nn.ReLU()), (2, 3, 5, 9)),
    "a layer norm": (lambda: nn.Sequential(nn.Linear(9, 8), nn.LayerNorm(8)), (2, 3, 9)),
    "a group norm": (lambda: nn.Sequential(conv(), nn.GroupNorm(7, 7)), (2, 3, 5, 9)),
    "an instance norm": (lambda: nn.Sequential(conv(), nn.InstanceNorm2d(7, affine=True)), (2, 3, 5, 9)),
}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("how", ["bfloat16", "autocast", "autocast inside"])
def test_narrow_floats(name, how):
    make, shape = NARROW[name]
    torch.manual_seed(1)
    net, x = make().eval(), numbers(*shape)

    def inside(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x)

    if how == "bfloat16":
        compare(net.to(torch.bfloat16), x.to(torch.bfloat16), tolerance=2e-2)
    elif how == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            compare(net, x, tolerance=2e-2)
    else:
        compare(inside, x, tolerance=2e-2)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fused_layer_of_an_encoder(activation, norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 24, activation=activation, norm_first=norm_first, batch_first=True)
    net, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), numbers(2, 5, 16)
    hidden = torch.tensor([[False] * 4 + [True], [False] * 3 + [True] * 2])
    later = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    compare(net, x)
    compare(lambda x: net(x, src_key_padding_mask=hidden), x)
    compare(lambda x: net(x, mask=later), x)
    compare(lambda x: net(x, mask=later, src_key_padding_mask=hidden), x)


def test_the_fused_layer_of_an_encoder_under_autocast():
    """PyTorch computes it, whose result is narrower than torch.export finds."""
    net = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = net(numbers(2, 5, 16)), torch.compile(net, backend="tvm_byoc_dnnl")(numbers(2, 5, 16))
    assert got.dtype == expected.dtype == torch.bfloat16 and torch.equal(got, expected)


def test_negated_memory():
    negated = torch._neg_view(numbers(3, 4))
    compare(lambda x: x * 2, negated)
    compare(torch.relu, torch.complex(numbers(3, 4), numbers(3, 4, seed=1)).conj().imag)
    net = nn.Linear(4, 3).eval()
    net.weight = nn.Parameter(negated)
    compare(net, numbers(2, 4))


def pooled(pool, *shape, **options):
    return lambda x: pool(x, **options), lambda: numbers(*shape)


def resized(*shape, **options):
    return lambda x: nn.functional.interpolate(x, **options), lambda: numbers(*shape)


#: what TVM's importer leaves out: negative places, NaN, scales, indices, windows, grids, corners that meet
ARGUMENTS = {
    "the last of an axis": (lambda x: x[:, -1] * x.select(0, -2)[-1], lambda: numbers(4, 5)),
    "places from the end": (lambda x: x[torch.tensor([-1, 0])][:, [-2, 1]], lambda: numbers(4, 5)),
    "the last of all": (lambda x: x.take(torch.tensor([-1, 2])), lambda: numbers(4, 5)),
    "windows": (lambda x: x.unfold(1, 3, 2) + 1, lambda: numbers(4, 7)),
    "sums at places": (lambda x: x.scatter_add(1, (x[:3, :2] > 0).long(), x), lambda: numbers(4, 5)),
    "deviation and mean": (lambda x: torch.stack(torch.std_mean(x, 1, correction=0)), lambda: numbers(4, 5)),
    "both are true": (lambda x: (x > 0) * torch.isfinite(x), lambda: numbers(4, 5)),
    "the largest along two axes": (lambda x: x.amax((0, -1), keepdim=True), lambda: numbers(3, 4, 5)),
    "groups without parameters": (lambda x: nn.functional.group_norm(x, 3), lambda: numbers(2, 6, 5)),
    "the place of a NaN": (lambda x: x.argmax(1), lambda: numbers(3, 5).masked_fill(torch.eye(3, 5) > 0, torch.nan)),
    "the place in all": (lambda x: x.argmin(keepdim=True), lambda: numbers(3, 5)),
    "selu": (nn.functional.selu, lambda: numbers(4, 5)),
    "celu": (lambda x: nn.functional.celu(x, alpha=0.7), lambda: numbers(4, 5)),
    "the places of a pool": pooled(
        lambda x, **options: nn.functional.max_pool2d(x, **options, return_indices=True)[1],
        *(2, 3, 7, 5), kernel_size=3, stride=2, padding=1, ceil_mode=True,
    ),
    "a pool of one picture": pooled(nn.functional.avg_pool2d, 3, 7, 5, kernel_size=2, stride=3, ceil_mode=True),
    "a pool without its padding": pooled(
        nn.functional.avg_pool2d, 1, 3, 9, 9, kernel_size=3, stride=1, padding=1, count_include_pad=False
    ),
    "a pool with a divisor": pooled(nn.functional.avg_pool3d, 1, 2, 4, 5, 6, kernel_size=2, divisor_override=3),
    "a grid": (
        lambda x: nn.functional.grid_sample(x, x.permute(0, 2, 3, 1)[..., :2].tanh(), align_corners=True),
        lambda: numbers(2, 3, 5, 4),
    ),
    "corners that meet": resized(2, 3, 5, 6, scale_factor=1.7, mode="bilinear", align_corners=True),
    "a factor": resized(2, 3, 5, 6, scale_factor=(1.7, 0.6), mode="bilinear"),
    "a smaller picture": resized(2, 3, 15, 16, size=(7, 20), mode="bicubic", antialias=True),
    "a smaller factor": resized(2, 3, 15, 16, scale_factor=0.37, mode="bilinear", antialias=True),
    "no input": (lambda: torch.linspace(0, 1, 5), lambda: ()),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_tvm_leaves_out(name):
    function, inputs = ARGUMENTS[name]
    given = inputs()
    compare(function, *([given] if isinstance(given, torch.Tensor) else given))


def test_a_resize_to_a_size_of_an_open_picture():
    fast = compare(lambda x: nn.functional.interpolate(x, size=7), numbers(2, 3, 5, 6), dynamic=True)
    with torch.no_grad():
        assert fast(numbers(2, 3, 9, 4)).shape == (2, 3, 7, 7)
