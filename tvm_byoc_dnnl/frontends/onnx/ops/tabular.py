"""Models of tables (``ai.onnx.ml``) by comparisons, gathers and products; their trees are in trees.py.

Strings are refused. What ONNX leaves open (ties, scores of two classes in one column) is as ONNX Runtime has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..emit import Emit
from ..table import operator
from ..value import Node, Value

__all__ = ["DOMAIN", "as_floats", "classified", "transformed"]

DOMAIN = "ai.onnx.ml"
_LEAST = 1e-30  # what a norm is at least


def as_floats(e: Emit, x: Value) -> Value:
    """A value as it is, if its numbers are floats; in float32 else."""
    return x if x.dtype.startswith("float") else e.cast(x, "float32")


def _row(values: Sequence[float], dtype: str) -> np.ndarray:
    return np.asarray(values, dtype).reshape(1, -1)


# ---- scores ---------------------------------------------------------------------------------------------


def transformed(e: Emit, node: Node, scores: Value) -> Value:
    """Scores after the node's ``post_transform``, along their last axis."""
    kind = node.attr("post_transform", "NONE")
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return e.sigmoid(scores)
    if kind == "SOFTMAX":
        return e.softmax(scores, axis=-1)
    if kind == "SOFTMAX_ZERO":
        return _softmax_of_others(e, scores)
    if kind == "PROBIT":
        return _probit(e, scores)
    raise node.wrong(f"has the post_transform `{kind}`; expected NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT")


def _softmax_of_others(e: Emit, x: Value) -> Value:
    """The softmax in which a score of 0 has no share; scores that are all 0 have equal shares of one half."""
    most = e.max(x, axis=-1, keepdims=True)
    counts = abs(x) > e.const(1e-7, x.dtype)
    risen = e.exp(x - most)
    small = x * e.exp(-most)
    shares = e.where(counts, risen, small)
    total = e.sum(shares, axis=-1, keepdims=True)
    is_zero = e.equal(total, e.const(0, x.dtype))
    divisor = e.where(is_zero, e.const(1, x.dtype), total)
    return e.where(is_zero, e.const(0.5, x.dtype), shares / divisor)


def _probit(e: Emit, p: Value) -> Value:
    """The quantile of the normal distribution by Winitzki's formula for the inverse error function, a = 0.147."""
    one, a = e.const(1, p.dtype), 0.147
    x = p * 2 - one
    square = (one - x) * (one + x)
    is_end = e.equal(square, e.const(0, p.dtype))
    log = e.log(e.where(is_end, one, square))
    v = log * e.const(0.5, p.dtype) + e.const(2 / (np.pi * a), p.dtype)
    inner = v * v - log / e.const(a, p.dtype)
    root = e.sqrt(e.sqrt(inner) - v)
    scale = e.const(1.41421356, p.dtype)
    signed = root * scale * e.sign(x)
    return e.where(is_end, e.const(0, p.dtype), signed)


def _labels(node: Node) -> tuple[np.ndarray | None, int]:
    """The numbers of the classes, ``None`` if these are strings, and how many there are."""
    for name in ("classlabels_int64s", "classlabels_ints"):
        if (numbers := node.attr(name)) is not None and len(numbers):
            return np.asarray(numbers, "int64"), len(numbers)
    strings = node.attr("classlabels_strings") or ()
    return (None, len(strings)) if strings else (np.zeros(0, "int64"), 0)


