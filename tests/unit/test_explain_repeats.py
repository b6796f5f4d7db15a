"""Blocks that a network repeats are found, also where all of them read the same mask."""

from tvm_byoc_dnnl.partitioning.report_data import CallReport
from tvm_byoc_dnnl.report.html import Repeat, find_repeats


def calls(*rows):
    """Each row: operator, inputs."""
    made = []
    for i, (op, inputs) in enumerate(rows):
        made.append(CallReport(i, op, f"lv{i}", "main", 1, 1, "float32[4]", inputs=inputs, compiler="dnnl"))
    return made


def layer(first, before):
    """Three calls: the first reads the call before and the mask 0; the last is a residual sum."""
    return [("matmul", [before, 0]), ("relu", [first]), ("add", [first + 1, before])]


def network(layers, head=1):
    rows = [("mask", [])] + [("take", [])] * head
    for _ in range(layers):
        rows += layer(len(rows), len(rows) - 1)
    return calls(*rows, ("softmax", [len(rows) - 1]))


def test_equal_layers_are_one_block():
    assert find_repeats(network(4)) == [Repeat(2, 3, 4)]


def test_blocks_of_two_kinds():
    rows = [("mask", [])]
    for _ in range(3):
        rows += [("relu", [len(rows) - 1]), ("exp", [len(rows)])]
    rows.append(("pool", [len(rows) - 1]))
    for _ in range(4):
        rows += [("tanh", [len(rows) - 1]), ("log", [len(rows)])]
    assert find_repeats(calls(*rows)) == [Repeat(1, 2, 3), Repeat(8, 2, 4)]


def test_another_wiring_is_another_block():
    rows = [("a", []), ("b", [0]), ("a", [1]), ("b", [2]), ("a", [3]), ("b", [3])]
    assert find_repeats(calls(*rows)) == [Repeat(1, 2, 2)]


def test_no_repeats():
    assert find_repeats([]) == []
    assert find_repeats(network(1)) == []
