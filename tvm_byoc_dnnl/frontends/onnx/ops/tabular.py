"""Models of tables (``ai.onnx.ml``) by comparisons, gathers and products; their trees are in trees.py.

Strings are results only, as indices. What ONNX leaves open (ties, scores of two classes in one column) is as ONNX
Runtime has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from ..dim import product
from ..emit import Emit, pieces
from ..table import operator
from ..value import Node, Value, Words
from .computed import written
from .indexing import words_of
from .moving import padded

DOMAIN = "ai.onnx.ml"


def as_floats(e: Emit, x: Value) -> Value:
    return x if x.dtype.startswith("float") else e.cast(x, "float32")


def transformed(e: Emit, node: Node, scores: Value) -> Value:
    """Scores after the node's ``post_transform``, along their last axis."""
    kind = node.attr("post_transform", "NONE")
    if kind not in _TRANSFORMS:
        raise node.wrong(f"has the post_transform `{kind}`; expected NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT")
    return _TRANSFORMS[kind](e, scores)


def _softmax_of_others(e: Emit, x: Value) -> Value:
    """The softmax in which a score of 0 has no share; scores that are all 0 have equal shares of one half."""
    most = e.max(x, axis=-1, keepdims=True)
    shares = e.where(abs(x) > 1e-7, e.exp(x - most), x * e.exp(-most))
    total = e.sum(shares, axis=-1, keepdims=True)
    is_zero = e.equal(total, 0)
    return e.where(is_zero, 0.5, shares / e.where(is_zero, 1, total))


def _probit(e: Emit, p: Value) -> Value:
    """The quantile of the normal distribution by Winitzki's formula for the inverse error function, a = 0.147."""
    x, a = p * 2 - 1, 0.147
    square = (1 - x) * (1 + x)
    is_end = e.equal(square, 0)
    log = e.log(e.where(is_end, 1, square))
    v = log * 0.5 + 2 / (np.pi * a)
    root = e.sqrt(e.sqrt(v * v - log / a) - v)
    return e.where(is_end, 0, root * 1.41421356 * e.sign(x))


_TRANSFORMS: dict[str, Callable[[Emit, Value], Value]] = {
    "NONE": lambda _e, x: x,
    "LOGISTIC": lambda e, x: e.sigmoid(x),
    "SOFTMAX": lambda e, x: e.softmax(x, axis=-1),
    "SOFTMAX_ZERO": _softmax_of_others,
    "PROBIT": _probit,
}


def _labels(node: Node) -> tuple[np.ndarray | None, int]:
    """The numbers of the classes, ``None`` if these are strings, and how many there are."""
    for name in ("classlabels_int64s", "classlabels_ints"):
        if (numbers := node.attr(name)) is not None and len(numbers):
            return np.asarray(numbers, "int64"), len(numbers)
    strings = node.attr("classlabels_strings") or ()
    return (None, len(strings)) if strings else (np.zeros(0, "int64"), 0)


def _labelled(e: Emit, node: Node, place: Value, count: int = 0) -> Value:
    """The label of a class for its place; labels of another number than ``count``, if that is given, are none."""
    labels, own = _labels(node)
    if labels is None:
        return Value(e.tensor(place), words=Words(tuple(node.attr("classlabels_strings")), node.what))
    if not own or (count and own != count) or np.array_equal(labels, np.arange(own)):
        return place
    return e.take(e.const(labels), place, axis=0)


def classified(e: Emit, node: Node, scores: Value, *, is_one_score: bool, least: float) -> list[Value | None]:
    """The label of each row, and its scores, of (rows, classes).

    With ``is_one_score`` the first column decides between two classes: above ``least`` it is the second.
    """
    if is_one_score:
        score = e.strided_slice(scores, axes=[1], begin=[0], end=[1])
        label = e.squeeze(e.cast(score > least, "int64"), axis=[1])
        is_share = node.attr("post_transform", "NONE") in ("NONE", "PROBIT") and least > 0
        scores = e.concat([1 - score if is_share else -score, score], 1)
    else:
        label = e.argmax(scores, axis=1)
    return [_labelled(e, node, label, 2 if is_one_score else 0), e.cast(transformed(e, node, scores), "float32")]


# ---- linear models --------------------------------------------------------------------------------------


def _product(e: Emit, x: Value, matrix: np.ndarray, added: Sequence[float] | np.ndarray = ()) -> Value:
    """The product with a constant, and a row that is added to it."""
    made = e.onnx("MatMul", x, e.const(np.ascontiguousarray(matrix)))
    return made + e.const(np.asarray(added, x.dtype).reshape(1, -1)) if len(added) else made


def _linear(e: Emit, node: Node, x: Value, outputs: int) -> Value:
    x = _as_rows(e, as_floats(e, x))
    weights = np.asarray(node.attr("coefficients"), x.dtype).reshape(outputs, -1)
    return _product(e, x, weights.T, node.attr("intercepts") or ())


