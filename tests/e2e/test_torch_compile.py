"""torch.compile(model, backend="tvm_byoc_dnnl"), beside PyTorch itself."""

import gc
import logging

import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
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


def test_a_write_to_a_buffer_is_not_left_out(caplog):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen.add_(x)
            return torch.relu(x)

    counter = Counter()
    with torch.no_grad():
        compiled(counter, options={})(torch.ones(3))
    assert (counter.seen == 1).all()
    assert "stays with PyTorch: the program writes to" in caplog.text


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
