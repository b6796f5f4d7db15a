"""bfloat16 inside a region: a dtype on the edges between nodes.

    float32 ── reorder ──> bf16 ── convolution ── relu ── max pooling ── … ── reorder ──> float32

Convolutions and matrix products read and write bfloat16 and sum in float32. Nodes behind them that only move, add or
activate follow, and so do softmax and layer_norm, which oneDNN computes in float32 between the two. All other nodes
read float32: reductions, other norms, powers, logarithms and square roots, and the operators that the user names.
Constants stay float32 in the file, and are converted when a plan packs them. Of recurrent layers the weights alone are
bfloat16: states are summed up over all steps.

A CPU on which oneDNN does not have a dtype of 16 bits computes in float32 in its place. The graph stays as it is, so a
saved library uses the dtype on every CPU that has it; here only the reason for the report is noted.
"""

from __future__ import annotations

import functools
import logging
import math
from fnmatch import fnmatchcase

from ...vendor import InputError, Node, PortableGraph
from . import library
from .native import probe

_logger = logging.getLogger("tvm_byoc_dnnl")

#: option → default: the dtype in which regions compute, and the operators that stay in float32, separated by commas
OPTIONS = {"precision": "float32", "float32_ops": ""}
_PRECISIONS = ("float32", "bfloat16", "auto")

#: kinds that are worth a conversion of their operands
_PRODUCTS = ("convolution", "deconvolution", "matmul")
#: kinds of which constant weights alone are in bfloat16: their places
_WEIGHTS = {"recurrent": (1, 2)}
#: sequences of a layer, and numbers of it, whose time is that of reading them
_MOST_SEQUENCES, _LEAST_WEIGHTS = 4, 1 << 16
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


def compute_in_bfloat16(graph: PortableGraph) -> None:
    """Change the dtype of the edges that may be bfloat16, if the option ``precision`` asks for it."""
    if not _is_wanted(str(graph.options.get("precision", OPTIONS["precision"]))):
        return
    _Edges(graph).run()


def note_widened(graph: PortableGraph) -> None:
    """Say of each node with a dtype that this CPU computes in float32 that it does so."""
    if not library.available():
        return
    for node in graph.nodes:
        for dtype in {graph.tensors[t].dtype for t in (*node.reads, *node.outputs)} & library.widened():
            node.precision = f"{dtype} is computed in float32: this CPU ({library.isa()}) has no {dtype}"


def _is_wanted(precision: str) -> bool:
    if precision not in _PRECISIONS:
        raise InputError(f"the option precision is {precision!r}; expected {', '.join(_PRECISIONS)}")
    if precision == "float32" or not library.available():
        return False
    isa = library.isa()
    native = "bf16" in isa or "amx" in isa or "fp16" in isa or "avx10" in isa
    if precision == "bfloat16" and not native:
        _announce(isa)
    return precision == "bfloat16" or native


@functools.cache
def _announce(isa: str) -> None:
    is_widened = "bfloat16" in library.widened()
    how = "it computes in float32 in its place" if is_widened else "oneDNN emulates it, which is right and slow"
    _logger.warning(
        "precision='bfloat16': this CPU (%s) has no bfloat16 instructions; %s. The result of a compilation uses them "
        "on a CPU that has them (AVX512_BF16, AMX); precision='auto' asks for bfloat16 only if this CPU has it",
        isa,
        how,
    )