@operator("LinearRegressor", domain=DOMAIN)
def _linear_regressor(e: Emit, node: Node, x: Value, *, targets: int = 1) -> Any:
    return e.cast(transformed(e, node, _linear(e, node, x, targets)), "float32")


@operator("LinearClassifier", domain=DOMAIN)
def _linear_classifier(e: Emit, node: Node, x: Value, *, intercepts: Any = None) -> Any:
    node.unused("multi_class")  # what it was trained as: ONNX Runtime does not read it either
    _, count = _labels(node)
    outputs = len(intercepts or ()) or max(count, 1)
    scores = _linear(e, node, x, outputs)
    return classified(e, node, scores, is_one_score=outputs == 1 and count in (0, 1, 2), least=0.0)


def _as_rows(e: Emit, x: Value) -> Value:
    return e.reshape(x, [1, x.sizes[0]]) if x.rank == 1 else x


# ---- features -------------------------------------------------------------------------------------------


@operator("Scaler", domain=DOMAIN)
def _scaler(e: Emit, x: Value, *, offset: Any = None, scale: Any = None) -> Any:
    x = as_floats(e, x)
    moved = x - e.const(np.asarray(offset or (0.0,), x.dtype))
    return e.cast(moved * e.const(np.asarray(scale or (1.0,), x.dtype)), "float32")


#: ONNX says the largest element; the reference takes the largest magnitude, ONNX Runtime the element.
_NORMS: dict[str, Callable[[Emit, Value], Value]] = {
    "MAX": lambda e, x: e.max(x, axis=-1, keepdims=True),
    "L1": lambda e, x: e.sum(abs(x), axis=-1, keepdims=True),
    "L2": lambda e, x: e.sqrt(e.sum(x * x, axis=-1, keepdims=True)),
}


@operator("Normalizer", domain=DOMAIN)
def _normalizer(e: Emit, node: Node, x: Value, *, norm: str = "MAX") -> Any:
    if norm not in _NORMS:
        raise node.wrong(f"has the norm `{norm}`; expected MAX, L1 or L2")
    x = as_floats(e, x)
    size = _NORMS[norm](e, x)
    return e.cast(x / e.where(e.equal(size, 0), 1, size), "float32")


operator("Binarizer", domain=DOMAIN)(lambda e, x, *, threshold=0.0: e.cast(x > threshold, x.dtype))


@operator("Imputer", domain=DOMAIN)
def _imputer(e: Emit, node: Node, x: Value) -> Any:
    kind = "float" if x.dtype.startswith("float") else "int64"
    values = node.attr(f"imputed_value_{kind}s")
    missing = node.attr(f"replaced_value_{kind}", 0)
    if not values:
        raise node.wrong(f"has no imputed_value_{kind}s, and its input is {x.dtype}")
    is_missing = e.isnan(x) if np.isnan(missing) else e.equal(x, e.const(missing, x.dtype))
    return e.where(is_missing, e.const(np.asarray(values, x.dtype)), x)


@operator("FeatureVectorizer", domain=DOMAIN)
def _feature_vectorizer(e: Emit, node: Node, *, inputdimensions: Any = None) -> Any:
    parts = []
    for i, wanted in enumerate(inputdimensions or ()):
        x = as_floats(e, node.needed(i))
        rows = x.sizes[0] if x.dims else 1
        x = e.reshape(x, [rows, 1]) if len(x.sizes) != 2 else x
        if not isinstance(own := x.sizes[1], int):
            raise node.refused(f"has the open size {own} of features")
        x = e.cut(x, 1, 0, wanted) if own > wanted else padded(e, x, [0, 0], [0, wanted - own])
        parts.append(e.cast(x, "float32"))
    parts = e.equalised(parts, lambda axis: axis == -2, broadcasts=False)
    return e.concat(parts, 1)


@operator("ArrayFeatureExtractor", domain=DOMAIN)
def _array_feature_extractor(e: Emit, x: Value, places: Value) -> Any:
    if (words := words_of(e, x)) is not None:
        return Value(e.tensor(e.reshape(e.cast(places, "int64"), [1, product(places.sizes)])), words=words)
    return _as_rows(e, e.take(x, e.call(relax.op.reshape, places, e.shape([-1])), axis=-1))


def _same(e: Emit, node: Node, x: Value, keys: np.ndarray) -> Value:
    """For each number of ``x`` and each key whether they are equal; from version 4 on a NaN is equal to a NaN."""
    apart = e.reshape(x, [*x.sizes, 1])
    found = e.equal(apart, e.const(keys, x.dtype))
    if node.opset >= 4 and keys.dtype.kind == "f" and np.isnan(keys).any():
        found = found | (e.isnan(apart) & e.const(np.isnan(keys)))
    return found


