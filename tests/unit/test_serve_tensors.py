"""Tensors of the Open Inference Protocol: what is read is what was written, and each fault is one error."""

from __future__ import annotations

import json
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.serve.tensors import DATATYPES, from_bytes, from_numbers, read_request, written_answer

X = {"name": "x", "shape": [2], "datatype": "FP32"}


@pytest.mark.parametrize("dtype", DATATYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (5,)], ids=str)
def test_each_dtype_returns_by_both_ways(dtype: str, shape: tuple[int, ...]) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    array = np.asarray(np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape)).astype(kind)
    if kind.kind == "f":
        array = array / kind.type(3)
    elif array.size and kind.kind in "iu":
        array.flat[0], array.flat[-1] = np.iinfo(kind).min, np.iinfo(kind).max
    datatype = DATATYPES[dtype]
    body, length = written_answer({}, {"a": array, "b": array}, {"a": False, "b": True})
    text, raw = body[:length], body[length:]
    as_numbers, as_bytes = json.loads(text)["outputs"]
    assert as_bytes == {"name": "b", "shape": list(shape), "datatype": datatype,
                        "parameters": {"binary_data_size": len(raw)}}  # fmt: skip
    for back in (
        from_bytes("b", datatype, list(shape), raw),
        from_numbers("a", datatype, as_numbers["shape"], as_numbers["data"]),
        from_numbers("a", datatype, list(shape), array.astype(float if kind.kind in "fV" else kind).tolist() or []),
    ):
        assert back.dtype == kind and back.shape == shape and back.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("FP33", [2], [1, 2], "did you mean 'FP32'"),
        (None, [2], [1, 2], "datatype None; expected one of BOOL"),
        ("FP32", [-1], [1], "expected a list of whole numbers"),
        ("FP32", [True], [1], "expected a list of whole numbers"),
        ("FP32", "2", [1, 2], "expected a list of whole numbers"),
        ("FP32", [2], [1, 2, 3], "data of shape [3]; expected [2]"),
        ("FP32", [2, 2], [[1, 2, 3, 4]], "data of shape [1, 4]; expected [2, 2]"),
        ("FP32", [2, 2], [[1, 2], [3]], "lists of different lengths"),
        ("FP32", [2], ["1", "2"], "not all numbers"),
        ("FP32", [2], [None, 2], "not all numbers"),
        ("FP32", [2], [1e39, 2], "FP32 does not hold"),
        ("INT8", [2], [128, 2], "INT8 does not hold"),
        ("UINT8", [2], [-1, 2], "UINT8 does not hold"),
        ("INT64", [2], [1.5, 2], "not all whole numbers"),
        ("INT64", [1], [2**70], "INT64 does not hold"),
        ("INT32", [2], [True, False], "not all whole numbers"),
        ("BOOL", [2], [1, 0], "not all true and false"),
    ],
)
def test_numbers_that_do_not_fit(datatype: Any, shape: Any, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        from_numbers("x", datatype, shape, data)


def test_nan_and_infinities_are_read_and_not_written_as_json() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1], "float32")
    text = json.dumps({"inputs": [{"name": "x", "shape": [4], "datatype": "FP32", "data": values.tolist()}]})
    np.testing.assert_array_equal(read_request(text.encode(), None).inputs["x"], values)
    with pytest.raises(InputError, match="output 'y' has NaN or infinities"):
        written_answer({}, {"y": values}, {"y": False})
    assert written_answer({}, {"y": values}, {"y": True})[0].endswith(values.tobytes())


def request(**changes: Any) -> bytes:
    return json.dumps({"inputs": [{**X, "data": [1, 2], **changes}]}).encode()


@pytest.mark.parametrize(
    ("body", "length", "message"),
    [
        (b"", None, "no JSON"),
        (b"[1]", None, "no object"),
        (b"[" * 100000, None, "no JSON"),
        (b"\xff", None, "no JSON"),
        (b"{}", None, "inputs are missing"),
        (b'{"inputs": {}}', None, "inputs is {}"),
        (b'{"inputs": [1]}', None, "inputs is [1]"),
        (b'{"inputs": [{}]}', None, "name is None"),
        (b'{"id": 3, "inputs": []}', None, "id is 3"),
        (b'{"inputs": [], "outputs": 3}', None, "outputs is 3"),
        (b'{"inputs": [], "outputs": 0}', None, "outputs is 0"),
        (b'{"inputs": [{"name": "x", "parameters": []}]}', None, "parameters is []"),
        (b'{"inputs": [], "parameters": 3}', None, "parameters is 3"),
        (b'{"inputs": [], "parameters": {"binary_data_output": 1}}', None, "binary_data_output is 1"),
        (json.dumps({"inputs": [X]}).encode(), None, "no data"),
        (json.dumps({"inputs": [{**X, "data": [1, 2]}] * 2}).encode(), None, "given twice"),
        (request(), "x", "expected a number up to"),
        (request(), "-1", "expected a number up to"),
        (request(), "9999", "expected a number up to"),
        (request(parameters={"binary_data_size": 8}), None, "binary_data_size 8"),
        (request(parameters={"binary_data_size": -8}), None, "binary_data_size -8"),
        (request(parameters={"binary_data_size": "8"}), None, "binary_data_size '8'"),
        (request(), str(len(request()) - 1), "no JSON"),
        (request() + b"12", str(len(request())), "2 bytes of the body belong to no input"),
    ],
)
def test_a_request_that_is_none(body: bytes, length: str | None, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        read_request(body, length)


def test_the_wrong_number_of_bytes() -> None:
    text = request(parameters={"binary_data_size": 7})
    with pytest.raises(InputError, match=re.escape("has 7 bytes; FP32[2] has 8")):
        read_request(text + bytes(7), str(len(text)))