def classified(e: Emit, node: Node, scores: Value, *, is_one_score: bool, least: float) -> list[Value | None]:
    """The label of each row, and its scores.

    Parameters
    ----------
    scores : Value
        (rows, classes); (rows, 1) where one score decides between two classes.
    is_one_score : bool
        Whether the first column decides between two classes.
    least : float
        What that score must be above for the second class.
    """
    labels, count = _labels(node)
    if labels is None and node.wanted[0]:
        raise node.refused(
            "gives labels that are strings; read its scores only, or export the classifier with integers for labels"
        )
    if is_one_score:
        score = e.strided_slice(scores, axes=[1], begin=[0], end=[1])
        number = e.cast(score > e.const(least, score.dtype), "int64")
        number = e.squeeze(number, axis=[1])
        labels = labels if labels is None or count == 2 else np.array([0, 1])
        mirrored = -score
        if node.attr("post_transform", "NONE") in ("NONE", "PROBIT") and least > 0:
            mirrored = 1 - score
        scores = e.concat([mirrored, score], 1)
    else:
        number = e.argmax(scores, axis=1)
    label = None
    if labels is not None:
        label = (
            number
            if np.array_equal(labels, np.arange(len(labels))) or not len(labels)
            else e.take(e.const(labels), number, axis=0)
        )
    return [label, e.cast(transformed(e, node, scores), "float32")]


# ---- linear models --------------------------------------------------------------------------------------


def _linear(e: Emit, node: Node, x: Value, outputs: int) -> Value:
    weights = np.asarray(node.attr("coefficients"), x.dtype).reshape(outputs, -1)
    made = e.onnx("MatMul", x, e.const(np.ascontiguousarray(weights.T)))
    added = node.attr("intercepts") or ()
    return made + e.const(_row(added, x.dtype)) if len(added) else made


@operator("LinearRegressor", domain=DOMAIN)
def _linear_regressor(e: Emit, node: Node, data: Value, *, targets: int = 1) -> Any:
    x = _as_rows(e, as_floats(e, data))
    return e.cast(transformed(e, node, _linear(e, node, x, targets)), "float32")


@operator("LinearClassifier", domain=DOMAIN)
def _linear_classifier(e: Emit, node: Node, data: Value, *, intercepts: Any = None) -> Any:
    node.attr("multi_class")  # what it was trained as: ONNX Runtime does not read it either
    _, count = _labels(node)
    x = _as_rows(e, as_floats(e, data))
    outputs = len(intercepts or ()) or max(count, 1)
    scores = _linear(e, node, x, outputs)
    is_one = outputs == 1 and count in (0, 1, 2)
    return classified(e, node, scores, is_one_score=is_one, least=0.0)


def _as_rows(e: Emit, x: Value) -> Value:
    if x.dims is not None and len(x.sizes) == 1:
        return e.reshape(x, [1, x.sizes[0]])
    return x


# ---- features -------------------------------------------------------------------------------------------


@operator("Scaler", domain=DOMAIN)
def _scaler(e: Emit, node: Node, data: Value) -> Any:
    x = as_floats(e, data)
    offset, scale = node.attr("offset") or (0.0,), node.attr("scale") or (1.0,)
    moved = x - e.const(np.asarray(offset, x.dtype))
    return e.cast(moved * e.const(np.asarray(scale, x.dtype)), "float32")


@operator("Normalizer", domain=DOMAIN)
def _normalizer(e: Emit, node: Node, data: Value) -> Any:
    x, kind = as_floats(e, data), node.attr("norm", "MAX")
    if kind == "L2":
        norm = e.sqrt(e.sum(x * x, axis=-1, keepdims=True))
    elif kind == "L1":
        norm = e.sum(abs(x), axis=-1, keepdims=True)
    elif kind == "MAX":
        # ONNX says the largest element; the reference takes the largest magnitude, ONNX Runtime the element.
        norm = e.max(x, axis=-1, keepdims=True)
    else:
        raise node.wrong(f"has the norm `{kind}`; expected MAX, L1 or L2")
    is_zero = e.equal(norm, e.const(0, x.dtype))
    return e.cast(x / e.where(is_zero, e.const(1, x.dtype), norm), "float32")


@operator("Binarizer", domain=DOMAIN)
def _binarizer(e: Emit, x: Value, *, threshold: float = 0.0) -> Any:
    return e.cast(x > e.const(threshold, x.dtype), x.dtype)


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
        x = e.reshape(x, [rows, x.sizes[1] if len(x.sizes) == 2 else 1]) if len(x.sizes) != 2 else x
        own = x.sizes[1]
        if not isinstance(own, int):
            raise node.refused(
                f"has the open size {own} of features",
            )
        if own > wanted:
            x = e.strided_slice(x, axes=[1], begin=[0], end=[wanted])
        elif own < wanted:
            zeros = e.zeros(e.shape([rows, wanted - own]), dtype=x.dtype)
            x = e.concat([x, zeros], 1)
        parts.append(e.cast(x, "float32"))
    parts = e.equalised(parts, lambda axis: axis == -2)
    return e.concat(parts, 1) if len(parts) > 1 else parts[0]