@operator("OneHotEncoder", domain=DOMAIN)
def _one_hot(e: Emit, node: Node, x: Value) -> Any:
    categories = node.attr("cats_int64s") or ()
    if node.attr("cats_strings") or x.dtype == "string":
        raise node.refused("has categories that are strings; encode them before the model")
    if not node.attr("zeros", 1):
        raise node.refused("must stop at an unknown category (zeros = 0), which a compiled model cannot; set zeros = 1")
    return e.cast(_same(e, node, e.cast(x, "int64"), np.asarray(categories, "int64")), "float32")


def _table(node: Node, side: str) -> np.ndarray | None:
    """The keys or values of a LabelEncoder; ``None`` where they are strings or not there."""
    for name, dtype in ((f"{side}_int64s", "int64"), (f"{side}_floats", "float32"), (f"{side}_tensor", None)):
        if (given := node.attr(name)) is not None:
            array = np.asarray(given, dtype)
            return None if array.dtype.kind in "OSU" else array.reshape(-1)
    return None


@operator("LabelEncoder", domain=DOMAIN, since=2)
def _label_encoder(e: Emit, node: Node, x: Value) -> Any:
    keys, values, words = _table(node, "keys"), _table(node, "values"), node.attr("values_strings")
    if words is not None:
        words = Words((*words, node.attr("default_string", "_Unused")), node.what)
        values, node.attrs["default_int64"] = np.arange(len(words.table) - 1), len(words.table) - 1
    if keys is None or values is None:
        raise node.refused("maps strings; encode them outside of the model")
    kind = "int64" if values.dtype == np.int64 else "float"
    default = node.attr("default_tensor")
    default = node.attr(f"default_{kind}", -1 if kind == "int64" else -0.0) if default is None else default
    found = _same(e, node, x, keys)
    places, found = e.argmax(e.cast(found, "int32"), axis=-1), e.max(e.cast(found, "int32"), axis=-1)
    taken = e.take(e.const(values), places, axis=0)
    made = e.where(e.cast(found, "bool"), taken, e.const(np.asarray(default).reshape(()), str(values.dtype)))
    return made if words is None else Value(e.tensor(made), words=words)


@operator("ZipMap", domain=DOMAIN)
def _zip_map(e: Emit, x: Value, *, classlabels_int64s: Any = None, classlabels_strings: Any = None) -> Any:
    """A list with the scores of each class, in the order of the classes: tensors have no maps."""
    count = len(classlabels_int64s or classlabels_strings or ())
    return Value(items=pieces(e, x, 1, count))


# ---- support vectors ------------------------------------------------------------------------------------


def _kernels(e: Emit, node: Node, x: Value, count: int) -> Value:
    """(rows, vectors): the kernel's value of each row and each support vector; without vectors the rows."""
    kind, parameters, given = (node.attr(name) for name in ("kernel_type", "kernel_params", "support_vectors"))
    if not count:
        return x
    vectors = np.asarray(given, "float32").reshape(count, -1)
    gamma, coef0, degree = parameters or (0.0, 0.0, 3.0)
    product = _product(e, x, vectors.T)
    if kind in (None, "LINEAR"):
        return product
    if kind == "RBF":
        # |x - v|² as a sum of squares: the difference of squares would lose the digits of close vectors
        apart = e.expand_dims(x, axis=[1]) - e.const(vectors[None])
        return e.exp(e.sum(apart * apart, axis=-1) * -gamma)
    moved = product * gamma + coef0
    if kind not in ("POLY", "SIGMOID"):
        raise node.wrong(f"has the kernel_type `{kind}`; expected LINEAR, POLY, RBF or SIGMOID")
    return e.power(moved, degree) if kind == "POLY" else e.tanh(moved)


@operator("SVMRegressor", domain=DOMAIN)
def _svm_regressor(e: Emit, node: Node, x: Value, *, n_supports: int = 0, rho: Any = None, one_class: int = 0) -> Any:
    coefficients = np.asarray(node.attr("coefficients"), "float32")
    node.unused("n_targets")  # one: no other is defined
    kernels = _kernels(e, node, _as_rows(e, e.cast(x, "float32")), n_supports)
    made = _product(e, kernels, coefficients.reshape(-1, 1), rho or (0.0,))
    if one_class:
        return e.where(made > 0, e.const(1, "float32"), e.const(-1, "float32"))
    return transformed(e, node, made)


