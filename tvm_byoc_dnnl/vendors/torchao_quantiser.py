"""What a backend can take of quantised models, as a quantiser of torchao's pt2e flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torchao.quantization.pt2e import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)

_ANNOTATION = "quantization_annotation"
_ENDS = ("relu.default", "relu_.default", "hardtanh.default", "hardtanh_.default", "clamp.default")


class BackendQuantiser(Quantizer):
    """Of the calls of operators of PyTorch in ``kinds``; those of kinds in ``with_weights`` have weights."""

    def __init__(self, spec: Any, kinds: Mapping[str, str], with_weights: Sequence[str]) -> None:
        super().__init__()
        self._kinds, self._with_weights = kinds, with_weights
        self._shared = spec.shared_scales
        self._data = _of_dtype(spec.activations[0], spec.symmetric_activations, HistogramObserver)
        observer = PerChannelMinMaxObserver if spec.per_channel else MinMaxObserver
        self._weights = _of_dtype(spec.weights[0], spec.symmetric_weights, observer, 0 if spec.per_channel else None)

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        for node in model.graph.nodes:
            kind = self._kinds.get(_name(node))
            if kind is not None and _ANNOTATION not in node.meta:
                self._note(node, kind)
        return model

    def validate(self, model: torch.fx.GraphModule) -> None:
        """Nothing is asked of a model."""

    def _note(self, node: torch.fx.Node, kind: str) -> None:
        first = node.args[0]
        data = list(first) if isinstance(first, (list, tuple)) else [first]
        data += [a for a in node.args[1:2] if isinstance(a, torch.fx.Node)]
        weights = data.pop() if kind in self._with_weights and len(data) > 1 and data[1].op == "get_attr" else None
        if not all(_is_real(part) for part in data):
            return
        inputs: dict[Any, Any] = dict.fromkeys(data, self._data)
        output: Any = self._data
        if kind in self._shared:
            output = SharedQuantizationSpec((data[0], node))
            inputs.update(dict.fromkeys(data[1:], output))
        if weights is not None:
            inputs[weights] = self._weights
        users = list(node.users)
        end = users[0] if len(users) == 1 and _name(users[0]) in _ENDS else node
        own = end is node
        node.meta[_ANNOTATION] = QuantizationAnnotation(
            input_qspec_map=inputs, output_qspec=output if own else None, _annotated=True
        )
        if not own:
            end.meta[_ANNOTATION] = QuantizationAnnotation(output_qspec=output, _annotated=True)


def _of_dtype(name: str, symmetric: bool, observer: Any, axis: int | None = None) -> QuantizationSpec:
    dtype = getattr(torch, name)
    info = torch.iinfo(dtype)
    least = info.min + 1 if symmetric and axis is not None else info.min
    schemes = {
        (True, False): torch.per_tensor_symmetric,
        (False, False): torch.per_tensor_affine,
        (True, True): torch.per_channel_symmetric,
        (False, True): torch.per_channel_affine,
    }
    return QuantizationSpec(
        dtype=dtype,
        observer_or_fake_quant_ctr=observer.with_args(eps=2**-12),
        quant_min=least,
        quant_max=info.max,
        qscheme=schemes[symmetric, axis is not None],
        ch_axis=axis,
    )


def _name(node: torch.fx.Node) -> str:
    target = getattr(node, "target", None)
    return str(target).removeprefix("aten.") if node.op == "call_function" else ""


def _is_real(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32
