"""Ensembles of trees (``ai.onnx.ml``): all trees go down one level at a time, by gathers."""

from __future__ import annotations

import functools
import operator as python
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .tabular import DOMAIN, as_floats, classified, transformed

_LEAF = -1
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_COMPARE = (
    relax.op.less_equal,
    relax.op.less,
    relax.op.greater_equal,
    relax.op.greater,
    relax.op.equal,
    relax.op.not_equal,
)
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class _Forest:
    """Nodes of all trees, by number; a leaf is its own child."""

    modes: np.ndarray
    features: np.ndarray
    values: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray  # whether a NaN goes the way of `yes`
    roots: np.ndarray  # one for each tree
    weights: np.ndarray  # (nodes, targets): what a leaf adds
    has: np.ndarray  # (nodes, targets): whether it adds to a target at all
    members: list[tuple[int, np.ndarray]]  # nodes that ask for members of a set, and these

    @property
    def depth(self) -> int:
        """The most comparisons from a root to a leaf."""
        level, depth = set(self.roots.tolist()), 0
        while True:
            level = {int(n) for i in level if self.modes[i] != _LEAF for n in (self.yes[i], self.no[i])}
            if not level:
                return depth
            depth += 1
            if depth > len(self.modes):
                raise ValueError("a tree leads back into itself")


def _leaves(e: Emit, forest: _Forest, x: Value) -> Value:
    """(rows, trees): the leaf that each row comes to in each tree."""
    rows, trees = x.sizes[0], len(forest.roots)
    at = e.expand(e.const(forest.roots.astype("int64").reshape(1, -1)), [rows, trees])

    def of(table: np.ndarray, places: Value) -> Value:
        return e.take(e.const(table), places, axis=0)

    kinds = sorted(set(forest.modes.tolist()) - {_LEAF})
    for _ in range(forest.depth):
        given = e.gather_elements(x, of(forest.features, at), axis=1)
        values, mode = of(forest.values, at), of(forest.modes, at) if len(kinds) > 1 else None
        ways = []
        for kind in kinds:
            is_member = _MODES[kind] == "BRANCH_MEMBER"
            here = _is_member(e, forest, at, given) if is_member else e.call(_COMPARE[kind], given, values)
            ways.append(here if mode is None else here & e.equal(mode, e.const(kind, "int64")))
        if forest.missing.any():
            ways.append(e.isnan(given) & of(forest.missing, at))
        goes = functools.reduce(python.or_, ways)
        at = e.where(goes, of(forest.yes, at), of(forest.no, at))
    return at


def _is_member(e: Emit, forest: _Forest, at: Value, given: Value) -> Value:
    most = max(len(those) for _, those in forest.members)
    sets = np.full((len(forest.modes), most), np.nan, forest.values.dtype)  # equal to nothing
    for node, those in forest.members:
        sets[node, : len(those)] = those
    there = e.take(e.const(sets), at, axis=0)
    same = e.cast(e.equal(e.expand_dims(given, axis=[-1]), there), "int32")
    return e.cast(e.max(same, axis=-1), "bool")


def _scores(e: Emit, node: Node, forest: _Forest, x: Value, aggregate: str, base: np.ndarray | None) -> Value:
    if x.rank != 2:
        raise node.refused(f"has the input {x}; expected (rows, features)")
    leaves = _leaves(e, forest, x)
    weights = e.take(e.const(forest.weights), leaves, axis=0)
    if aggregate not in _AGGREGATES:
        raise node.wrong(f"has the aggregate_function `{aggregate}`; expected AVERAGE, SUM, MIN or MAX")
    if aggregate in ("MIN", "MAX"):
        reduce, sign = (relax.op.min, 1) if aggregate == "MIN" else (relax.op.max, -1)
        there, away = e.take(e.const(forest.has), leaves, axis=0), e.const(sign * np.inf, x.dtype)
        total = e.call(reduce, e.where(there, weights, away), axis=1)
        total = e.where(e.equal(total, away), e.const(0, x.dtype), total)
    else:
        total = e.sum(weights, axis=1)
        total = total / e.const(len(forest.roots), x.dtype) if aggregate == "AVERAGE" else total
    return total if base is None else total + e.const(base.astype(x.dtype).reshape(1, -1))


# ---- versions 1 to 4: nodes by the numbers that their trees give them -----------------------------------


def _numbers(node: Node, name: str, dtype: str) -> np.ndarray | None:
    tensor, given = node.attr(f"{name}_as_tensor"), node.attr(name)
    given = tensor if tensor is not None and tensor.size else given
    return None if given is None or not len(given) else np.asarray(given, dtype)


