"""Arguments of a call: anything that holds numbers is taken, in place or copied; what does not is named."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.arguments import as_tensor

pytestmark = pytest.mark.native


class Producer:
    """What another framework's tensor is to us."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


class Refusing(Producer):
    """As PyTorch's tensors that need a gradient."""

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise BufferError("use tensor.detach()")

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise RuntimeError("use tensor.detach()")


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


BASE = np.random.default_rng(0).standard_normal((9, 40, 8)).astype("float32")
VIEWS = {
    "whole": BASE[:4, :, :5].copy(),
    "rows": BASE[1:5, :, :5],
    "an offset": np.arange(4 * 40 * 5 + 1, dtype="float32")[1:].reshape(4, 40, 5),
    "every other": BASE[::2, :, :5][:4],
    "transposed": np.ascontiguousarray(BASE[:4, :, :5].transpose(2, 1, 0)).transpose(2, 1, 0),
    "backwards": BASE[3::-1, :, :5],
    "read-only": read_only(BASE[:4, :, :5]),
    "one row for all": np.broadcast_to(BASE[0, :, :5], (4, 40, 5)),
}
FORMS = {
    "NumPy": lambda a: a,
    "DLPack": Producer,
    "TVM": lambda a: tvm_ffi.from_dlpack(a if a.flags.writeable else a.copy()),
    "list": lambda a: a.astype("float32").tolist(),
}


