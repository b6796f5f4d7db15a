"""Name, dtype and shape of a model's inputs and outputs, and made-up ones that fit; arguments as dense NumPy arrays."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from .errors import ArgumentTypeError, InputError, is_number, short


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of a model.

    Attributes
    ----------
    name : str
        ONNX's own name, such as ``input.1``; of other models the parameter's name, and ``output_0``, ``output_1`` ...
    dtype : str
        NumPy's name of the type; empty where the model does not say.
    shape : tuple of int or str, or None
        Numbers, and names of open dims; ``None`` where not even the rank is known.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None

    def __str__(self) -> str:
        return f"{self.name} {self.type_text}"

    @property
    def type_text(self) -> str:
        """``float32[N, 3, 224, 224]``."""
        dims = "…" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.dtype or '?'}[{dims}]"

    @property
    def is_static(self) -> bool:
        """Whether every dim is a number."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    def check(self, dtype: str, shape: Sequence[int]) -> None:
        if self.dtype and dtype != self.dtype:
            raise InputError(
                f"input {self.name!r} has dtype {dtype}, expected {self.dtype}; convert it with .astype({self.dtype!r})"
            )
        if self.shape is None:
            return
        fits = len(self.shape) == len(shape) and all(
            w == d for w, d in zip(self.shape, shape, strict=True) if isinstance(w, int)
        )
        if not fits:
            raise InputError(f"input {self.name!r} has shape {list(shape)}, expected {list(self.shape)}")