def _by_numbers(node: Node, dtype: str, what: str, targets: int) -> _Forest:
    node.unused("nodes_hitrates", "nodes_hitrates_as_tensor")
    trees, ids = node.attr("nodes_treeids"), node.attr("nodes_nodeids")
    place = {key: i for i, key in enumerate(zip(trees, ids, strict=True))}
    modes = np.array([_LEAF if m == "LEAF" else _MODES.index(m) for m in node.attr("nodes_modes")], "int64")
    own = np.arange(len(modes))
    yes, no = own.copy(), own.copy()
    for way, name in ((yes, "nodes_truenodeids"), (no, "nodes_falsenodeids")):
        for i, child in enumerate(node.attr(name)):
            if modes[i] != _LEAF:
                way[i] = place[trees[i], child]
    inner = modes != _LEAF
    children = set(yes[inner].tolist()) | set(no[inner].tolist())
    features = np.where(inner, np.asarray(node.attr("nodes_featureids"), "int64"), 0)
    values = _numbers(node, "nodes_values", dtype)
    assert values is not None
    missing = np.asarray(node.attr("nodes_missing_value_tracks_true") or np.zeros(len(modes)), bool)
    weights, has = np.zeros((len(modes), targets), dtype), np.zeros((len(modes), targets), bool)
    given = _numbers(node, f"{what}_weights", dtype)
    assert given is not None
    keys = zip(node.attr(f"{what}_treeids"), node.attr(f"{what}_nodeids"), node.attr(f"{what}_ids"), given, strict=True)
    for tree, own_id, target, weight in keys:
        weights[place[tree, own_id], target] += weight
        has[place[tree, own_id], target] = True
    roots = np.array([i for i in own if i not in children])
    return _Forest(modes, features, values, yes, no, missing & inner, roots, weights, has, [])


def _dtype(x: Value) -> str:
    return "float64" if x.dtype == "float64" else "float32"


@operator("TreeEnsembleRegressor", domain=DOMAIN)
def _regressor(e: Emit, node: Node, data: Value, *, n_targets: int = 1, aggregate_function: str = "SUM") -> Any:
    x = as_floats(e, data)
    forest = _by_numbers(node, _dtype(x), "target", n_targets)
    base = _numbers(node, "base_values", _dtype(x))
    scores = _scores(e, node, forest, x, aggregate_function, base)
    return e.cast(transformed(e, node, scores), "float32")


@operator("TreeEnsembleClassifier", domain=DOMAIN)
def _classifier(e: Emit, node: Node, data: Value) -> Any:
    x = as_floats(e, data)
    labels = node.attr("classlabels_int64s") or node.attr("classlabels_strings") or ()
    ids = set(node.attr("class_ids"))
    is_one = len(labels) == 2 and ids == {0}
    targets = max(len(labels), max(ids) + 1)
    forest = _by_numbers(node, _dtype(x), "class", targets)
    base = _numbers(node, "base_values", _dtype(x))
    if is_one:  # the one column decides between the two classes
        forest.weights, forest.has = forest.weights[:, :1].copy(), forest.has[:, :1].copy()
        base = None if base is None else base[-1:]
    scores = _scores(e, node, forest, x, "SUM", base)
    positive = bool((forest.weights >= 0).all())
    return classified(e, node, scores, is_one_score=is_one, least=0.5 if is_one and positive else 0.0)


# ---- version 5: nodes and leaves by their places --------------------------------------------------------


@operator("TreeEnsemble", domain=DOMAIN, since=5)
def _ensemble(e: Emit, node: Node, x: Value) -> Any:
    node.unused("nodes_hitrates")
    modes = np.asarray(node.attr("nodes_modes"), "int64")
    count, dtype = len(modes), x.dtype
    leaf_weights, targets = np.asarray(node.attr("leaf_weights"), dtype), node.attr("leaf_targetids")
    total = count + len(leaf_weights)  # leaves stand behind the nodes

    def ways(name: str, leafs: str) -> np.ndarray:
        to = np.asarray(node.attr(name), "int64") + np.where(np.asarray(node.attr(leafs), bool), count, 0)
        return np.concatenate([to, np.arange(count, total)])

    yes, no = ways("nodes_truenodeids", "nodes_trueleafs"), ways("nodes_falsenodeids", "nodes_falseleafs")

    def padded(array: Any, fill: Any, kind: str) -> np.ndarray:
        return np.concatenate([np.asarray(array, kind), np.full(len(leaf_weights), fill, kind)])

    missing = padded(node.attr("nodes_missing_value_tracks_true") or np.zeros(count), 0, "bool")
    outputs = node.attr("n_targets") or max(targets) + 1
    weights, has = np.zeros((total, outputs), dtype), np.zeros((total, outputs), bool)
    weights[count + np.arange(len(leaf_weights)), list(targets)] = leaf_weights
    has[count + np.arange(len(leaf_weights)), list(targets)] = True
    members, rest = [], list(np.asarray(node.attr("membership_values", ()), dtype).reshape(-1))
    for i in np.flatnonzero(modes == _MODES.index("BRANCH_MEMBER")):
        end = next(k for k, v in enumerate(rest) if np.isnan(v))
        members.append((int(i), np.asarray(rest[:end], dtype)))
        rest = rest[end + 1 :]
    forest = _Forest(
        padded(modes, _LEAF, "int64"),
        padded(node.attr("nodes_featureids"), 0, "int64"),
        padded(node.attr("nodes_splits"), 0, dtype),
        yes,
        no,
        missing,
        np.asarray(node.attr("tree_roots"), "int64"),
        weights,
        has,
        members,
    )
    scores = _scores(e, node, forest, x, _AGGREGATES[node.attr("aggregate_function", 1)], None)
    node.attrs["post_transform"] = _TRANSFORMS[node.attr("post_transform", 0)]
    return transformed(e, node, scores)
