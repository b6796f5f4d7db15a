"""Values that compute something else have another name; equal ones have the same in every process."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
import types
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tvm_byoc_dnnl.core.entries import content_key
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.graph.cost import RegionPolicy
from tvm_byoc_dnnl.ir.fingerprint import fingerprint

LEVEL = 1


@dataclass
class Data:
    """Says nothing about itself."""

    shown: int = 0
    hidden: Any = field(default=None, repr=False, compare=False)


class Slots:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Attributes:
    limit = 3

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "always the same"

    def method(self) -> Any:
        return self.value


class OwnDict(dict[str, int]):
    pass


class OwnInt(int):
    pass


def with_attribute(value: Any, made: Any) -> Any:
    made.more = value
    return made


def closure(value: Any) -> Any:
    return lambda x: x + value


def default(value: Any) -> Any:
    def function(x: Any, y: Any = value, *, z: Any = value) -> Any:
        return x, y, z

    return function


def nested(value: Any) -> Any:
    return lambda: [closure(value)]


def reading(value: Any) -> Any:
    """A function that reads a global of this value."""
    return types.FunctionType((lambda: LEVEL).__code__, {"LEVEL": value})


def of_module(value: Any) -> Any:
    """A function that reads an attribute of a module."""
    module = types.ModuleType("settings")
    module.LEVEL = value  # type: ignore[attr-defined]
    return types.FunctionType((lambda: settings.LEVEL).__code__, {"settings": module})  # type: ignore[name-defined] # noqa: F821


def class_of(value: Any) -> type:
    return type("Made", (), {"limit": value, "check": lambda self: self.limit})


def circle(value: Any) -> Any:
    made = Attributes([value])
    made.value.append(made)
    return made


#: value → something that has it inside
MAKERS = {
    "plain": lambda v: v,
    "list": lambda v: [1, [v]],
    "dict": lambda v: {"a": {"b": v}},
    "key": lambda v: {v: 1},
    "set": lambda v: {v, "other"},
    "array": lambda v: np.array([0, v]),
    "dataclass": lambda v: Data(1, v),
    "frozen policy": lambda v: RegionPolicy(min_flops=v),
    "slots": Slots,
    "attributes": Attributes,
    "method": lambda v: Attributes(v).method,
    "closure": closure,
    "nested closure": nested,
    "defaults": default,
    "partial": lambda v: functools.partial(max, v),
    "partial's keyword": lambda v: functools.partial(sorted, key=closure(v)),
    "global": reading,
    "module": of_module,
    "class": class_of,
    "object of a class": lambda v: class_of(v)(),
    "attribute of a function": lambda v: with_attribute(v, closure(0)),
    "own dict": lambda v: with_attribute(v, OwnDict(a=1)),
    "in own dict": lambda v: OwnDict(a=v),
    "own int": OwnInt,
    "ordered": lambda v: OrderedDict(a=v),
    "range": range,
    "path": lambda v: Path(str(v)),
    "circle": circle,
    "constant of TVM": lambda v: relax.const(np.full((100, 100), v, "float32")),
    "cached": lambda v: functools.lru_cache(closure(v)),
    "pattern": lambda v: re.compile(str(v)),
    "with a lock": lambda v: [threading.Lock(), v],
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_another_value_has_another_name(make: Any) -> None:
    assert fingerprint(make(5), "it") == fingerprint(make(5), "it") != fingerprint(make(6), "it")


def test_types_and_code_count() -> None:
    values = [1, 1.0, True, "1", b"1", (1,), [1], {1}, frozenset({1}), np.float32(1), np.float64(1), None, -0.0, 0.0]
    values += [lambda x: x + 1, lambda x: x + 2, lambda x: x - 1, Data, Slots, len, abs]
    names = [fingerprint(value, "it") for value in values]
    assert len(set(names)) == len(values)


def test_names_are_the_same_in_every_process() -> None:
    code = "from tests.unit.test_fingerprint import MAKERS, fingerprint\n"
    code += "print([fingerprint(m(5), 'it') for m in MAKERS.values()])"
    root = Path(__file__).resolve().parents[2]
    runs = [subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr[-500:]
    assert runs[0].stdout == runs[1].stdout


def test_what_cannot_be_seen_is_refused_or_named_by_its_type() -> None:
    with Path(__file__).open() as file:
        for value in (file, [file], closure(file), Attributes(file), (n for n in "ab")):
            with pytest.raises(InputError, match=r"the policy has a value of type .*; keep plain data"):
                fingerprint(value, "the policy")
        assert fingerprint([file, 1], "it", strict=False) != fingerprint([file, 2], "it", strict=False)


def test_a_key_of_content_tells_parts_and_keeps_what_files_of_times_know():
    keys = [content_key(parts) for parts in ([], [""], ["ab"], ["a", "b"], ["", "ab"], ["ab", ""], [b"a", "b", ""])]
    assert len(set(keys)) == len(keys) - 1 and keys[0] == keys[1]  # of no part and of an empty one
    assert content_key(["ab"]) == content_key([b"ab"]) == content_key(iter(["ab"]))
    assert content_key(["relax.add"])[:24] == "77e14ce5fe96a9db0912a646"
