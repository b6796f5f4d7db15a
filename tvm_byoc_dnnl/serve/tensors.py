"""Tensors of the Open Inference Protocol: JSON, or raw bytes behind the JSON, to arrays and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import InputError, did_you_mean

#: NumPy's name of a dtype → the protocol's. float16 and bfloat16 have numbers in JSON, too.
DATATYPES = {
    "bool": "BOOL",
    **{f"{sign.lower()}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
}
_DTYPES = {datatype: dtype for dtype, datatype in DATATYPES.items()}
#: kind of the dtype → the kinds of NumPy's arrays that JSON's numbers for it become
_ALLOWED = {"b": ("b", "true and false"), "i": ("iu", "whole numbers"), "u": ("iu", "whole numbers")}

HEADER = "Inference-Header-Content-Length"


@dataclass
class InferRequest:
    """What a client asks for.

    ``inputs``: by name. ``outputs``: the wanted outputs in order, and whether each is sent as raw bytes; ``None`` for
    all of them. ``binary``: whether outputs that do not say how are sent as raw bytes.
    """

    inputs: dict[str, np.ndarray]
    outputs: dict[str, bool] | None = None
    binary: bool = False
    id: str = ""


def numpy_dtype(name: str, datatype: Any) -> np.dtype:
    """NumPy's dtype for one of the protocol. Raises `InputError` if the protocol, or NumPy, has none of this name."""
    if not isinstance(datatype, str) or datatype not in _DTYPES:
        raise InputError(
            f"input {name!r} has datatype {datatype!r}; expected one of {', '.join(_DTYPES)}"
            f"{did_you_mean(datatype, _DTYPES)}"
        )
    if datatype == "BF16":
        import ml_dtypes  # tells NumPy the name

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_DTYPES[datatype])


def from_bytes(name: str, datatype: Any, shape: Any, data: bytes | memoryview) -> np.ndarray:
    """The array of raw bytes, little endian, row by row; a view of them.

    Raises `InputError` if datatype or shape is none, or the number of bytes does not fit them.
    """
    dtype, dims = numpy_dtype(name, datatype), _dims(name, shape)
    expected = math.prod(dims) * dtype.itemsize
    if len(data) != expected:
        raise InputError(f"input {name!r} has {len(data)} bytes; {datatype}{list(dims)} has {expected}")
    return np.frombuffer(data, dtype).reshape(dims)


def from_numbers(name: str, datatype: Any, shape: Any, data: Any) -> np.ndarray:
    """The array of numbers, in one list or in nested ones.

    Raises `InputError` if datatype or shape is none, or the numbers do not fit them: their count, a fraction for an
    integer, a number that the datatype does not hold.
    """
    dtype, dims = numpy_dtype(name, datatype), _dims(name, shape)
    try:
        given = np.asarray(data)
    except ValueError:
        raise InputError(f"input {name!r} has lists of different lengths; expected numbers for {list(dims)}") from None
    kinds, wanted = _ALLOWED.get(dtype.kind, ("iuf", "numbers"))
    if kinds == "iu" and given.dtype.kind in "fO":  # as NumPy takes numbers of which some need all 64 bits
        exact = np.asarray(data, object)
        if all(type(value) is int for value in exact.flat):
            given, kinds = exact, "O"
    if given.size and given.dtype.kind not in kinds:
        raise InputError(f"input {name!r} is {datatype}, and its data are not all {wanted}")
    if given.size != math.prod(dims) or (given.ndim > 1 and given.shape != dims):
        raise InputError(f"input {name!r} has data of shape {list(given.shape)}; expected {list(dims)}, or in one list")
    try:
        with np.errstate(over="ignore"):
            array = given.astype(dtype).reshape(dims)
        same = given.reshape(dims) == array if dtype.kind in "iu" else np.isinf(given).reshape(dims) == np.isinf(array)
    except OverflowError:
        same = np.False_
    if not np.all(same):
        raise InputError(f"input {name!r} has a number that {datatype} does not hold")
    return array