@operator("SVMClassifier", domain=DOMAIN)
def _svm_classifier(e: Emit, node: Node, x: Value, *, vectors_per_class: Any = None, rho: Any = None) -> Any:
    prob_a, prob_b = node.attr("prob_a"), node.attr("prob_b")
    _, count = _labels(node)
    each, rho = list(vectors_per_class or ()), rho or (0.0,)
    coefficients = np.asarray(node.attr("coefficients"), "float32")
    kernels = _kernels(e, node, _as_rows(e, e.cast(x, "float32")), sum(each))
    if not each:
        scores = _product(e, kernels, coefficients.reshape(max(count, 1), -1).T) + rho[0]
        return classified(e, node, scores, is_one_score=False, least=0.0)
    # one column for each pair of classes: the vectors of both, with the coefficients of the one against the other
    rows, starts = coefficients.reshape(-1, sum(each)), np.cumsum([0, *each])
    pairs = [(i, j) for i in range(len(each)) for j in range(i + 1, len(each))]
    weights = np.zeros((sum(each), len(pairs)), "float32")
    for column, (i, j) in enumerate(pairs):
        for own, other in ((i, j - 1), (j, i)):
            weights[starts[own] : starts[own + 1], column] = rows[other, starts[own] : starts[own + 1]]
    scores = _product(e, kernels, weights, rho[: len(pairs)])
    chances = _chances(e, scores, pairs, prob_a, prob_b) if prob_a else None
    if chances is None and len(pairs) == 1:
        won = e.squeeze(e.cast(scores <= 0, "int64"), axis=[1])
        return [_labelled(e, node, won), transformed(e, node, e.concat([-scores, scores], 1))]
    won = e.cast(scores > 0, "float32")
    votes = np.zeros((len(pairs), len(each)), "float32")
    for column, (i, j) in enumerate(pairs):
        votes[column, i], votes[column, j] = 1, -1
    total = _product(e, won, votes, [sum(j == k for _, j in pairs) for k in range(len(each))])
    label, _ = classified(e, node, total, is_one_score=False, least=0.0)
    return [label, transformed(e, node, scores if chances is None else chances)]


def _chances(e: Emit, scores: Value, pairs: list[tuple[int, int]], a: Any, b: Any) -> Value:
    """(rows, classes): probabilities that fit those of each pair of classes best, by the iteration of LIBSVM."""
    rows, count = scores.sizes[0], pairs[-1][1] + 1
    slope, shift = (e.const(np.asarray(v, "float32").reshape(1, -1)) for v in (a, b))
    share = e.clip(1 - e.sigmoid(scores * slope + shift), min=1e-7, max=1 - 1e-7)
    table, ones = np.zeros((len(pairs), count, count), "float32"), np.zeros((count, count), "float32")
    for pair, (i, j) in enumerate(pairs):
        table[pair, i, j], table[pair, j, i], ones[j, i] = 1, -1, 1
    shares = _product(e, share, table.reshape(len(pairs), -1), ones.reshape(-1))
    shares = e.reshape(shares, [rows, count, count])

    def write(r: Any, p: Any, q: Any, qp: Any, state: Any, rows: Any) -> None:
        error, total, diff = range(3)  # the largest error of a round, pᵀ·Q·p, and a step
        zero = tirx.const(0.0, "float32")
        with T.serial(0, rows) as n:
            with T.serial(0, count) as i:
                p[n, i] = tirx.const(1 / count, "float32")
                q[i, i] = zero
                with T.serial(0, count) as j, T.If(i != j), T.Then():
                    q[i, i] = q[i, i] + r[n, j, i] * r[n, j, i]
                    q[i, j] = -r[n, j, i] * r[n, i, j]
            state[error] = tirx.const(1.0, "float32")
            with T.serial(0, max(100, count)), T.If(state[error] >= tirx.const(0.005 / count, "float32")), T.Then():
                state[total] = zero
                with T.serial(0, count) as i:
                    qp[i] = zero
                    with T.serial(0, count) as j:
                        qp[i] = qp[i] + q[i, j] * p[n, j]
                    state[total] = state[total] + p[n, i] * qp[i]
                state[error] = zero
                with T.serial(0, count) as i:
                    state[error] = tirx.max(state[error], tirx.abs(qp[i] - state[total]))
                with T.If(state[error] >= tirx.const(0.005 / count, "float32")), T.Then(), T.serial(0, count) as i:
                    state[diff] = (state[total] - qp[i]) / q[i, i]
                    p[n, i] = p[n, i] + state[diff]
                    grown = state[total] + state[diff] * (state[diff] * q[i, i] + 2.0 * qp[i])
                    state[total] = grown / ((1.0 + state[diff]) * (1.0 + state[diff]))
                    with T.serial(0, count) as j:
                        qp[j] = (qp[j] + state[diff] * q[i, j]) / (1.0 + state[diff])
                        p[n, j] = p[n, j] / (1.0 + state[diff])

    results = [((rows, count), "float32"), ((count, count), "float32"), ((count,), "float32"), ((3,), "float32")]
    return written(e, "couple", write, [shares], results, [rows])[0]