class _Edges:
    def __init__(self, graph: PortableGraph) -> None:
        self.graph = graph
        self._constants = graph.constant_tensors()
        self._outputs = set(graph.outputs)
        self._converted: dict[tuple[int, str], int] = {}
        named = str(graph.options.get("float32_ops", ""))
        self._float32 = [name.strip() for name in named.split(",") if name.strip()]

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if self._constants.issuperset(node.outputs):
                continue
            node.precision = self._why_float32(node)
            if node.precision:
                self._read(node, range(len(node.inputs)), "float32")
            else:
                places = self._converted_inputs(node)
                self._read(node, places, "bfloat16")
                if node.kind in _WEIGHTS:
                    self._read(node, [i for i in range(len(node.inputs)) if i not in places], "float32")
                else:
                    self._write(node)
        self.graph.validate()

    def _dtype(self, tensor: int) -> str:
        return self.graph.tensors[tensor].dtype

    def _why_float32(self, node: Node) -> str:
        """The reason why a node computes in float32, empty if it computes in bfloat16."""
        alg = str(node.attrs.get("alg", ""))
        low = [t for t in node.inputs if self._dtype(t) == "bfloat16"]
        names = node.source
        asked = next((n for n in names for pattern in self._float32 if fnmatchcase(n, pattern)), None)
        if asked:
            return f"{asked} is one of float32_ops"
        if node.kind in _WEIGHTS:
            if reason := self._why_wide(node):
                return reason
        elif node.kind not in _PRODUCTS and not low:
            return "it reads nothing in bfloat16"
        elif node.kind not in _PRODUCTS and (node.kind not in _FOLLOW or alg in _EXACT_ALGS):
            return f"{alg or node.kind} computes in float32"
        is_part = node.kind in ("eltwise", "binary") and any(fnmatchcase(n, p) for n in names for p in _NORMS)
        if is_part:
            return "norms compute in float32"
        changed = [*(node.inputs[i] for i in self._converted_inputs(node)), *self._results(node)]
        read = changed if node.kind in _WEIGHTS else (*node.inputs, *node.outputs)
        strange = [t for t in read if self._dtype(t) not in ("float32", "bfloat16")]
        if strange or node.is_scaled or self._dtype(node.outputs[0]) != "float32":
            return f"a tensor of dtype {self._dtype(strange[0]) if strange else 'with a scale'}"
        alone = self.graph.isolate(node, self._constants)
        ids = {old: new for new, old in enumerate(dict.fromkeys([*node.reads, *node.outputs]))}
        for tensor in changed:
            alone.tensors[ids[tensor]].dtype = "bfloat16"
        refusal = probe(alone)
        return "" if refusal is None else refusal.reason

    def _why_wide(self, node: Node) -> str:
        """The reason why the weights of a layer stay in float32, empty if they do not."""
        tensors = [self.graph.tensors[node.inputs[place]] for place in _WEIGHTS[node.kind]]
        shapes = [tensor.shape for tensor in tensors]
        if not self._constants.issuperset(node.inputs[place] for place in _WEIGHTS[node.kind]):
            return "its weights are no constants"
        numbers = [math.prod(d for d in shape if isinstance(d, int)) for shape in shapes]
        if sum(numbers) < _LEAST_WEIGHTS:
            return f"{sum(numbers)} weights: fewer than {_LEAST_WEIGHTS} stay in the cache"
        batch = self.graph.tensors[node.inputs[0]].shape[1]
        if isinstance(batch, int) and batch > _MOST_SEQUENCES:
            return f"{batch} sequences: more than {_MOST_SEQUENCES} take longer to multiply than weights to read"
        return ""

    @staticmethod
    def _results(node: Node) -> tuple[int, ...]:
        """The results that are in bfloat16."""
        return () if node.kind in _WEIGHTS else tuple(node.outputs)

    def _converted_inputs(self, node: Node) -> list[int]:
        """Positions of the operands that must be in bfloat16."""
        if node.kind in _WEIGHTS:
            return list(_WEIGHTS[node.kind])
        count = _READ_AS_THEY_ARE.get(node.kind, len(node.inputs))
        everything = node.kind in (*_PRODUCTS, "concat")
        return [i for i, t in enumerate(node.inputs[:count]) if everything or t not in self._constants]

    def _read(self, node: Node, places: range | list[int], dtype: str) -> None:
        other = "float32" if dtype == "bfloat16" else "bfloat16"
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

    def _write(self, node: Node) -> None:
        """The result in bfloat16, and in float32 as well if it is one of the region's."""
        result = node.outputs[0]
        if result not in self._outputs:
            self.graph.tensors[result].dtype = "bfloat16"
            return
        if node.kind in _PRODUCTS:
            return  # they write float32 as well
        low = self.graph.new_tensor("bfloat16", self.graph.tensors[result].shape)
        self.graph.nodes.rewire(node, outputs=[low])
        back = self.graph.insert("reorder", [low], self.graph.tensors[result].shape, "float32", before=node)
        self.graph.nodes.rewire(back, outputs=[result])
        self.graph.nodes.move(back, after=node)
        back.source, back.calls = list(node.source), list(node.calls)
        self._converted[result, "bfloat16"] = low
