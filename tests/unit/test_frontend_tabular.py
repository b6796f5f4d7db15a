"""Operators of tables and trees (``ai.onnx.ml``) against ONNX Runtime, and where it leaves ONNX's definition, that."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_byoc_dnnl as byoc

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 4)).astype("float32")
WITH_NAN = X.copy()
WITH_NAN[1, 2] = np.nan
WITH_ZEROS = X.copy()
WITH_ZEROS[2], WITH_ZEROS[3] = 0, -np.abs(WITH_ZEROS[3])
INTEGERS = RNG.integers(0, 5, (7, 4))
LABELLED = (("label", TensorProto.INT64), ("y", TensorProto.FLOAT))


def _model(op: str, feeds: dict[str, np.ndarray], outputs: Any, version: int, attrs: dict[str, Any]) -> onnx.ModelProto:
    node = helper.make_node(op, list(feeds), [name for name, _ in outputs], name="model", domain=DOMAIN, **attrs)
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), [None, *v.shape[1:]])
        for k, v in feeds.items()
    ]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    graph = helper.make_graph([node], "g", inputs, results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _ours(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    got = byoc.Runner(byoc.compile(model))(*feeds.values())
    return [np.asarray(g) for g in (got if isinstance(got, (list, tuple)) else [got])]


def _check(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def _uniform(count: int, low: float = -1.0) -> list[float]:
    return RNG.uniform(low, 1, count).astype("float32").tolist()


def _linear(rows: int, **attrs: Any) -> dict[str, Any]:
    return {"coefficients": _uniform(4 * rows), "intercepts": _uniform(rows), **attrs}


def _machine(classes: list[int], kernel: str, labels: list[int], **attrs: Any) -> dict[str, Any]:
    vectors, count = sum(classes), len(classes)
    return {
        "coefficients": _uniform(vectors * (count - 1)),
        "kernel_params": [0.3, 0.1, 2.0],
        "kernel_type": kernel,
        "rho": _uniform(count * (count - 1) // 2),
        "support_vectors": _uniform(vectors * 4),
        "vectors_per_class": classes,
        "classlabels_ints": labels,
        **attrs,
    }


def _support(kernel: str, **attrs: Any) -> dict[str, Any]:
    made = {k: v for k, v in _machine([2, 3], kernel, []).items() if "class" not in k}
    return {**made, "n_supports": 5, **attrs}


ALL_MODES = [f"BRANCH_{m}" for m in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")]


class Forest:
    """Random trees in the attributes of versions 1 to 4."""

    def __init__(self, what: str, targets: int, modes: list[str], low: float = -1.0) -> None:
        self.what, self.targets, self.modes, self.low = what, targets, modes, low
        names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
        self.nodes: dict[str, list[Any]] = {f"nodes_{name}": [] for name in (*names, "missing_value_tracks_true")}
        self.leaves: dict[str, list[Any]] = {f"{what}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}

    def grown(self, trees: int, depth: int, **attrs: Any) -> dict[str, Any]:
        for tree in range(trees):
            self._grow(tree, depth, [0])
        return {**self.nodes, **self.leaves, **attrs}

    def _grow(self, tree: int, depth: int, count: list[int]) -> int:
        own = count[0]
        count[0] += 1
        is_leaf = depth == 0 or (own > 0 and RNG.random() < 0.2)
        place = len(self.nodes["nodes_nodeids"])
        value = 0.0 if is_leaf else float(RNG.choice([*X.ravel(), 0, 1, 2]))
        row = (tree, own, int(RNG.integers(4)), value, "LEAF" if is_leaf else str(RNG.choice(self.modes)), 0, 0)
        for name, field in zip(self.nodes, (*row, int(RNG.random() < 0.5)), strict=True):
            self.nodes[name].append(field)
        if is_leaf:
            for target in range(self.targets):
                fields = (tree, own, target, _uniform(1, self.low)[0])
                for name, field in zip(self.leaves, fields, strict=True):
                    self.leaves[name].append(field)
        else:
            for name in ("nodes_truenodeids", "nodes_falsenodeids"):
                self.nodes[name][place] = self._grow(tree, depth - 1, count)
        return own


def _case(
    name: str, op: str, feeds: Any, outputs: Any = (("y", TensorProto.FLOAT),), version: int = 3, **attrs: Any
) -> Any:
    feeds = feeds if isinstance(feeds, dict) else {"x": feeds}
    return pytest.param(op, feeds, outputs, version, attrs, id=f"{op}-{name}")


CASES = [
    *(
        _case(f"{x.dtype}", "Scaler", x, offset=[0.1, 0.2, 0.3, 0.4], scale=[2.0, 3.0, 4.0, 5.0])
        for x in (X, X.astype("float64"), INTEGERS, INTEGERS.astype("int32"))
    ),
    _case("one for all", "Scaler", X, offset=[0.1], scale=[2.0]),
    *(_case(norm, "Normalizer", WITH_ZEROS, norm=norm) for norm in ("MAX", "L1", "L2")),
    _case("integers", "Normalizer", INTEGERS, norm="L2"),
    _case("", "Binarizer", X, threshold=0.2),
    _case("nan", "Imputer", WITH_NAN, imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=float("nan")),
    _case(
        "integer",
        "Imputer",
        INTEGERS,
        (("y", TensorProto.INT64),),
        imputed_value_int64s=[9],
        replaced_value_int64=2,
    ),
    _case("", "FeatureVectorizer", {"a": X, "b": INTEGERS.astype("float32")}, inputdimensions=[4, 4]),
    _case("", "ArrayFeatureExtractor", {"x": X, "places": np.array([2, 0])}),
    _case("", "OneHotEncoder", INTEGERS, cats_int64s=[1, 3, 4], zeros=1),
    _case("floats", "LabelEncoder", INTEGERS, keys_int64s=[1, 3], values_floats=[0.5, 0.25], default_float=-2.0),
    _case(
        "of nan",
        "LabelEncoder",
        WITH_NAN,
        (("y", TensorProto.INT64),),
        4,
        keys_floats=[float("nan"), float(X[0, 0])],
        values_int64s=[5, 6],
        default_int64=3,
    ),
    _case(
        "tensors",
        "LabelEncoder",
        INTEGERS,
        (("y", TensorProto.DOUBLE),),
        4,
        keys_tensor=helper.make_tensor("k", TensorProto.INT64, [2], [1, 3]),
        values_tensor=helper.make_tensor("v", TensorProto.DOUBLE, [2], [1.0, 3.0]),
        default_tensor=helper.make_tensor("d", TensorProto.DOUBLE, [1], [8.0]),
    ),
    *(
        _case(f"{t} {p}", "LinearRegressor", X, **_linear(t, targets=t, post_transform=p))
        for t, p in ((1, "NONE"), (3, "NONE"), (3, "SOFTMAX"))
    ),
    *(
        _case(f"{p} {n}", "LinearClassifier", x, LABELLED, **_linear(len(n), classlabels_ints=n, post_transform=p))
        for p in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
        for n, x in (([3, 1, 2], X), ([0, 1], INTEGERS))
    ),
    *(
        _case(f"{kernel} {one}", "SVMRegressor", X, **_support(kernel, one_class=one))
        for kernel, one in (("LINEAR", 0), ("POLY", 0), ("RBF", 0), ("SIGMOID", 0), ("RBF", 1))
    ),
    *(
        _case(f"{k} {p} {classes}", "SVMClassifier", X, LABELLED, **_machine(classes, k, labels, post_transform=p))
        for k, p in (("LINEAR", "NONE"), ("RBF", "NONE"), ("RBF", "LOGISTIC"))
        for classes, labels in (([2, 3], [7, 4]), ([2, 2, 1], [4, 2, 9]))
    ),
    *(
        _case(
            f"probabilities {c} {p}",
            "SVMClassifier",
            X,
            LABELLED,
            **_machine(c, "RBF", [*range(len(c))]),
            prob_a=_uniform(len(c) * (len(c) - 1) // 2),
            prob_b=_uniform(len(c) * (len(c) - 1) // 2),
            post_transform=p,
        )
        for c, p in (([2, 3], "NONE"), ([2, 2, 1], "SOFTMAX"), ([2, 1, 2, 3], "NONE"))
    ),
    _case(
        "linear",
        "SVMClassifier",
        X,
        LABELLED,
        coefficients=_uniform(12),
        classlabels_ints=[0, 1, 2],
        kernel_params=[0.3, 0.1, 2.0],
        kernel_type="LINEAR",
        rho=[0.2],
    ),
    *(
        _case(
            f"{x.dtype} {a} {t}",
            "TreeEnsembleRegressor",
            x,
            **Forest("target", t, modes).grown(5, 3, n_targets=t, aggregate_function=a, base_values=[0.3] * t),
        )
        for x, a, t, modes in (
            (X, "SUM", 1, ALL_MODES[:1]),
            (WITH_NAN, "SUM", 3, ALL_MODES),
            (WITH_NAN, "AVERAGE", 3, ALL_MODES),
            (X, "MIN", 2, ALL_MODES),
            (X.astype("float64"), "MAX", 2, ALL_MODES[:1]),
        )
    ),
    *(
        _case(
            f"{p} of 3",
            "TreeEnsembleClassifier",
            WITH_NAN,
            LABELLED,
            **Forest("class", 3, ALL_MODES).grown(4, 3, classlabels_int64s=[5, 1, 2], post_transform=p),
        )
        for p in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    ),
    *(
        _case(
            f"one score above {low} {p}",
            "TreeEnsembleClassifier",
            X,
            LABELLED,
            **Forest("class", 1, ALL_MODES[:1], low).grown(4, 3, classlabels_int64s=[7, 3], post_transform=p),
        )
        for low in (-1.0, 0.0)
        for p in ("NONE", "LOGISTIC")
    ),
]


@pytest.mark.parametrize(("op", "feeds", "outputs", "version", "attrs"), CASES)
def test_is_as_in_onnx_runtime(op: str, feeds: Any, outputs: Any, version: int, attrs: Any) -> None:
    model = _model(op, feeds, outputs, version, {k: v for k, v in attrs.items() if v is not None})
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    _check(_ours(model, feeds), session.run(None, feeds))


def _fifth(aggregate: int, dtype: str) -> dict[str, Any]:
    """Two trees of two nodes each, one of which asks whether a feature is in a set."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return {
        "n_targets": 2,
        "aggregate_function": aggregate,
        "tree_roots": [0, 2],
        "nodes_featureids": [0, 1, 2, 3],
        "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, [4], [0, 6, 3, 1]),
        "nodes_splits": helper.make_tensor("s", kind, [4], [0.1, 0.0, -0.2, 0.3]),
        "nodes_truenodeids": [1, 0, 3, 3],
        "nodes_trueleafs": [0, 1, 0, 1],
        "nodes_falsenodeids": [1, 2, 4, 5],
        "nodes_falseleafs": [1, 1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 0, 1],
        "leaf_weights": helper.make_tensor("w", kind, [6], [0.5, -1.0, 2.0, 3.0, -4.0, 1.5]),
        "membership_values": helper.make_tensor("v", kind, [3], [1.25, -0.5, np.nan]),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tree_ensemble_of_version_5_is_as_onnx_defines_it(dtype: str) -> None:
    x = X.astype(dtype)
    x[:4, 1] = [1.25, -0.5, 1.25, 3]
    outputs = [("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))]
    model = _model("TreeEnsemble", {"x": x}, outputs, 5, _fifth(1, dtype))
    _check(_ours(model, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x}))


def test_a_zip_map_gives_the_scores_of_each_class() -> None:
    node = helper.make_node("ZipMap", ["x"], ["z"], name="zip", domain=DOMAIN, classlabels_strings=list("abcd"))
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph([node], "g", [value], [helper.make_empty_tensor_value_info("z")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 3)]
    got = _ours(helper.make_model(graph, opset_imports=opsets, ir_version=9), {"x": X})
    np.testing.assert_array_equal(np.stack([np.asarray(g) for g in np.asarray(got).reshape(4, 7)], 1), X)


@pytest.mark.parametrize(
    ("op", "outputs", "attrs", "reason"),
    [
        ("OneHotEncoder", None, {"cats_strings": ["a"]}, "has categories that are strings"),
        ("OneHotEncoder", None, {"cats_int64s": [1], "zeros": 0}, "must stop at an unknown category"),
        ("LabelEncoder", None, {"keys_strings": ["a"], "values_int64s": [1]}, "maps strings"),
        ("LinearClassifier", LABELLED, _linear(2, classlabels_strings=["a", "b"]), "gives labels that are strings"),
    ],
)
def test_what_is_refused_is_named(op: str, outputs: Any, attrs: dict[str, Any], reason: str) -> None:
    x = INTEGERS if "Encoder" in op else X
    model = _model(op, {"x": x}, outputs or (("y", TensorProto.FLOAT),), 3, attrs)
    with pytest.raises(byoc.UnsupportedError, match=rf"{op} \(node `model`\) {reason}"):
        byoc.compile(model)


def test_labels_that_are_strings_are_no_hindrance_when_nothing_reads_them() -> None:
    attrs = _linear(2, classlabels_strings=["a", "b"])
    node = helper.make_node("LinearClassifier", ["x"], ["", "y"], name="model", domain=DOMAIN, **attrs)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph([node], "g", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 3)]
    (got,) = _ours(helper.make_model(graph, opset_imports=opsets, ir_version=9), {"x": X})
    assert got.shape == (7, 2)


