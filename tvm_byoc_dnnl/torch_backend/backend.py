"""The function that torch.compile calls for each graph, and whether weights are still the ones that a model was
compiled with.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..api.compile import compile as compile_model
from ..core.errors import ByocError, InputError
from ..runtime.runner import Runner
from .capture import Capture, plain

_logger = logging.getLogger("tvm_byoc_dnnl")

#: the arguments of `tvm_byoc_dnnl.compile` that ``options`` may have
OPTIONS = (
    "compiler", "precision", "weights", "activations",
    "policy", "placement", "database", "options", "threads", "strict",
)  # fmt: skip


def compile_graph(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo for inference.

    It is called by ``torch.compile(model, backend="tvm_byoc_dnnl", options={...})``. Weights are stored in the compiled
    model; if they are changed or replaced, the next call compiles it again.

    Parameters
    ----------
    graph_module : torch.fx.GraphModule
        The graph, with parameters and buffers as arguments.
    example_inputs : sequence
        The arguments of the first call.
    options : mapping, optional
        Arguments of `tvm_byoc_dnnl.compile`: ``compiler``, ``precision``, ``weights``, ``activations``, ``policy``,
        ``placement``, ``database``, ``options``, ``threads`` and ``strict``.
    mode : str, optional
        For torch.compile's other backends.

    Returns
    -------
    callable
        It takes the graph's arguments and returns its results. A graph that cannot be compiled stays with PyTorch,
        and a warning says why; with ``strict`` an error does.

    Raises
    ------
    InputError
        If there is no such option, or a mode is given.
    UnsupportedError
        With ``strict``, if the graph or a call of it cannot be compiled.
    """
    if mode is not None:
        raise InputError(
            f"mode is {mode!r}; the backend tvm_byoc_dnnl has no modes, use options= ({', '.join(OPTIONS)})"
        )
    unknown = [name for name in options or {} if name not in OPTIONS]
    if unknown:
        raise InputError(f"unknown option {unknown[0]!r}; the backend tvm_byoc_dnnl has {', '.join(OPTIONS)}")
    try:
        return _CompiledGraph(Capture(graph_module, example_inputs), dict(options or {}), example_inputs)
    except ByocError as error:
        if (options or {}).get("strict"):
            raise
        _logger.warning("a graph stays with PyTorch: %s", error)
        return graph_module.forward