def check_symbols(inputs: Sequence[TensorInfo], shapes: Sequence[Sequence[int]]) -> None:
    """Raise `InputError` for inputs that have different sizes where the model has one open dim."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for index, (info, shape) in enumerate(zip(inputs, shapes)):
        for axis, (name, dim) in enumerate(zip(info.shape or (), shape)):
            if isinstance(name, str) and sizes.setdefault(name, (dim, index, axis))[0] != dim and name.isidentifier():
                size, of, at = sizes[name]
                raise InputError(
                    f"axis {axis} of input {info.name!r} is {dim}, but axis {at} of input {inputs[of].name!r} is "
                    f"{size}; the model has both be {name}: make them equal"
                )


def checked_shapes(shapes: Any) -> Mapping[str, Sequence[int | str]]:
    """``shapes`` of a public function; `ArgumentTypeError` unless it is a mapping of names to sizes."""
    given: Any = shapes.values() if isinstance(shapes, Mapping) else [None]
    for shape in given:
        is_row = isinstance(shape, Sequence) and not isinstance(shape, (str, bytes, memoryview))
        if not is_row or not all(isinstance(dim, (str, int, np.integer)) for dim in shape):
            raise ArgumentTypeError(f"shapes is {short(shapes)}; expected a mapping such as {{'x': (1, 3, 224, 224)}}")
    return cast(Mapping[str, Sequence[int | str]], shapes)


def random_arrays(
    inputs: Sequence[TensorInfo], seed: int, shapes: Mapping[str, Sequence[int | str]]
) -> list[np.ndarray]:
    """Made-up values for inputs, standard normal or small integers; ``shapes`` has those of inputs with open dims."""
    if not is_number(seed, 0):
        raise ArgumentTypeError(f"seed is {short(seed)}; expected a number from 0 on")
    unknown = [name for name in checked_shapes(shapes) if all(name != i.name for i in inputs)]
    if unknown:
        raise InputError(
            f"unknown input {unknown[0]!r}; the model's inputs are {', '.join(repr(i.name) for i in inputs)}"
        )
    rng = np.random.default_rng(seed)
    arrays = []
    for info in inputs:
        shape = shapes.get(info.name, info.shape)
        if not info.dtype or shape is None or not all(isinstance(d, int) for d in shape):
            given = None if info.shape is None else list(info.shape)
            raise InputError(
                f"input {info.name!r} has shape {given}, which is not fixed; pass inputs, or shapes: "
                f"{shape_options(inputs)}"
            )
        info.check(info.dtype, list(shape))  # type: ignore[arg-type]
        values = rng.standard_normal(shape) if "float" in info.dtype else rng.integers(0, 2, shape)  # type: ignore[arg-type]
        arrays.append(np.asarray(values).astype(info.dtype))
    return arrays


def with_named_sizes(
    inputs: Sequence[TensorInfo], shapes: Mapping[str, Sequence[int | str]]
) -> dict[str, Sequence[int | str]]:
    """``shapes``, and those of the inputs whose open dims have names that these shapes give a size."""
    sizes = {
        name: size
        for info in inputs
        for name, size in zip(info.shape or (), shapes.get(info.name, ()), strict=False)
        if isinstance(name, str)
    }
    others = {i.name: tuple(sizes.get(d, d) for d in i.shape) for i in inputs if i.shape is not None}  # type: ignore[arg-type]
    return {**others, **shapes}


def shape_options(inputs: Sequence[TensorInfo]) -> str:
    """The options of the command line that fix the open dims of inputs, with a usual size for each."""
    options = []
    for info in inputs:
        if info.shape is not None and not info.is_static:
            rank = len(info.shape)
            dims = [d if isinstance(d, int) else _usual_size(axis, rank) for axis, d in enumerate(info.shape)]
            options.append("--shape " + shlex.quote(f"{info.name}={','.join(map(str, dims))}"))
    return " ".join(options)


def _usual_size(axis: int, rank: int) -> int:
    """One batch; the sides of a picture; the length of a text."""
    return 1 if axis == 0 else 224 if rank == 4 else 128


_CPU = 1  # kDLCPU
#: in which a decoder may keep keys and values
CACHE_DTYPES = ("float32", "float16", "bfloat16")
#: dtypes of fewer than 8 bits → what their numbers are kept in, one to a byte; TVM packs them in another order
STORED = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8", "float4_e2m1fn": "uint8"}


def as_stored(array: np.ndarray) -> np.ndarray:
    """An array; numbers of fewer than 8 bits as they are kept: integers as those of 8 bits, others by their codes."""
    dtype = STORED.get(str(array.dtype))
    if dtype is None:
        return array
    return array.astype(dtype) if "int" in str(array.dtype) else array.view(dtype)


def as_array(value: Any, name: str, expected: str) -> np.ndarray:
    """``value`` as a dense array; in place where it can be, or a copy. The arguments are those of `as_tensor`."""
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__dlpack__"):
        check_device(value, name, expected)
        try:
            value = np.from_dlpack(value)
        except Exception as error:
            raise unreadable(value, name, expected, error) from error
    return dense(value, name, expected, lambda dtype: dtype.kind in "fiub")


def unreadable(value: Any, name: str, expected: str, error: Exception) -> InputError:
    said = (str(error).strip() or type(error).__name__).splitlines()[-1]
    return InputError(f"{name} is {described(value)} that cannot be read ({said}), expected {expected}")


def check_device(value: Any, name: str, expected: str) -> None:
    """Raise `InputError` for what DLPack gives out of the memory of a device."""
    try:
        device = int(value.__dlpack_device__()[0])
    except Exception as error:  # a device that DLPack has no number for
        raise unreadable(value, name, expected, error) from error
    if device != _CPU:
        raise InputError(f"{name} is on a device of DLPack's type {device}, expected {expected} on the CPU")


def dense(value: Any, name: str, expected: str, is_known: Callable[[np.dtype], bool]) -> np.ndarray:
    """A dense array of numbers, kept as `as_stored` says; `InputError` for what is none, or of an unknown dtype."""
    try:
        array = as_stored(np.asarray(value))
    except ValueError:  # lists of different lengths
        raise InputError(f"{name} is {described(value)} that makes no array, expected {expected}") from None
    if not (array.dtype.isnative and is_known(array.dtype)):
        what = f"an array of {array.dtype}" if isinstance(value, np.ndarray) else described(value)
        cure = f"; convert it with .astype({array.dtype.newbyteorder('=').name!r})" if not array.dtype.isnative else ""
        raise InputError(f"{name} is {what}, expected {expected} as a NumPy array or anything with __dlpack__{cure}")
    return np.ascontiguousarray(array).reshape(array.shape)  # which makes one dim of none


def described(value: Any) -> str:
    if value is None:
        return "None"
    text = repr(value)
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" + (f" ({text})" if len(text) <= 40 else "")
