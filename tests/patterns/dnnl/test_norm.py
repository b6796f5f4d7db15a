"""Normalisations: any axes, layouts and groups, with and without scale and shift."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.harness import Case, accept, const, data, refuse, table_tests

op, nn = relax.op, relax.op.nn
EPSILONS = (1e-12, 1e-5, 0.5)


def normalized(x, axes, epsilon):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def spread(v, axes, rank, shape):
    return v.reshape([shape[i] if i in axes else 1 for i in range(rank)])


def layer_norm(axes, epsilon=1e-5):
    def reference(x, gamma, beta):
        at = tuple(a % x.ndim for a in axes)
        gamma, beta = (spread(v, at, x.ndim, x.shape) for v in (gamma, beta))
        return normalized(x, at, epsilon) * gamma + beta

    return lambda x, g, b: nn.layer_norm(x, g, b, axes=list(axes), epsilon=epsilon), reference


def group_norm(groups, channel, axes, epsilon=1e-5):
    def reference(x, gamma, beta):
        at = channel % x.ndim
        order = [i for i in range(x.ndim) if i != at and i not in axes] + [at, *axes]
        moved = x.transpose(order)
        lead = x.ndim - len(axes) - 1
        parts = groups or x.shape[at]
        split = moved.reshape(*moved.shape[:lead], parts, int(np.prod(moved.shape[lead:])) // parts)
        out = normalized(split, (lead + 1,), epsilon).reshape(moved.shape).transpose(np.argsort(order))
        return out * spread(gamma, [at], x.ndim, x.shape) + spread(beta, [at], x.ndim, x.shape)

    options = {"channel_axis": channel, "axes": list(axes), "epsilon": epsilon}
    if groups is None:
        return lambda x, g, b: nn.instance_norm(x, g, b, **options), reference
    return lambda x, g, b: nn.group_norm(x, g, b, num_groups=groups, **options), reference


def rms_norm(axes, epsilon=1e-5):
    def reference(x, weight):
        at = tuple(a % x.ndim for a in axes)
        return x / np.sqrt((x**2).mean(at, keepdims=True) + epsilon) * spread(weight, at, x.ndim, x.shape)

    return lambda x, w: nn.rms_norm(x, w, axes=list(axes), epsilon=epsilon), reference


def batch_norm(axis, epsilon=1e-5):
    def reference(x, *parameters):
        gamma, beta, mean, variance = (spread(v, [axis % x.ndim], x.ndim, x.shape) for v in parameters)
        return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta

    return lambda *args: nn.batch_norm(*args, axis=axis, epsilon=epsilon, training=False)[0], reference


def statistics(channels, operand=const):
    return (*affine(channels, operand=operand), operand(channels), operand(channels, low=0.5))


def row(name, pair, *operands, **options):
    function, reference = pair
    return accept(name, function, *operands, reference=reference, **options)


def affine(*shape, operand=const):
    return operand(*shape, low=0.5), operand(*shape)


ACCEPT = [
    *(
        row(
            f"batch_norm-{shape}-{axis}-{e}", batch_norm(axis, e), data(*shape), *statistics(shape[axis]), prepare=False
        )
        for shape, axis, e in [
            ((2, 17, 5, 7), 1, 1e-5),
            ((2, 5, 7, 3), -1, 1e-3),
            ((3, 5), 1, 0.5),
            ((5, 3), 0, 1e-12),
            ((1, 1, 13), 1, 1e-5),
            ((2, 3, 2, 3, 5), 1, 1e-5),
            ((0, 3, 5), 1, 1e-5),
        ]
    ),
    row("batch_norm-inputs", batch_norm(1), data(2, 3, 5), *statistics(3, data), prepare=False),
    *(
        row(f"layer_norm-{shape}-{axes}", layer_norm(axes), data(*shape), *affine(*(shape[a] for a in axes)))
        for shape, axes in [
            ((3, 17), (-1,)),
            ((2, 3, 5), (1, 2)),
            ((2, 3, 5), (0, 1, 2)),
            ((2, 7, 5, 3), (1,)),
            ((2, 7, 5, 3), (1, 3)),
            ((2, 7, 5, 3), (0, 2)),
            ((5, 1), (1,)),
            ((0, 4), (1,)),
            ((13,), (0,)),
            ((2, 3, 1, 2, 33), (4,)),
        ]
    ),
    *(row(f"layer_norm-eps-{e}", layer_norm((-1,), e), data(3, 17, high=-1.99), *affine(17)) for e in EPSILONS),
    row("layer_norm-inputs", layer_norm((-1,)), data(3, 17), *affine(17, operand=data)),
    row("layer_norm-plain", layer_norm((1,)), data(2, 7, 3), const(values=np.ones(7)), const(values=np.zeros(7))),
    row(
        "layer_norm-bf16",
        layer_norm((-1,)),
        data(3, 33, dtype="bfloat16"),
        const(33, dtype="bfloat16"),
        const(33, dtype="bfloat16"),
    ),
    *(
        row(
            f"{'group' if groups else 'instance'}_norm-{shape}-{groups}-{channel}",
            group_norm(groups, channel, axes),
            data(*shape),
            *affine(shape[channel]),
        )
        for shape, groups, channel, axes in [
            ((2, 6, 5, 7), 3, 1, (2, 3)),
            ((2, 6, 5, 7), 1, 1, (2, 3)),
            ((2, 6, 5, 7), 6, 1, (2, 3)),
            ((1, 32, 9), 4, 1, (2,)),
            ((3, 5, 7, 6), 2, 3, (1, 2)),
            ((2, 4, 3, 5, 3), 2, 1, (2, 3, 4)),
            ((1, 3, 1, 1), 3, 1, (2, 3)),
            ((2, 3, 5, 4), 2, 3, (2,)),
            ((5, 3, 4), 2, 2, (0, 1)),
            ((0, 4, 3, 3), 2, 1, (2, 3)),
            ((2, 6, 5, 7), None, 1, (2, 3)),
            ((3, 5, 7, 6), None, 3, (1, 2)),
            ((1, 1, 13), None, 1, (2,)),
            ((2, 3, 2, 5, 3), None, 1, (2, 3, 4)),
            ((0, 3, 4), None, 1, (2,)),
        ]
    ),
    # The numbers differ by less than 1 %: of a mean that is off by half a unit in the last place 4e-5 remain.
    *(
        row(f"group_norm-eps-{e}", group_norm(2, 1, (2,), e), data(1, 4, 9, high=-1.99), *affine(4), within=1e-4)
        for e in EPSILONS
    ),
    *(
        row(f"instance_norm-eps-{e}", group_norm(None, 1, (2,), e), data(1, 3, 9, high=-1.99), *affine(3))
        for e in EPSILONS
    ),
    row("group_norm-inputs", group_norm(2, 1, (2,)), data(1, 4, 9), *affine(4, operand=data)),
    row("group_norm-scale", group_norm(2, 1, (2,)), data(1, 4, 9), const(4), const(values=np.zeros(4))),
    row("group_norm-shift", group_norm(2, 1, (2,)), data(1, 4, 9), const(values=np.ones(4)), const(4)),
    row(
        "instance_norm-bf16",
        group_norm(None, 1, (2,)),
        data(2, 3, 9, dtype="bfloat16"),
        *(const(3, dtype="bfloat16") for _ in range(2)),
    ),
    *(
        row(f"rms_norm-{shape}-{axes}", rms_norm(axes), data(*shape), const(*(shape[a] for a in axes)))
        for shape, axes in [
            ((3, 17), (-1,)),
            ((2, 3, 5), (1, 2)),
            ((2, 7, 5, 3), (1,)),
            ((2, 7, 5), (0, 2)),
            ((5, 1), (1,)),
            ((13,), (0,)),
            ((0, 4), (1,)),
        ]
    ),
    *(row(f"rms_norm-eps-{e}", rms_norm((-1,), e), data(3, 17, low=-0.01, high=0.01), const(17)) for e in EPSILONS),
    row("rms_norm-input", rms_norm((-1,)), data(3, 17), data(17)),
    *(
        row(f"rms_norm-{dtype}", rms_norm((-1,)), data(3, 33, dtype=dtype, high=300), const(33, dtype=dtype))
        for dtype in ("bfloat16", "float16")
    ),
]

REFUSE = [
    refuse(
        "batch_norm-training",
        "training mode",
        lambda *a: nn.batch_norm(*a, axis=1, training=True)[0],
        data(2, 3, 5),
        *statistics(3, data),
        prepare=False,
    ),
    refuse(
        "layer_norm-float64",
        "dtype float64",
        layer_norm((-1,))[0],
        *[data(2, 3, dtype="float64")],
        *(data(3, dtype="float64") for _ in range(2)),
    ),
    refuse("layer_norm-order", "do not ascend", layer_norm((2, 1))[0], data(2, 3, 3), data(3, 3), data(3, 3)),
    refuse("layer_norm-empty", "empty axis 1", layer_norm((1,))[0], data(2, 0), data(0), data(0)),
    refuse(
        "layer_norm-center",
        "without scale or without center",
        lambda x, g, b: nn.layer_norm(x, g, b, axes=[-1], center=False),
        *(data(2, 3), data(3), data(3)),
    ),
    refuse(
        "group_norm-scale",
        "without scale or without center",
        lambda x, g, b: nn.group_norm(x, g, b, 2, 1, [2], scale=False),
        *(data(2, 4, 3), data(4), data(4)),
    ),
    refuse("instance_norm-empty", "empty axis 2", group_norm(None, 1, (2,))[0], data(2, 3, 0), data(3), data(3)),
    refuse("rms_norm-empty", "empty axis 1", rms_norm((1,))[0], data(2, 0), data(0)),
    refuse(
        "rms_norm-float64", "dtype float64", rms_norm((-1,))[0], data(2, 3, dtype="float64"), data(3, dtype="float64")
    ),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)


def test_a_neutral_scale_costs_nothing():
    ones, zeros = const(values=np.ones(4)), const(values=np.zeros(4))
    for pair in (group_norm(2, 1, (2,)), group_norm(None, 1, (2,))):
        Case(pair[0], (data(1, 4, 9), ones, zeros)).becomes("layer_normalization")
    Case(rms_norm((-1,))[0], (data(3, 4), ones)).becomes("rms_normalization")


def test_scale_and_shift_are_one_pass():
    case = Case(group_norm(2, 1, (2, 3))[0], (data(1, 4, 5, 7), const(4), const(4)))
    case.becomes("layer_normalization", ("binary", ["add"]))


def test_symbolic_sizes():
    case = Case(
        group_norm(2, 1, (2, 3))[0],
        (data("n", 4, "h", 5), const(4), const(4)),
        group_norm(2, 1, (2, 3))[1],
        symbols={"n": 3, "h": 7},
    )
    case.offloads().matches()
