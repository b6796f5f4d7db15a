"""ONNX models: fix the inputs' shapes, and import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import onnx
import tvm

from ...core.errors import ByocError, InputError, MissingFileError, UnsupportedError, first_line, out_of_resources
from ..gguf.decoder import read_decoder
from ..gguf.file import SUFFIX as GGUF
from .file import Weights, load_whole, read_model
from .inputs import Shapes, advice_on_inputs, fixed_inputs, given_inputs
from .model import to_module
from .open_dims import name_dims, refuse_sequences
from .structure import check_structure

__all__ = ["import_onnx", "load_apart", "load_onnx"]

_Read = TypeVar("_Read")


def load_onnx(path: Path) -> onnx.ModelProto:
    """The model in an .onnx file, with the weights in files beside it, or in a .gguf file."""
    if path.suffix != GGUF:
        return _read(path, load_whole)
    model, weights = load_apart(path)
    for tensor in model.graph.initializer:
        tensor.raw_data = weights[tensor.name].tobytes()
    return model


def load_apart(path: Path) -> tuple[onnx.ModelProto, Weights]:
    """The model in an .onnx or .gguf file, and those weights that are not in it but apart."""
    if path.suffix != GGUF:
        return _read(path, read_model)
    model, weights = _read(path, read_decoder)
    return model, Weights(weights)


def _read(path: Path, read: Callable[[Path], _Read]) -> _Read:
    try:
        return read(path)
    except ByocError:
        raise
    except FileNotFoundError as err:
        if str(err.filename) != str(path):
            raise InputError(f"cannot read `{path}`: its weights are in `{err.filename}`, which is not there") from err
        raise MissingFileError(f"no file `{path}`; give the path of an .onnx or .gguf file") from err
    except Exception as err:  # protobuf's DecodeError, OSError and ValueError of external data
        if (resources := out_of_resources(err)) is not None:
            raise resources from err
        raise InputError(f"cannot read `{path}` as an ONNX model: {first_line(err)}") from err


def import_onnx(
    model: onnx.ModelProto, shapes: Shapes | None = None, weights: Weights | None = None, *, string_labels: bool = False
) -> tvm.IRModule:
    """A Relax module of an ONNX model; see `to_relax`. ``weights``: those whose data are not in the model."""
    try:
        return _import_onnx(model, shapes, weights or Weights({}), string_labels)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}{advice_on_inputs(model, shapes or {})}") from error.__cause__
    except ByocError:
        raise
    except Exception as error:
        if (resources := out_of_resources(error)) is not None:
            raise resources from error
        raise InputError(
            f"the ONNX model cannot be read ({type(error).__name__}: {first_line(error)}); onnx.checker.check_model "
            "may say which node is not as ONNX defines it"
        ) from error


def _import_onnx(model: onnx.ModelProto, shapes: Shapes | None, weights: Weights, string_labels: bool) -> tvm.IRModule:
    if not model.graph.output:
        raise InputError("the ONNX model has no outputs: it is empty or damaged")
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer):
        raise InputError(
            "the model's weights lie in files beside it and are not loaded; give its path, or call "
            "onnx.load_external_data_for_model first"
        )
    check_structure(model, weights)
    given = fixed_inputs(given_inputs(model), shapes or {})
    refuse_sequences(given)
    named = name_dims([*given, *model.graph.output])
    inputs, outputs = named[: len(given)], named[len(given) :]
    module = to_module(model, inputs, outputs, weights, string_labels=string_labels)
    names = {"input_names": [i.name for i in inputs], "output_names": [o.name for o in outputs]}
    module["main"] = module["main"].with_attrs({**names, "num_input": len(inputs)})
    weights.complete()
    return module