def function(dtype: str) -> byoc.Runner:
    """One region, and one loop of TVM's."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 40, 5), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            summed = builder.emit(relax.op.cumsum(x, axis=1))
            out = builder.emit_output(relax.Tuple([summed, builder.emit(relax.op.nn.relu(x))]))
        builder.emit_func_output(out)
    return byoc.Runner(byoc.compile(builder.get()))


@pytest.fixture(scope="module")
def run() -> byoc.Runner:
    return function("float32")


@pytest.mark.parametrize("form", ["NumPy", "DLPack", "TVM"])
@pytest.mark.parametrize("view", VIEWS)
def test_any_view_gives_the_numbers_of_its_copy(run: byoc.Runner, view: str, form: str) -> None:
    array = VIEWS[view]
    got = run(FORMS[form](array))
    for g, w in zip(got, run(array.copy()), strict=True):
        np.testing.assert_array_equal(g, w)
    np.testing.assert_array_equal(got[1], np.maximum(array, 0))


def test_a_view_of_a_type_that_numpy_does_not_know() -> None:
    base = BASE[:4, :, :5].astype(ml_dtypes.bfloat16)
    whole = tvm.runtime.tensor(base)
    swapped = tvm.runtime.tensor(np.ascontiguousarray(base.transpose(1, 0, 2)))
    assert as_tensor(whole, "x", "").data_ptr() == whole.data_ptr()

    class Strided:
        """`swapped` with its first two axes in the other order."""

        def __dlpack__(self, **kwargs: Any) -> Any:
            bits = np.asarray(swapped.numpy()).view("uint16").transpose(1, 0, 2)
            return bits.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    np.testing.assert_array_equal(as_tensor(Strided(), "x", "").numpy().view(ml_dtypes.bfloat16), base)


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 5)])
@pytest.mark.parametrize("dtype", ["int2", "int4", "uint2", "uint4", "float4_e2m1fn"])
def test_numbers_of_fewer_than_8_bits_lie_one_to_a_byte(dtype: str, shape: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(0).integers(0, 2, shape).astype(getattr(ml_dtypes, dtype))
    kept = as_tensor(numbers, "x", "").numpy()
    assert kept.dtype == ("int8" if dtype.startswith("int") else "uint8")
    np.testing.assert_array_equal(kept if "int" in dtype else kept.view(numbers.dtype), numbers)


def test_aligned_dense_memory_is_used_in_place() -> None:
    tensor = tvm.runtime.tensor(BASE)
    assert as_tensor(tensor, "x", "").data_ptr() == tensor.data_ptr()
    assert as_tensor(Producer(np.from_dlpack(tensor)), "x", "").data_ptr() == tensor.data_ptr()


def at_offset(numbers: int) -> np.ndarray:
    """An array whose first byte lies so many numbers behind a multiple of 64 bytes."""
    room = np.empty(4 * 40 * 5 + 32, "float32")
    start = -room.ctypes.data % 64 // 4 + numbers
    array = room[start : start + 4 * 40 * 5].reshape(4, 40, 5)
    array[...] = BASE[:4, :, :5]
    return array


def test_memory_that_only_regions_read_may_lie_anywhere(run: byoc.Runner) -> None:
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((4, 40, 5), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            small = builder.emit(relax.op.tanh(relax.op.add(x, y)))
            out = builder.emit_output(relax.op.cumsum(relax.op.subtract(small, y), axis=1))
        builder.emit_func_output(out)
    mixed = byoc.Runner(byoc.compile(builder.get(), place={"relax.subtract": "tvm"}))
    for array in (*map(at_offset, range(5)), read_only(at_offset(3))):
        held, copied = mixed.tensors([array, array])  # TVM's subtraction reads the second
        assert held.data_ptr() == array.ctypes.data and copied.data_ptr() % 64 == 0
        assert run.tensors([array])[0].data_ptr() % 64 == 0
        want = np.cumsum(np.tanh(2 * array) - array, axis=1)
        np.testing.assert_allclose(mixed(array, array), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(byoc.InputError, match="input 'x' has dtype float64"):
        mixed(BASE[:4, :, :5].astype("float64"), array)


EXPECTED = r"expected float32\[4, 40, 5\]"
REFUSED = {
    "none": (None, rf"input 'x' is None, {EXPECTED}"),
    "a string": ("abc", rf"input 'x' is a str \('abc'\), {EXPECTED}"),
    "strings": (np.array(["a", "b"]), rf"input 'x' is an array of <U1, {EXPECTED}"),
    "an object": (object(), rf"input 'x' is an object.*, {EXPECTED}"),
    "objects": (np.array([None, 1]), rf"input 'x' is an array of object, {EXPECTED}"),
    "complex numbers": (BASE[:4, :, :5].astype("complex64"), rf"input 'x' is an array of complex64, {EXPECTED}"),
    "dates": (np.array(["2020-01-01"], "datetime64[D]"), rf"input 'x' is an array of datetime64\[D\], {EXPECTED}"),
    "big-endian": (
        BASE[:4, :, :5].astype(">f4"),
        rf"input 'x' is an array of >f4, {EXPECTED}.*convert it with .astype\('float32'\)",
    ),
    "ragged": ([[1.0], [2.0, 3.0]], rf"input 'x' is a list .*makes no array, {EXPECTED}"),
    "another dtype": (BASE[:4, :, :5].astype("float64"), r"input 'x' has dtype float64, expected float32"),
    "needs a gradient": (Refusing(BASE), rf"input 'x' is a Refusing .*use tensor.detach\(\)\), {EXPECTED}"),
    "another device": (
        Producer(BASE, device=2),
        rf"input 'x' is on a device of DLPack's type 2, {EXPECTED} on the CPU",
    ),
}


@pytest.mark.parametrize(("value", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_named(run: byoc.Runner, value: Any, message: str) -> None:
    with pytest.raises(byoc.InputError, match=message):
        run(value)


def test_lists_and_numbers_are_arrays() -> None:
    builder = relax.BlockBuilder()
    x, y = relax.Var("x", relax.TensorType((2,), "int64")), relax.Var("y", relax.TensorType((), "int64"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.add(x, y))
        builder.emit_func_output(out)
    run = byoc.Runner(byoc.compile(builder.get()))
    np.testing.assert_array_equal(run([1, 2], 3), [4, 5])
