"""``torch.compile(model, backend="tvm_byoc_dnnl")``; torch finds it by the entry point ``torch_dynamo_backends``.

A graph that TorchDynamo hands over becomes an exported program with its weights inside. It is compiled again when these
are no longer the ones that it was compiled with.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .api import compile as compile_model
from .core.errors import ByocError, InputError, UnsupportedError, did_you_mean, first_line
from .frontends.torch.importer import decomposed
from .frontends.torch.writes import writes, written
from .runtime.machines import elements
from .runtime.runner import Runner
from .vendors.namespaces import ARGUMENTS, check_arguments


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without gradients whose memory has its values: PyTorch negates and conjugates when it reads."""
    return tensor.detach().resolve_conj().resolve_neg()


class Capture:
    """A graph, and which of its arguments and results are what.

    Parameters
    ----------
    graph_module : torch.fx.GraphModule
        As TorchDynamo gives it: parameters and buffers are arguments, too.
    examples : sequence
        The arguments of the first call: tensors, and a ``torch.SymInt`` for each open size.

    Attributes
    ----------
    weights, numbers, inputs : list of int
        The arguments that are parameters and buffers; those that are Python floats, such as the epsilon of a norm; and
        those that are other tensors. A program contains the values of the weights and the numbers.
    written : list of int
        The inputs that the graph writes, such as the caches of a model; `export` finds them, and its program has their
        new values as results behind the others.
    compiled : list of bool
        For each result, whether the exported program computes it. PyTorch computes sizes, and views of an argument,
        which share its memory.
    differentiable : list of bool
        For each compiled result, whether PyTorch would compute gradients of it.
    strides : list of tuple
        For each compiled result, those that PyTorch's own has; of open sizes, a ``torch.SymInt``.

    Raises
    ------
    UnsupportedError
        If an argument is no plain tensor on the CPU, or there is no result to compile.
    """

    def __init__(self, graph_module: fx.GraphModule, examples: Sequence[Any]) -> None:
        self._module = graph_module
        places = _placeholders(graph_module.graph)
        tensors = [i for i, example in enumerate(examples) if isinstance(example, torch.Tensor)]
        for i in tensors:
            kind, device = type(examples[i]), examples[i].device
            if kind not in (torch.Tensor, torch.nn.Parameter) or device.type != "cpu":
                raise UnsupportedError(
                    f"argument {places[i].name} is a {kind.__name__} on {device}; expected plain tensors on the CPU"
                )
        self.weights = [i for i in tensors if _is_weight(places[i], examples[i])]
        self.numbers = [i for i in tensors if _is_number(places[i], examples[i])]
        self.inputs = [i for i in tensors if i not in self.weights and i not in self.numbers]
        self.written: list[int] = []
        self._owners = [_memory(_value(places[i])) if i in tensors else None for i in range(len(places))]
        owners = set(self._owners)
        self._results = _results(graph_module.graph)
        self.compiled = [
            isinstance(_value(r), torch.Tensor) and _memory(_value(r)) not in owners for r in self._results
        ]
        if not any(self.compiled):
            raise UnsupportedError("every result of the graph is a size, a constant or a view of an argument")
        self.differentiable = [_value(r).requires_grad for r, yes in zip(self._results, self.compiled) if yes]
        self.strides = [tuple(_value(r).stride()) for r, yes in zip(self._results, self.compiled) if yes]
        for r in self._results:
            if isinstance(_value(r), torch.SymInt) and free_unbacked_symbols(_value(r)):
                raise UnsupportedError(f"the number {r} depends on values of tensors")

    def export(self, arguments: Sequence[Any]) -> torch.export.ExportedProgram:
        """The program that computes the compiled results from the inputs, with these weights and numbers.

        Raises `UnsupportedError` if PyTorch cannot export the graph, or it writes to what other arguments or results
        share.
        """
        program = self._exported(arguments)
        if not self.written and any(map(writes, program.graph.nodes)):
            self._find_written(decomposed(program))
            program = self._exported(arguments)
        return program

    def _find_written(self, program: torch.export.ExportedProgram) -> None:
        """What is written is an input, also where PyTorch marks it as a constant address: its values change."""
        places = dict(zip(program.graph_signature.user_inputs, self.inputs, strict=True))
        places |= {f"weight_{i}": i for i in self.weights}
        self.written = sorted(places[name] for name in written(program))
        shared = [i for i in self.written if self._owners.count(self._owners[i]) > 1]
        if shared or (self.written and not all(self.compiled)):
            raise UnsupportedError(
                f"the program writes to argument {(shared or self.written)[0]}, whose memory another argument or a "
                "result may share"
            )
        self.weights = [i for i in self.weights if i not in self.written]
        self.inputs = sorted({*self.inputs, *self.written})

    def _exported(self, arguments: Sequence[Any]) -> torch.export.ExportedProgram:
        module = self._with_results(self.compiled)
        places = _placeholders(module.graph)
        first = next(node for node in module.graph.nodes if node.op != "placeholder")
        with module.graph.inserting_before(first):
            for i in self.weights:
                module.register_buffer(f"weight_{i}", plain(arguments[i]))
                places[i].replace_all_uses_with(module.graph.get_attr(f"weight_{i}"))
            for i in self.numbers:
                setattr(module, f"number_{i}", arguments[i].item())
                number = module.graph.create_node("get_attr", f"number_{i}")
                for item in list(places[i].users):
                    item.replace_all_uses_with(number)
                    module.graph.erase_node(item)
            _read_sizes_of_inputs(module.graph, places, self.inputs)
        for i, node in enumerate(places):
            if i not in self.inputs:
                if node.users:
                    raise UnsupportedError(f"the number {node.name} is no size of an input")
                module.graph.erase_node(node)
        module.recompile()
        open_dims = tuple(dict.fromkeys(_open_axes(_value(places[i])), torch.export.Dim.AUTO) for i in self.inputs)
        switches = any(n.target is torch.amp.autocast_mode._enter_autocast for n in module.graph.nodes)
        if (switches or torch.is_autocast_enabled("cpu")) and any(n.target in _FUSED for n in module.graph.nodes):
            raise UnsupportedError("torch.export does not say what autocast makes of PyTorch's fused encoder layer")
        # This program is traced by itself: it is no part of the graph that PyTorch compiles at this moment.
        with torch._guards.tracing(None), torch.inference_mode(False), torch.no_grad():
            given = tuple(plain(arguments[i]).clone() for i in self.inputs)
            try:
                if switches:  # which torch.export would leave out
                    module = _with_casts(module, given)
                return torch.export.export(module, given, dynamic_shapes=open_dims)
            except Exception as error:
                said = first_line(error)
                raise UnsupportedError(f"torch.export refuses the graph: {said}") from error

    def rest(self) -> fx.GraphModule | None:
        """The function of all arguments that computes the other results, if there are any."""
        if all(self.compiled):
            return None
        module = self._with_results([not compiled for compiled in self.compiled])
        module.graph.eliminate_dead_code()
        module.recompile()
        return module

    def _with_results(self, wanted: Sequence[bool]) -> fx.GraphModule:
        """A copy of the graph that returns some of the results, as a tuple."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.graph_copy(self._module.graph, copies)
        results = [r for r, is_wanted in zip(self._results, wanted, strict=True) if is_wanted]
        graph.output(tuple(copies[r] if isinstance(r, fx.Node) else r for r in results))
        return fx.GraphModule(self._module, graph)


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return list(graph.find_nodes(op="placeholder"))


def _results(graph: fx.Graph) -> list[Any]:
    (returned,) = graph.output_node().args
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def _value(result: Any) -> Any:
    """What TorchDynamo computed for a node: a tensor without data, a symbolic number, or a constant."""
    return result.meta.get("example_value") if isinstance(result, fx.Node) else result


def _is_weight(node: fx.Node, example: torch.Tensor) -> bool:
    static = (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")
    return isinstance(example, torch.nn.Parameter) or static is not None


def _is_number(node: fx.Node, example: torch.Tensor) -> bool:
    """Whether this is a Python float: TorchDynamo passes one as a tensor of which the graph reads the item."""
    return example.ndim == 0 and all(user.target == "item" for user in node.users)


def _with_casts(module: fx.GraphModule, given: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The graph with the casts that autocast makes as operators of its own."""
    traced = make_fx(module, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*given)
    return fx.GraphModule(traced, traced.graph)  # TorchDynamo has its own class, which names no arguments


