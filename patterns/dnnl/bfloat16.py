"""bfloat16 inside a region: a dtype on the edges between nodes.

    float32 ── reorder ──> bf16 ── convolution ── relu ── max pooling ── … ── reorder ──> float32

Convolutions and matrix products read and write bfloat16 and sum in float32. Nodes behind them that only move, add or
activate follow, and so do softmax and layer_norm, which oneDNN computes in float32 between the two. All other nodes
read float32: reductions, other norms, powers, logarithms and square roots, and the operators that the user names.
Constants stay float32 in the file, and are converted when a plan packs them. Of recurrent layers the weights alone are
bfloat16: states are summed up over all steps.

Of the nodes that may compute in either dtype, those do so in bfloat16 with which the library expects the region to take
least: the seconds of each node, and of a conversion wherever a tensor is read in the dtype that it is not written in.
The same holds where the model itself is in bfloat16.

A CPU without products of a dtype of 16 bits computes in float32 in its place. The graph keeps the dtype wherever it may
be, so a saved library uses it on every CPU that has it; here only the reason for the report is noted.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ...vendor import Input, Node, PortableGraph, Reject, Tensor
from . import library
from .common import PRODUCTS, option
from .library import costs

_logger = logging.getLogger("tvm_byoc_dnnl")

#: kinds of which constant weights alone are in bfloat16: their places
_WEIGHTS = {"recurrent": (1, 2)}
#: kinds that stay in bfloat16 where an operand is in it
_FOLLOW = frozenset(
    {
        *("reshape", "permute", "slice", "expand", "pad", "concat", "shuffle", "pooling", "resampling"),
        *("eltwise", "binary", "softmax", "layer_normalization"),
    }
)
_EXACT_ALGS = frozenset({"exp", "log", "pow", "sqrt", "square", "round", "ge", "gt", "le", "lt", "eq", "ne"})
#: kinds whose other operands are read as they are: biases, scales and shifts
_READ_AS_THEY_ARE = {"convolution": 2, "deconvolution": 2, "matmul": 2, "layer_normalization": 1}
#: norms that are made of several nodes
_NORMS = ("relax.nn.*_norm", "relax.nn.local_response_norm")


#: the seconds that each graph is expected to take, or why it is refused
Costs = Callable[[Sequence[PortableGraph]], list["float | Reject"]]


def compute_in_bfloat16(graph: PortableGraph) -> None:
    """Give each edge that may be bfloat16 the dtype that costs least.

    These are edges of float32 if the option ``precision`` asks for it, and those that are bfloat16 in the model.
    """
    is_wanted = _is_wanted(option(graph, "precision"))
    is_in_model = any(tensor.dtype == "bfloat16" for tensor in graph.tensors)
    if library.available() and (is_wanted or (is_in_model and _is_native())):
        Edges(graph, is_wanted, costs if _is_native() else None).run()


def _is_native() -> bool:
    return "bfloat16" not in library.widened()


def note_widened(graph: PortableGraph) -> None:
    """Say of each node with a dtype that this CPU computes in float32 that it does so."""
    if not library.available():
        return
    for node in graph.nodes:
        for dtype in {graph.tensors[t].dtype for t in (*node.reads, *node.outputs)} & library.widened():
            node.precision = f"{dtype} is computed in float32: this CPU ({library.isa()}) has no {dtype}"


def _is_wanted(precision: str) -> bool:
    if precision == "float32" or not library.available():
        return False
    if precision == "bfloat16" and not _is_native():
        _announce(library.isa())
    return precision == "bfloat16" or _is_native()


@functools.cache
def _announce(isa: str) -> None:
    _logger.warning(
        "precision='bfloat16': this CPU (%s) has no bfloat16 instructions; it computes in float32 in its place. The "
        "result of a compilation uses them on a CPU that has them (AVX512_BF16, AMX); precision='auto' asks for "
        "bfloat16 only if this CPU has it",
        isa,
    )


class Edges:
    """The dtypes of the edges of a graph. Without `costs` all that may be bfloat16 are."""

    def __init__(self, graph: PortableGraph, is_wanted: bool, costs: Costs | None) -> None:
        self.graph = graph
        self._is_wanted, self._costs = is_wanted, costs
        self._constants = graph.constant_tensors()
        self._outputs = set(graph.outputs)
        self._given = [tensor.dtype for tensor in graph.tensors]
        self._converted: dict[tuple[int, str], int] = {}
        named = str(option(graph, "float32_ops"))
        self._float32 = [name.strip() for name in named.split(",") if name.strip()]
        self._free: set[Node] = set()  # that may compute in either dtype

    def run(self) -> None:
        nodes = [node for node in self.graph.nodes if not self._constants.issuperset(node.outputs)]
        seconds = self._find_free(nodes)
        chosen = self._free if self._costs is None else self._cheapest(seconds)
        for node in nodes:
            if node not in self._free:
                for place, tensor in enumerate(node.inputs):
                    self._read(node, [place], self._given[tensor])
                continue
            low = self._is_led(node, [t for t in node.inputs if self._dtype(t) == "bfloat16"])
            if not low or node not in chosen:
                node.precision = "float32 costs less, conversions included" if low else "it reads nothing in bfloat16"
            self._read(node, self._places(node), "float32" if node.precision else "bfloat16")
            self._write(node, chosen)
        self.graph.validate()

    def _asked(self, graphs: Sequence[PortableGraph]) -> list[float | Reject]:
        return (self._costs or costs)(graphs)

    def _dtype(self, tensor: int) -> str:
        return self.graph.tensors[tensor].dtype

    def _find_free(self, nodes: Sequence[Node]) -> dict[Node, tuple[float, float]]:
        """Find the nodes that may compute in either dtype, and note why others may not; the seconds in each."""
        low = {tensor for tensor, dtype in enumerate(self._given) if dtype == "bfloat16"}
        for node in nodes:
            node.precision = self._why_fixed(node, low)
            if not node.precision:
                self._free.add(node)
                low.update(self._results(node))
        asked = [node for node in nodes if node in self._free]
        dtypes = ("float32", "bfloat16")
        answers = self._asked([self._alone(node, dtype) for node in asked for dtype in dtypes])
        seconds = {}
        for node, wide, narrow in zip(asked, answers[::2], answers[1::2], strict=True):
            if isinstance(narrow, Reject):
                node.precision = narrow.reason
                self._free.remove(node)
            else:
                seconds[node] = (math.inf if isinstance(wide, Reject) else wide, narrow)
        for node in nodes:
            if self._given[self._changed(node)[0]] == "bfloat16" or not self._is_wanted:
                node.precision = ""
        return seconds

    def _is_led(self, node: Node, low: Iterable[int]) -> bool:
        """Whether it is a product, or follows one."""
        return node.kind in (*PRODUCTS, *_WEIGHTS) or bool(set(low).intersection(node.inputs))

    def _why_fixed(self, node: Node, low: set[int]) -> str:
        """The reason why a node has no choice but for what the library says of it; empty if it may have one."""
        alg = str(node.attrs.get("alg", ""))
        names = node.source
        asked = next((n for n in names for pattern in self._float32 if fnmatchcase(n, pattern)), None)
        if asked:
            return f"{asked} is one of float32_ops"
        if node.kind in _WEIGHTS and not self._constants.issuperset(self._changed(node)):
            return "its weights are no constants"
        if not self._is_led(node, low):
            return "it reads nothing in bfloat16"
        if node.kind not in (*PRODUCTS, *_WEIGHTS, *_FOLLOW) or alg in _EXACT_ALGS:
            return f"{alg or node.kind} computes in float32"
        is_part = node.kind in ("eltwise", "binary") and any(fnmatchcase(n, p) for n in names for p in _NORMS)
        if is_part:
            return "norms compute in float32"
        changed = self._changed(node)
        read = changed if node.kind in _WEIGHTS else (*node.inputs, *node.outputs)
        strange = [t for t in read if self._given[t] not in ("float32", "bfloat16")]
        if strange or node.is_scaled or len({self._given[t] for t in changed}) > 1:
            return f"a tensor of dtype {self._given[strange[0]] if strange else 'with a scale'}"
        return "" if self._is_wanted or self._given[changed[0]] == "bfloat16" else "it is float32 in the model"

    def _alone(self, node: Node, dtype: str) -> PortableGraph:
        alone = self.graph.isolate(node, self._constants)
        ids = {old: new for new, old in enumerate(dict.fromkeys([*node.reads, *node.outputs]))}
        for tensor in self._changed(node):
            alone.tensors[ids[tensor]].dtype = dtype
        return alone

    def _cheapest(self, seconds: dict[Node, tuple[float, float]]) -> set[Node]:
        """The nodes that compute in bfloat16."""
        cut = Cut()
        things = {node: cut.add() for node in self.graph.nodes if node in self._free}
        for node, thing in things.items():
            wide, narrow = (0.0, 0.0) if self._is_joined(node) else seconds[node]
            cut.pay(LOW, thing, max(wide - narrow, 0.0))
            cut.pay(thing, WIDE, max(narrow - wide, 0.0))
        conversions: dict[tuple[Any, ...], float] = {}
        for tensor in {t: None for node in things for t in (*node.inputs, *node.outputs)}:
            if tensor not in self._constants:
                self._pay_conversions(cut, tensor, things, conversions)
        low = cut.low()
        return {node for node, thing in things.items() if thing in low}

    def _is_joined(self, node: Node) -> bool:
        """Whether it becomes a part of a product before it, and then takes no time of its own."""
        made = (self.graph.nodes.producer(t) for t in node.inputs if self.graph.nodes.read_count(t) == 1)
        return node.kind in ("eltwise", "binary") and any(
            maker is not None and maker in self._free and (maker.kind in PRODUCTS or self._is_joined(maker))
            for maker in made
        )

    def _pay_conversions(
        self, cut: Cut, tensor: int, things: dict[Node, int], known: dict[tuple[Any, ...], float]
    ) -> None:
        """What it costs that a tensor is written in one dtype and read in another."""
        given = LOW if self._given[tensor] == "bfloat16" else WIDE
        readers = {given} if tensor in self._outputs else set()
        for node in self.graph.nodes.readers(tensor):
            if node not in things:
                readers.add(given)
            elif tensor in [node.inputs[place] for place in self._places(node)]:
                readers.add(things[node])
        made = self.graph.nodes.producer(tensor)
        written = given if made is None or made.kind in _WEIGHTS else things.get(made, given)
        if made is not None and made in things and made.kind in PRODUCTS:  # those in bfloat16 write float32 as well
            written, maker = cut.add(), written
            cut.pay(written, maker, math.inf)
        if not readers - {written}:
            return
        shape = self.graph.tensors[tensor].shape
        if shape not in known:
            (answer,) = self._asked([self._conversion(shape)])
            known[shape] = math.inf if isinstance(answer, Reject) else answer
        some_low, some_wide = (cut.add(), cut.add()) if len(readers) > 1 else 2 * tuple(readers)
        for reader in readers:
            cut.pay(reader, some_low, math.inf)
            cut.pay(some_wide, reader, math.inf)
        cut.pay(some_low, written, known[shape])
        cut.pay(written, some_wide, known[shape])

    def _conversion(self, shape: Any) -> PortableGraph:
        tensors = [Tensor("float32", shape), Tensor("bfloat16", shape)]
        alone = PortableGraph("alone", tensors, [Input(tensor=0)], outputs=[1], equal=self.graph.equal)
        alone.nodes.append(Node("reorder", (0,), (1,)))
        return alone

    @staticmethod
    def _results(node: Node) -> tuple[int, ...]:
        """The results that are in bfloat16."""
        return () if node.kind in _WEIGHTS else tuple(node.outputs)

    def _changed(self, node: Node) -> tuple[int, ...]:
        """The tensors whose dtype a node decides."""
        return (*(node.inputs[place] for place in self._places(node)), *self._results(node))

    def _places(self, node: Node) -> list[int]:
        """Positions of the operands that are in the dtype in which the node computes."""
        if node.kind in _WEIGHTS:
            return list(_WEIGHTS[node.kind])
        count = _READ_AS_THEY_ARE.get(node.kind, len(node.inputs))
        everything = node.kind in (*PRODUCTS, "concat")
        return [i for i, t in enumerate(node.inputs[:count]) if everything or t not in self._constants]

    def _read(self, node: Node, places: list[int], dtype: str) -> None:
        other = {"bfloat16": "float32", "float32": "bfloat16"}.get(dtype)
        inputs = list(node.inputs)
        for place in places:
            tensor = inputs[place]
            if self._dtype(tensor) != other:
                continue
            if (tensor, dtype) not in self._converted:
                shape = self.graph.tensors[tensor].shape
                made = self.graph.insert("reorder", [tensor], shape, dtype, before=node)
                made.source, made.calls = list(node.source), list(node.calls)
                self._converted[tensor, dtype] = made.outputs[0]
            inputs[place] = self._converted[tensor, dtype]
        if tuple(inputs) != node.inputs:
            self.graph.nodes.rewire(node, inputs)

    def _write(self, node: Node, chosen: set[Node]) -> None:
        """The result in the dtype in which the node computes, and in its own as well if it is one of the region's."""
        if node.kind in _WEIGHTS:
            return
        result = node.outputs[0]
        given, is_output = self._given[result], result in self._outputs
        is_low = not node.precision
        if is_low and node.kind in PRODUCTS:  # they write float32 as well
            is_read_low = any(reader in chosen for reader in self.graph.nodes.readers(result))
            is_low = given == "bfloat16" if is_output else is_read_low or self._costs is None
        dtype = "bfloat16" if is_low else "float32"
        if dtype == given:
            return
        if not is_output:
            self.graph.tensors[result].dtype = dtype
            return
        made = self.graph.new_tensor(dtype, self.graph.tensors[result].shape)
        self.graph.nodes.rewire(node, outputs=[made])
        back = self.graph.insert("reorder", [made], self.graph.tensors[result].shape, given, before=node)
        self.graph.nodes.rewire(back, outputs=[result])
        self.graph.nodes.move(back, after=node)
        back.source, back.calls = list(node.source), list(node.calls)
        self._converted[result, dtype] = made