@operator("ArrayFeatureExtractor", domain=DOMAIN)
def _array_feature_extractor(e: Emit, node: Node, x: Value, places: Value) -> Any:
    if x.dims is None or places.dims is None:
        raise node.refused("has an input of unknown rank")
    flat = e.call(relax.op.reshape, places, e.shape([-1]))
    taken = e.take(x, flat, axis=-1)
    return e.reshape(taken, [1, *taken.sizes]) if len(x.sizes) == 1 else taken


def _same(e: Emit, node: Node, x: Value, keys: np.ndarray) -> Value:
    """For each number of ``x`` and each key whether they are equal; from version 4 on a NaN is equal to a NaN."""
    apart = e.reshape(x, [*x.sizes, 1])
    found = e.equal(apart, e.const(keys, x.dtype))
    if node.opset >= 4 and keys.dtype.kind == "f" and np.isnan(keys).any():
        both = e.isnan(apart) & e.const(np.isnan(keys))
        found = found | both
    return found


@operator("OneHotEncoder", domain=DOMAIN)
def _one_hot(e: Emit, node: Node) -> Any:
    x, categories = node.needed(0), node.attr("cats_int64s") or ()
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
    keys, values = _table(node, "keys"), _table(node, "values")
    if keys is None or values is None:
        raise node.refused("maps strings; encode them outside of the model")
    kind = "int64" if values.dtype == np.int64 else "float"
    default = node.attr("default_tensor")
    default = node.attr(f"default_{kind}", -1 if kind == "int64" else -0.0) if default is None else default
    found = _same(e, node, x, keys)
    place = e.argmax(e.cast(found, "int32"), axis=-1)
    taken = e.take(e.const(values), place, axis=0)
    is_there = e.max(e.cast(found, "int32"), axis=-1)
    default = e.const(np.asarray(default).reshape(()), str(values.dtype))
    return e.where(e.cast(is_there, "bool"), taken, default)


@operator("ZipMap", domain=DOMAIN)
def _zip_map(e: Emit, x: Value, *, classlabels_int64s: Any = None, classlabels_strings: Any = None) -> Any:
    """A list with the scores of each class, in the order of the classes: tensors have no maps."""
    count = len(classlabels_int64s or classlabels_strings or ())
    columns = []
    for i in range(count):
        column = e.strided_slice(x, axes=[1], begin=[i], end=[i + 1])
        columns.append(e.squeeze(column, axis=[1]))
    return Value(items=columns)


# ---- support vectors ------------------------------------------------------------------------------------