WORDS = ["cat", "dog", "eel"]
_AFTER = [
    helper.make_node("Identity", ["label"], ["same"]),
    helper.make_node("Unsqueeze", ["same", "axes"], ["column"], name="column"),
]


def _chosen(op: str, *more: onnx.NodeProto, result: str = "label", **attrs: Any) -> onnx.ModelProto:
    """A model whose result is strings."""
    node = helper.make_node(op, ["x"], ["label", "scores"], name="model", domain=DOMAIN, **attrs)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    constants = [onnx.numpy_helper.from_array(np.array([1]), "axes")]
    constants.append(helper.make_tensor("words", TensorProto.STRING, [3], [w.encode() for w in WORDS]))
    results = [helper.make_tensor_value_info(result, TensorProto.STRING, None)]
    graph = helper.make_graph([node, *more], "g", [value], results, constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _by_place(op: str, domain: str) -> onnx.NodeProto:
    return helper.make_node(op, ["words", "place"], ["word"], domain=domain)


_PLACES = (
    helper.make_node("ArgMax", ["scores"], ["place"], axis=1, keepdims=0),
    *(_by_place(op, domain) for op, domain in (("ArrayFeatureExtractor", DOMAIN), ("Gather", ""))),
)
_THREE = _linear(3, classlabels_strings=WORDS)
_PAIR = _machine([2, 3], "RBF", [])
del _PAIR["classlabels_ints"]
STRINGS = {
    "linear": _chosen("LinearClassifier", **_THREE),
    "two classes": _chosen("LinearClassifier", **_linear(1, classlabels_strings=WORDS[:2])),
    "a pair": _chosen("SVMClassifier", classlabels_strings=WORDS[:2], **_PAIR),
    "moved": _chosen("LinearClassifier", *_AFTER, result="column", **_THREE),
    "features": _chosen("LinearClassifier", *_PLACES[:2], result="word", **_THREE),
    "gathered": _chosen("LinearClassifier", _PLACES[0], _PLACES[2], result="word", **_THREE),
    "encoded": _chosen(
        "LinearClassifier",
        helper.make_node("LabelEncoder", ["label"], ["word"], name="encoder", domain=DOMAIN, keys_int64s=[5, 7],
                         values_strings=WORDS[:2], default_string="eel"),
        result="word",
        **_linear(3, classlabels_ints=[5, 7, 9]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRINGS)
def test_strings_are_given_back_as_indices(name: str) -> None:
    model = STRINGS[name]
    module = byoc.to_relax(model, string_labels=True)
    (table,) = module["main"].attrs["string_labels"].values()
    got = np.asarray(byoc.Runner(byoc.compile(module))(X))
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X})
    assert got.dtype == np.int64
    np.testing.assert_array_equal(np.array([str(w) for w in table], object)[got], want)
    with pytest.raises(byoc.UnsupportedError, match="gives labels that are strings; ask for their indices"):
        byoc.to_relax(model)


def test_strings_that_are_read_are_refused() -> None:
    equal = helper.make_node("Equal", ["label", "words"], ["word"])
    with pytest.raises(byoc.UnsupportedError, match=r"LinearClassifier \(node `model`\) gives labels that are strings"):
        byoc.to_relax(_chosen("LinearClassifier", equal, result="word", **_THREE), string_labels=True)