#: operators that autocast makes narrow inside
_FUSED = (torch._transformer_encoder_layer_fwd, torch._native_multi_head_attention)


def _memory(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata


def _open_axes(tensor: torch.Tensor) -> list[int]:
    return [axis for axis, dim in enumerate(tensor.shape) if isinstance(dim, torch.SymInt)]


def _read_sizes_of_inputs(graph: fx.Graph, places: Sequence[fx.Node], inputs: Sequence[int]) -> None:
    """Let the graph read open sizes from its inputs, instead of getting them as arguments."""
    sizes = {str(_value(node)): node for node in places if isinstance(_value(node), torch.SymInt)}
    for i in inputs:
        for axis in _open_axes(_value(places[i])):
            node = sizes.pop(str(_value(places[i]).shape[axis]), None)
            if node is not None:
                node.replace_all_uses_with(graph.call_method("size", (places[i], axis)))


_logger = logging.getLogger("tvm_byoc_dnnl")

#: the arguments of `tvm_byoc_dnnl.compile` that ``options`` may have
OPTIONS = (
    "compiler", *ARGUMENTS,
    "policy", "exclude", "force", "place", "database", "options", "threads", "strict",
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
        Arguments of `tvm_byoc_dnnl.compile`: ``compiler``, ``precision``, ``weights``, ``activations``, ``int8``,
        ``policy``, ``exclude``, ``force``, ``place``, ``database``, ``options``, ``threads`` and ``strict``.
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
    for name in options or {}:
        if name not in OPTIONS:
            known = f"the backend tvm_byoc_dnnl has {', '.join(OPTIONS)}"
            raise InputError(f"unknown option {name!r}; {known}{did_you_mean(name, OPTIONS)}")
    check_arguments(**(options or {}))
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
        program = graph.export(arguments)  # which finds out what is no weight
        self._watch = Watch([arguments[i] for i in graph.weights])
        self._numbers = [arguments[i].item() for i in graph.numbers]
        self._runner = Runner(compile_model(program, **options))
        # what is stored in the model has the same memory in two calls: callers get a copy
        twice = zip(self._run(arguments), self._run(arguments), strict=True)
        self._kept = [a.data_ptr() == b.data_ptr() for a, b in twice]

    def fits(self, arguments: Sequence[Any]) -> bool:
        numbers = [arguments[i].item() for i in self._graph.numbers]
        return numbers == self._numbers and self._watch.same([arguments[i] for i in self._graph.weights])

    def __call__(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        results = self._run(arguments)
        count = len(self._graph.strides)
        with torch.no_grad():
            for i, value in zip(self._graph.written, results[count:], strict=True):
                arguments[i].copy_(value)
        found = zip(results[:count], self._graph.strides, self._kept[:count], strict=True)
        return tuple(_arranged(result, strides, copies) for result, strides, copies in found)

    def _run(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        tensors = self._runner.tensors([plain(arguments[i]) for i in self._graph.inputs])
        found = elements(self._runner.run_tvm(*tensors))
        return [torch.from_dlpack(result) for result in (found if isinstance(found, list) else [found])]


def _arranged(result: torch.Tensor, strides: Sequence[Any], copies: bool) -> torch.Tensor:
    """A dense result with these strides, in memory of its own where ``copies``.

    Where strides depend on open sizes, their order is kept, and the memory has no gaps.
    """
    if all(isinstance(s, int) for s in strides):
        wanted = tuple(strides)
    else:
        order = sorted(range(result.ndim), key=lambda axis: -int(strides[axis]))
        wanted = torch.empty_permuted(result.shape, order, device="meta").stride()
    if result.stride() == wanted:
        return result.clone() if copies else result
    moved = torch.empty_strided(result.shape, wanted, dtype=result.dtype)
    once = [slice(0, 1) if stride == 0 else slice(None) for stride in wanted]  # as `expand` repeats
    moved[tuple(once)].copy_(result[tuple(once)])
    return moved


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