class _CompiledGraph:
    """A graph compiled with the weights of the last call."""

    def __init__(self, graph: Capture, options: dict[str, Any], arguments: Sequence[Any]) -> None:
        self._graph = graph
        self._rest = graph.rest()
        self._options = options
        self._lock = threading.Lock()
        self._model = _Model(graph, options, arguments)

    def __call__(self, *arguments: Any) -> list[Any]:
        tensors = [arguments[i] for i in (*self._graph.weights, *self._graph.inputs)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            computed = _ForInference.apply(self._compute, self._graph.differentiable, arguments, *tensors)
        else:
            computed = self._compute(arguments)
        if self._rest is None:
            return list(computed)
        mine, others = iter(computed), iter(self._rest(*arguments))
        return [next(mine if compiled else others) for compiled in self._graph.compiled]

    def _compute(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        model = self._model
        if not model.fits(arguments):
            with self._lock:
                if not self._model.fits(arguments):
                    _logger.info("weights or numbers of a compiled graph have changed; it is compiled again")
                    self._model = _Model(self._graph, self._options, arguments)
                model = self._model
        return model(arguments)


class _Model:
    """A compiled model, and the weights and numbers that are stored in it."""

    def __init__(self, graph: Capture, options: dict[str, Any], arguments: Sequence[Any]) -> None:
        self._graph = graph
        self._watch = Watch([arguments[i] for i in graph.weights])
        self._numbers = [arguments[i].item() for i in graph.numbers]
        self._runner = Runner(compile_model(graph.export(arguments), **options))
        self._kept = self._stored_results(arguments)

    def fits(self, arguments: Sequence[Any]) -> bool:
        numbers = [arguments[i].item() for i in self._graph.numbers]
        return numbers == self._numbers and self._watch.same([arguments[i] for i in self._graph.weights])

    def __call__(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        results = self._run(arguments)
        return tuple(_arranged(r, s, k) for r, s, k in zip(results, self._graph.strides, self._kept, strict=True))

    def _run(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        tensors = self._runner.tensors([plain(arguments[i]) for i in self._graph.inputs])
        return [torch.from_dlpack(result) for result in self._runner.run_tvm(*tensors)]

    def _stored_results(self, arguments: Sequence[Any]) -> list[bool]:
        """Which results are stored in the model, so that two calls give the same memory and callers need a copy."""
        return [a.data_ptr() == b.data_ptr() for a, b in zip(self._run(arguments), self._run(arguments))]


def _arranged(result: torch.Tensor, strides: Sequence[Any], copies: bool) -> torch.Tensor:
    """A dense result with these strides, in memory of its own where ``copies``.

    Where strides depend on open sizes, their order is kept, and the memory has no gaps.
    """
    if all(isinstance(s, int) for s in strides):
        wanted = tuple(strides)
    else:
        wanted = _dense(result.shape, sorted(range(result.ndim), key=lambda axis: -int(strides[axis])))
    if result.stride() == wanted:
        return result.clone() if copies else result
    moved = torch.empty_strided(result.shape, wanted, dtype=result.dtype)
    once = [slice(0, 1) if stride == 0 else slice(None) for stride in wanted]  # as `expand` repeats
    moved[tuple(once)].copy_(result[tuple(once)])
    return moved


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps whose axes lie in this order, the outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * max(1, shape[axis])
    return tuple(strides)


class _ForInference(torch.autograd.Function):
    """Lets results need gradients as PyTorch's would, and says clearly that there are none."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., tuple[torch.Tensor, ...]],
        differentiable: Sequence[bool],
        arguments: Sequence[Any],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        results = compute(arguments)
        ctx.mark_non_differentiable(*(r for r, yes in zip(results, differentiable) if not yes))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise InputError(
            "backend tvm_byoc_dnnl compiles for inference and computes no gradients; train the model without "
            "torch.compile or with another backend, and call it under torch.no_grad() for inference"
        )


_version, _place = operator.attrgetter("_version"), operator.methodcaller("data_ptr")
_SAMPLES = 16  # of one weight; an optimiser, `load_state_dict` or a scaling changes each of them


class Watch:
    """Remembers weights, to recognise others, and changes of these in place.

    PyTorch counts writes to a tensor, but not those through ``tensor.data``. So a few values of each weight are
    compared as well, and a change of other single values through ``.data`` stays unseen.

    Parameters
    ----------
    weights : sequence of torch.Tensor
        Parameters and buffers.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._weights = list(weights)
        self._places = list(map(_place, weights))
        self._counting = [w for w in weights if not w.is_inference()]  # PyTorch counts no writes to the others
        self._versions = list(map(_version, self._counting))
        self._samples = [_sample(w) for w in weights]
        self._values = [sample() for sample in self._samples]

    def same(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same tensors, with the same values as far as can be seen quickly."""
        return (
            all(map(operator.is_, weights, self._weights))
            and list(map(_place, weights)) == self._places
            and list(map(_version, self._counting)) == self._versions
            and [sample() for sample in self._samples] == self._values
        )


def _sample(tensor: torch.Tensor) -> Callable[[], bytes]:
    """Reads some values of a tensor; of one whose memory has gaps, none."""
    flat = _flat(tensor.detach())
    if flat is None or not flat.numel():
        return bytes
    return flat[:: -(-flat.numel() // _SAMPLES)].numpy().tobytes


def _flat(tensor: torch.Tensor) -> torch.Tensor | None:
    """All of a tensor's values in the order of memory, without a copy, as integers where NumPy lacks their type."""
    if tensor.is_neg():
        tensor = torch._neg_view(tensor)
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return None
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.int16) if tensor.dtype == torch.bfloat16 else flat