def read_request(body: bytes, json_length: str | None) -> InferRequest:
    """The request that a body holds.

    ``body``: JSON; behind it, raw bytes of inputs whose parameter ``binary_data_size`` says how many. ``json_length``:
    the header `HEADER`: where the JSON ends. Raises `InputError` if the body is none of the protocol.
    """
    length = len(body)
    if json_length is not None:
        length = int(json_length) if json_length.isdecimal() else -1
        if not 0 <= length <= len(body):
            raise InputError(f"{HEADER} is {json_length!r}; expected a number up to the body's length, {len(body)}")
    record = read_json(body[:length])
    entries, position = _entries(record, "inputs"), length
    raw = memoryview(body)
    request = InferRequest({}, binary=_flag(record, "binary_data_output", False))
    request.id = _text(record, "id") if "id" in record else ""
    for entry in entries:
        name = _text(entry, "name")
        if name in request.inputs:
            raise InputError(f"input {name!r} is given twice")
        size = _parameters(entry).get("binary_data_size")
        if size is None:
            if "data" not in entry:
                raise InputError(f"input {name!r} has no data; expected 'data', or the parameter binary_data_size")
            request.inputs[name] = from_numbers(name, entry.get("datatype"), entry.get("shape"), entry["data"])
            continue
        if type(size) is not int or size < 0 or position + size > len(body):
            raise InputError(
                f"input {name!r} has binary_data_size {size!r}; behind the JSON are {len(body) - position} further "
                f"bytes (the header {HEADER} says where it ends)"
            )
        part = raw[position : position + size]
        request.inputs[name] = from_bytes(name, entry.get("datatype"), entry.get("shape"), part)
        position += size
    if position != len(body):
        raise InputError(f"{len(body) - position} bytes of the body belong to no input")
    if record.get("outputs") not in (None, []):
        outputs = _entries(record, "outputs")
        request.outputs = {_text(entry, "name"): _flag(entry, "binary_data", request.binary) for entry in outputs}
    return request


def read_json(text: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises `InputError` if it is none."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is no JSON: {error}") from None
    if not isinstance(record, dict):
        raise InputError("the request is JSON, but no object; expected {...}")
    return record


def written_answer(
    record: Mapping[str, Any], arrays: Mapping[str, np.ndarray], binary: Mapping[str, bool]
) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where raw bytes follow.

    ``record``: what the answer has beside its outputs. ``arrays``: the outputs. ``binary``: whether each of them is
    sent as raw bytes. Raises `InputError` if an output has numbers that JSON cannot say.
    """
    outputs, parts = [], []
    for name, array in arrays.items():
        entry: dict[str, Any] = described(name, array)
        if binary[name]:
            parts.append(raw_bytes(array))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            values = array if array.dtype.kind in "biu" or array.dtype.itemsize == 8 else array.astype("float32")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise InputError(f"output {name!r} has NaN or infinities, which JSON cannot say; ask for binary_data")
            entry["data"] = values.ravel().tolist()
        outputs.append(entry)
    text = json.dumps({**record, "outputs": outputs}, allow_nan=False, separators=(",", ":")).encode()
    return (b"".join([text, *parts]), len(text)) if parts else (text, None)


def described(name: str, array: np.ndarray) -> dict[str, Any]:
    """Name, shape and datatype of an output."""
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": DATATYPES.get(array.dtype.name, array.dtype.name.upper()),
    }


def raw_bytes(array: np.ndarray) -> bytes:
    """The elements row by row, little endian."""
    return np.ascontiguousarray(array).tobytes()


def _dims(name: str, shape: Any) -> tuple[int, ...]:
    dims = list(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else None
    if dims is None or not all(type(d) is int and 0 <= d < 2**63 for d in dims):
        raise InputError(f"input {name!r} has shape {shape!r}; expected a list of whole numbers from 0 on")
    return tuple(dims)


def _entries(record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = record.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        got = f"is {entries!r:.60}" if key in record else "are missing"
        raise InputError(f"the request's {key} {got}; expected a list of objects with a name")
    return entries


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise InputError(f"{key} is {value!r:.60}; expected a text")
    return value


def _parameters(record: Mapping[str, Any]) -> dict[str, Any]:
    parameters = record.get("parameters")
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, dict):
        raise InputError(f"parameters is {parameters!r:.60}; expected an object")
    return parameters


def _flag(record: Mapping[str, Any], name: str, usual: bool) -> bool:
    value = _parameters(record).get(name, usual)
    if not isinstance(value, bool):
        raise InputError(f"the parameter {name} is {value!r:.60}; expected true or false")
    return value
