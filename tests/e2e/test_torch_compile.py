"""torch.compile(model, backend="tvm_byoc_dnnl"), beside PyTorch itself."""

import gc
import logging

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.patterns.dnnl import library

torch = pytest.importorskip("torch", reason="needs torch, which `make test-torch` installs")
from torch import nn  # noqa: E402

from tvm_byoc_dnnl import torch_backend as backend  # noqa: E402

pytestmark = pytest.mark.native

BACKEND = "tvm_byoc_dnnl"
STRICT = {"strict": True}


class Net(nn.Module):
    """Convolution, batch norm, dropout and a product, with a buffer of its own."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.norm, self.drop = nn.Conv2d(3, 17, 3, padding=1), nn.BatchNorm2d(17), nn.Dropout(0.5)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.last = nn.Linear(17, 5)
        self.register_buffer("scale", torch.rand(5))

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.last(self.drop(y)) * self.scale


def picture(batch=2, seed=1):
    return torch.randn(batch, 3, 9, 11, generator=torch.Generator().manual_seed(seed))


def compiled(function, options=STRICT, **more):
    torch.compiler.reset()
    return torch.compile(function, backend=BACKEND, options=dict(options or {}), **more)


def test_a_model_in_each_mode_of_inference():
    net, x = Net().eval(), picture()
    fast = compiled(net)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(fast(x), net(x))
    torch.testing.assert_close(fast(x), net(x))  # and with gradients enabled


def test_an_open_batch_is_compiled_once(monkeypatch):
    net = Net().eval()
    fast = compiled(lambda x: (net(x), x.shape[0] * 2), dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 5, 7, 2):
            result, size = fast(picture(batch))
            torch.testing.assert_close(result, net(picture(batch)))
            assert size == 2 * batch
            if batch == 2:
                monkeypatch.setattr(backend, "compile_model", lambda *_a, **_k: pytest.fail("compiled again"))


def test_the_graphs_around_a_break():
    net = Net().eval()

    def broken(x):
        y = net(x)
        torch._dynamo.graph_break()
        return torch.relu(y @ y.T), y

    fast = compiled(broken)
    with torch.no_grad():
        for got, want in zip(fast(picture()), broken(picture()), strict=True):
            torch.testing.assert_close(got, want)


CHANGES = {
    "optimiser": lambda net: net.last.weight.add_(1),
    "data": lambda net: net.last.weight.data.mul_(2),
    "replaced": lambda net: setattr(net.last.weight, "data", torch.rand(5, 17)),
    "state": lambda net: net.load_state_dict(Net(seed=3).state_dict()),
    "buffer": lambda net: net.scale.zero_(),
}


def test_weights_that_change_are_seen():
    net, x = Net().eval(), picture()
    fast = compiled(net)
    with torch.no_grad():
        for change in CHANGES.values():
            before = fast(x)
            change(net)
            torch.testing.assert_close(fast(x), net(x))
            assert not torch.equal(fast(x), before)


def test_a_number_that_changes_is_seen():
    norm = nn.LayerNorm(11, eps=1e-5).eval()
    fast = compiled(norm, dynamic=True)
    with torch.no_grad():
        for eps in (1e-5, 0.5):
            norm.eps = eps
            torch.testing.assert_close(fast(picture()), norm(picture()))


def test_another_model_of_the_same_class_has_its_own_weights():
    first, second, x = Net(0).eval(), Net(1).eval(), picture()
    run = compiled(lambda net, x: net(x))
    with torch.no_grad():
        for net in (first, second, first):
            torch.testing.assert_close(run(net, x), net(x))


def test_training_stays_with_pytorch_and_says_so(caplog):
    net, same, x = Net().train(), Net().train(), picture(8)
    fast = compiled(net, options={})
    results = []
    with caplog.at_level(logging.WARNING):
        for model in (fast, same):
            torch.manual_seed(7)
            results.append(model(x))
            results[-1].sum().backward()
    torch.testing.assert_close(*results)
    torch.testing.assert_close(net.norm.running_mean, same.norm.running_mean)
    torch.testing.assert_close(net.last.weight.grad, same.last.weight.grad)
    assert "stays with PyTorch" in caplog.text


class Cache(nn.Module):
    """A static cache: rows at places, the places so far, and what a query reads of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.product = nn.Linear(5, 5, bias=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("rows", torch.zeros(2, 3, 7, 5), persistent=False)

    def forward(self, x, at):
        self.rows.index_copy_(2, at, self.product(x))
        self.seen.add_(at.shape[0])
        return (x @ self.rows.transpose(2, 3)).softmax(-1) @ self.rows


CALLS = [(torch.randn(2, 3, len(at), 5), torch.tensor(at)) for at in ([0, 1], [3, 6], [5, 0], [4])]


def test_caches_are_written_in_place_and_compiled_once(monkeypatch):
    eager, cache = Cache(), Cache()
    run, made = compiled(cache), []
    monkeypatch.setattr(backend, "compile_model", lambda *a, **k: made.append(1) or byoc.compile(*a, **k))
    with torch.no_grad():
        for x, at in CALLS[:3]:
            torch.testing.assert_close(run(x, at), eager(x, at))
            torch.testing.assert_close(cache.rows, eager.rows)
            assert cache.seen == eager.seen
    assert len(made) == 1


def test_an_exported_cache_is_an_input_and_a_result():
    eager, any_size = Cache(), torch.export.Dim.AUTO
    program = torch.export.export(Cache(), CALLS[0], dynamic_shapes=({2: any_size}, {0: any_size}))
    run = byoc.Runner(byoc.compile(program))
    assert [i.name for i in run.inputs] == ["x", "at", "b_seen", "b_rows"]
    assert len(list(program.named_buffers())) == 2
    state = [np.zeros((), "int64"), np.zeros((2, 3, 7, 5), "float32")]
    with torch.no_grad():
        for x, at in CALLS:
            got, *state = run(x.numpy(), at.numpy(), *state)
            for found, want in zip((got, *state), (eager(x, at), eager.seen, eager.rows), strict=True):
                assert_right(np.asarray(found), want.numpy(), 1e-5)
        with pytest.raises(InputError, match="out of range"):
            run(CALLS[3][0].numpy(), np.array([7]), *state)


def test_an_input_that_is_written_is_one_more_result():
    def write(cache, row):
        cache[1:3] = row
        return cache.sum(1)

    class Write(nn.Module):
        forward = staticmethod(write)

    cache, row = torch.ones(4, 5), torch.randn(5)
    run = byoc.Runner(byoc.compile(torch.export.export(Write(), (cache.clone(), row))))
    given = cache.numpy().copy()
    total, written = run(given, row.numpy())
    want = write(cache, row)
    assert_right(np.asarray(total), want.numpy(), 1e-6)
    assert_right(np.asarray(written), cache.numpy(), 0)
    assert (given == 1).all()


def test_a_written_argument_that_is_also_returned_stays_with_pytorch(caplog):
    def grow(seen, x):
        return seen.add_(x), torch.relu(x)

    fast, seen = compiled(grow, options={}), torch.zeros(3)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        same, _ = fast(seen, torch.ones(3))
    assert (seen == 1).all() and same.data_ptr() == seen.data_ptr()
    assert "whose memory another argument or a result may share" in caplog.text


T = torch.tensor


@pytest.mark.parametrize(
    ("dims", "indices", "of_values", "accumulate"),
    [
        ((5, 6), [T([1, -2])], (2, 6), False),
        ((5, 6, 7), [None, T([1, 5, 0])], (5, 3, 7), False),
        ((5, 6, 7), [None, T([1, 1, 0])], (3, 1), True),
        ((5, 6, 7), [None, T([0, 5]), T([[1], [-2]])], (5, 2, 2), False),
        ((5, 6, 7), [T([[0, -1], [2, 3]]), None, T([1, -1])], (2, 2, 6), False),
        ((5, 6, 7), [T([0, 4]), T([-1, 3])], (7,), True),
        ((5, 6, 7), [None, None, T([[0, 6]])], (5, 6, 1, 2), False),
        ((5, 6), [T(3)], (6,), False),
    ],
    ids=["rows", "columns", "added", "beside each other", "apart", "first two", "matrix of places", "one row"],
)
def test_values_at_places(dims, indices, of_values, accumulate):
    class Put(nn.Module):
        def forward(self, x, values):
            return torch.ops.aten.index_put(x, indices, values, accumulate)

    x, values = torch.randn(dims), torch.randn(of_values)
    got = byoc.Runner(byoc.compile(torch.export.export(Put(), (x, values))))(x.numpy(), values.numpy())
    assert_right(np.asarray(got), Put()(x, values).numpy(), 0)


def test_dropout_in_training_is_not_left_out(caplog):
    drop = nn.Dropout(0.5).train()
    fast = compiled(lambda x: drop(x) * 2, options={})
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        assert (fast(torch.ones(1000)) == 0).any()
    assert "gives random results" in caplog.text


def test_an_exported_program_that_writes_is_refused():
    net = nn.BatchNorm2d(3).train()
    program = torch.export.export(net, (picture(),))
    with pytest.raises(UnsupportedError, match=r"the program writes to \w*running_mean"):
        byoc.to_relax(program)


def test_gradients_are_refused_where_they_are_asked_for():
    net = Net().eval()
    result = compiled(net)(picture())
    assert result.requires_grad
    with pytest.raises(InputError, match=r"computes no gradients.*torch\.no_grad"):
        result.sum().backward()


def test_views_share_memory_and_stored_results_do_not():
    def function(x):
        return x.view(-1), torch.ones_like(x), torch.relu(x)

    fast = compiled(function)
    x = picture()
    with torch.no_grad():
        view, ones, _ = fast(x)
        view.zero_()
        assert (x == 0).all()
        ones.zero_()
        torch.testing.assert_close(fast(x)[1], torch.ones_like(x))


def test_nothing_is_copied(monkeypatch):
    fast, x = compiled(torch.relu), torch.randn(64, 64)
    want = fast(x)
    monkeypatch.setattr(tvm.runtime, "tensor", lambda *_: pytest.fail("the input was copied"))
    torch.testing.assert_close(fast(x), want)


def test_results_outlive_the_model():
    def run():
        net = Net().eval()
        with torch.no_grad():
            return compiled(net)(picture()), net(picture())

    got, want = run()
    torch.compiler.reset()
    gc.collect()
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"options": {"presicion": "auto"}}, "unknown option 'presicion'"), ({"mode": "max-autotune"}, "has no modes")],
    ids=["option", "mode"],
)
def test_wrong_arguments_are_named(arguments, says):
    torch.compiler.reset()
    with pytest.raises(Exception, match=says):
        torch.compile(torch.relu, backend=BACKEND, **arguments)(torch.randn(3))


def test_strict_names_the_reason():
    with pytest.raises(Exception, match="gives random results"):
        compiled(torch.rand_like)(torch.randn(3))


def test_bfloat16_is_an_option():
    net, x = nn.Linear(2048, 2048).eval(), torch.randn(64, 2048)  # large enough for bfloat16 to pay
    fast = compiled(net, options={"precision": "bfloat16", **STRICT})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=0.05, atol=0.05)  # eight bits of fraction
        # a CPU without products of bfloat16 computes in float32
        assert torch.equal(fast(x), compiled(net)(x)) == ("bfloat16" in library.widened())


def test_the_backend_of_tvm_with_our_passes():
    from tvm.relax.frontend.torch import relax_dynamo

    ours = [byoc.AnnotateExternalCompiler("dnnl"), byoc.PartitionGraph(), relax.get_pipeline("byoc")]
    torch.compiler.reset()
    conv = nn.Conv2d(3, 17, 3).eval()
    fast = torch.compile(lambda x: torch.relu(conv(x)), backend=relax_dynamo(pipeline=tvm.transform.Sequential(ours)))
    with torch.no_grad():
        torch.testing.assert_close(fast(picture()), torch.relu(conv(picture())))
