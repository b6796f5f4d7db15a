"""The table of operators: how each is taken, and in which dtypes, found by asking."""

import pytest
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.conformance.report import support_of
from tvm_byoc_dnnl.vendors.namespaces import namespace

VENDOR = "table_vendor"


@pytest.fixture
def rows():
    @byoc.register_annotate_compiler(VENDOR, "relax.exp")
    def exp(attrs, args):
        """Only ``float64``.

        More words.
        """
        return str(args[0].ty.dtype) == "float64"

    @byoc.register_lowering(VENDOR, "relax.add")
    def add(g, call):
        """Sums."""
        return g.value(call.args[0])

    byoc.register_annotate_compiler(VENDOR, "relax.add", lambda attrs, args: byoc.Reject("never"))
    byoc.register_annotate_compiler(VENDOR, ["relax.topk"], lambda attrs, args: 1 / 0)
    byoc.register_pattern(VENDOR, "pair", is_op("relax.exp")(is_op("relax.sin")(wildcard())))
    yield {row.name: row for row in support_of(namespace(VENDOR))}
    byoc.unregister_compiler(VENDOR)


def test_how_a_call_is_taken(rows):
    assert {name: row.how for name, row in rows.items()} == {
        "relax.add": "predicate + lowering",
        "relax.exp": "predicate",
        "relax.topk": "predicate",
        "pair": "pattern",
    }


def test_dtypes_are_those_that_are_accepted(rows):
    assert rows["relax.exp"].dtypes == ("f64",)
    assert rows["relax.add"].dtypes == rows["relax.topk"].dtypes == rows["pair"].dtypes == ()


def test_notes_are_the_first_sentence(rows):
    assert rows["relax.exp"].notes == "Only `float64`."
    assert rows["relax.add"].notes == "Sums."
    assert rows["pair"].notes == "Its operators, one by one."


def test_the_library_is_not_asked():
    """The page must be the same on every machine."""
    asked = []
    byoc.register_lowering(VENDOR, "relax.exp", lambda g, call: g.value(call.args[0]))
    byoc.register_namespace(VENDOR, probe=lambda graph: asked.append(graph))
    try:
        (row,) = support_of(namespace(VENDOR))
    finally:
        byoc.unregister_compiler(VENDOR)
    assert "f32" in row.dtypes and not asked