def _kernel(e: Emit, node: Node, x: Value, vectors: np.ndarray, kind: str) -> Value:
    """(rows, vectors): the kernel's value of each row and each vector."""
    gamma, coef0, degree = node.attr("kernel_params") or (0.0, 0.0, 3.0)
    product = e.onnx("MatMul", x, e.const(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    if kind == "RBF":
        # |x - v|² as a sum of squares: the difference of squares would lose the digits of close vectors
        rows = e.expand_dims(x, axis=[1])
        apart = rows - e.const(vectors[None])
        distance = e.sum(apart * apart, axis=-1)
        return e.exp(distance * e.const(-gamma, x.dtype))
    moved = product * e.const(gamma, x.dtype) + e.const(coef0, x.dtype)
    if kind == "POLY":
        return e.power(moved, e.const(degree, x.dtype))
    if kind == "SIGMOID":
        return e.tanh(moved)
    raise node.wrong(f"has the kernel_type `{kind}`; expected LINEAR, POLY, RBF or SIGMOID")


@operator("SVMRegressor", domain=DOMAIN)
def _svm_regressor(e: Emit, node: Node) -> Any:
    x = _as_rows(e, e.cast(node.needed(0), "float32"))
    count, coefficients = node.attr("n_supports", 0), np.asarray(node.attr("coefficients"), "float32")
    node.attr("n_targets")  # one: no other is defined
    if count:
        vectors = np.asarray(node.attr("support_vectors"), "float32").reshape(count, -1)
        kernels = _kernel(e, node, x, vectors, node.attr("kernel_type", "LINEAR"))
    else:
        kernels = x
        node.attr("kernel_type"), node.attr("kernel_params"), node.attr("support_vectors")
    made = e.onnx("MatMul", kernels, e.const(coefficients.reshape(-1, 1)))
    made = made + e.const(_row(node.attr("rho") or (0.0,), "float32"))
    if node.attr("one_class", 0):
        return e.where(made > 0, e.const(1, "float32"), e.const(-1, "float32"))
    return transformed(e, node, made)


@operator("SVMClassifier", domain=DOMAIN)
def _svm_classifier(e: Emit, node: Node) -> Any:
    if node.attr("prob_a"):
        raise node.refused("computes probabilities (prob_a, prob_b) by iteration; export it without probabilities")
    _, count = _labels(node)
    x = _as_rows(e, e.cast(node.needed(0), "float32"))
    each = list(node.attr("vectors_per_class") or ())
    rho, coefficients = node.attr("rho") or (0.0,), np.asarray(node.attr("coefficients"), "float32")
    if not each:
        node.attr("kernel_type"), node.attr("kernel_params"), node.attr("support_vectors")
        scores = e.onnx("MatMul", x, e.const(np.ascontiguousarray(coefficients.reshape(max(count, 1), -1).T)))
        scores = scores + e.const(rho[0], "float32")
        return classified(e, node, scores, is_one_score=False, least=0.0)
    vectors = np.asarray(node.attr("support_vectors"), "float32").reshape(sum(each), -1)
    kernels = _kernel(e, node, x, vectors, node.attr("kernel_type", "LINEAR"))
    # one column for each pair of classes: the vectors of both, with the coefficients of the one against the other
    rows, starts = coefficients.reshape(-1, sum(each)), np.cumsum([0, *each])
    pairs = [(i, j) for i in range(len(each)) for j in range(i + 1, len(each))]
    weights = np.zeros((sum(each), len(pairs)), "float32")
    for column, (i, j) in enumerate(pairs):
        for own, other in ((i, j - 1), (j, i)):
            weights[starts[own] : starts[own + 1], column] = rows[other, starts[own] : starts[own + 1]]
    scores = e.onnx("MatMul", kernels, e.const(weights))
    scores = scores + e.const(_row(rho, "float32")[:, : len(pairs)])
    if len(pairs) == 1:
        return _of_one_pair(e, node, scores)
    won = e.cast(scores > e.const(0, "float32"), "float32")
    votes = np.zeros((len(pairs), len(each)), "float32")
    for column, (i, j) in enumerate(pairs):
        votes[column, i], votes[column, j] = 1, -1
    lost = e.const(_row([sum(j == k for _, j in pairs) for k in range(len(each))], "float32"))
    total = e.onnx("MatMul", won, e.const(votes)) + lost
    label, _ = classified(e, node, total, is_one_score=False, least=0.0)
    return [label, transformed(e, node, scores)]


def _of_one_pair(e: Emit, node: Node, scores: Value) -> list[Value | None]:
    """The label of the class that won, and the scores of two classes, of which the second has the score itself."""
    labels, _ = _labels(node)
    if labels is None and node.wanted[0]:
        raise node.refused("gives labels that are strings; read its scores only, or export it with integers for labels")
    label = None
    if labels is not None:
        number = e.cast(scores <= e.const(0, "float32"), "int64")
        label = e.squeeze(e.take(e.const(labels), number, axis=0), axis=[1])
    both = e.concat([-scores, scores], 1)
    return [label, transformed(e, node, both)]
