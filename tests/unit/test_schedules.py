"""TVM's calls take the schedules of a MetaSchedule database, and their times have its name."""

from __future__ import annotations

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.failing_vendor import run
from tests.unit.test_fallback_codegen import EXPECTED, Chain, X
from tvm_byoc_dnnl.tuning.database import setting_of


def test_a_database_of_schedules_is_applied_to_the_calls_of_tvm():
    scheduled = []

    def schedule(sch: tvm.s_tir.Schedule) -> bool:
        block = sch.get_sblock("compute") if hasattr(sch, "get_sblock") else sch.get_block("compute")
        sch.parallel(sch.fuse(*sch.get_loops(block)))
        scheduled.append(str(sch.mod))
        return True

    mod = byoc.partition(Chain, "ccompiler", place={"a": "tvm", "b": "tvm", "c": "tvm"})
    plain = setting_of("tvm")
    with ms.database.ScheduleFnDatabase(schedule):
        ex = tvm.compile(mod, "llvm", relax_pipeline="byoc")
        assert setting_of("tvm") != plain
    assert any("T.parallel" in text for text in scheduled)
    assert_right(byoc.Runner(ex)(X), EXPECTED)
    assert setting_of("tvm") == plain
    assert np.isfinite(run(mod, X)).all()