# ---------------------------------------------------------------- the choice
#: what is on these sides in any case
LOW, WIDE = 0, 1
_UNIT = 1e-15  # seconds are counted in whole units, so that sums are exact
_FORBIDDEN = 1 << 80


class Cut:
    """The cheapest choice between the sides of bfloat16 and of float32: a minimum cut, by Dinic's algorithm.

    Things cost something on each side, and something for each pair that is divided. They are numbers; `LOW` and `WIDE`
    are two of them.
    """

    def __init__(self) -> None:
        self._leaving: list[list[int]] = [[], []]  # edges of each thing; the edge back is the next or the last one
        self._to: list[int] = []
        self._left: list[int] = []

    def add(self) -> int:
        """One thing more."""
        self._leaving.append([])
        return len(self._leaving) - 1

    def pay(self, low: int, wide: int, seconds: float) -> None:
        """The cost of the first being on the side of bfloat16 while the second is on that of float32."""
        if low == wide:
            return
        units = _FORBIDDEN if math.isinf(seconds) else round(seconds / _UNIT)
        for start, end, left in ((low, wide, units), (wide, low, 0)):
            self._leaving[start].append(len(self._to))
            self._to.append(end)
            self._left.append(left)

    def low(self) -> set[int]:
        """The things on the side of bfloat16: as few as the least cost allows."""
        while (levels := self._levels())[WIDE] >= 0:
            self._augment(levels)
        return {thing for thing, level in enumerate(levels) if level >= 0}

    def _levels(self) -> list[int]:
        """How many edges with something left each thing is away from LOW; -1 if it cannot be reached."""
        levels = [-1] * len(self._leaving)
        levels[LOW] = 0
        queue = deque([LOW])
        while queue:
            thing = queue.popleft()
            for edge in self._leaving[thing]:
                if self._left[edge] and levels[self._to[edge]] < 0:
                    levels[self._to[edge]] = levels[thing] + 1
                    queue.append(self._to[edge])
        return levels

    def _augment(self, levels: list[int]) -> None:
        """Use up all shortest paths."""
        rest = [list(edges) for edges in self._leaving]
        path: list[int] = []
        thing = LOW
        while True:
            if thing == WIDE:
                least = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= least
                    self._left[edge ^ 1] += least
                path, thing = [], LOW
            edges = rest[thing]
            while edges and not (self._left[edges[-1]] and levels[self._to[edges[-1]]] == levels[thing] + 1):
                edges.pop()
            if edges:
                path.append(edges[-1])
                thing = self._to[edges[-1]]
            elif path:
                thing = self._to[path.pop() ^ 1]
                rest[thing].pop()
            else:
                return
