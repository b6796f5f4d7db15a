"""A graph that TorchDynamo hands over, as an exported program with its weights inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ..core.errors import UnsupportedError


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
        owners = {_memory(_value(places[i])) for i in tensors}
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

        Raises
        ------
        UnsupportedError
            If PyTorch cannot export the graph.
        """
        module = self._with_results(self.compiled)
        places = _placeholders(module.graph)
        with module.graph.inserting_before(places[-1].next):
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
        # This program is traced by itself: it is no part of the graph that PyTorch compiles at this moment.
        with torch._guards.tracing(None), torch.inference_mode(False), torch.no_grad():
            given = tuple(plain(arguments[i]).clone() for i in self.inputs)
            try:
                if _switches_autocast(module.graph):  # which torch.export would leave out
                    module = _with_casts(module, given)
                return torch.export.export(module, given, dynamic_shapes=open_dims)
            except Exception as error:
                said = (str(error).strip() or type(error).__name__).splitlines()[0]
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


def _switches_autocast(graph: fx.Graph) -> bool:
    return any(node.target is torch.amp.autocast_mode._enter_autocast for node in graph.nodes)


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
