"""Schedules that the user has tuned with MetaSchedule, for the calls that stay with TVM: ``with database: ...``."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import tvm
from tvm import relax


def _database() -> Any | None:
    """The database of the `with` around this call; there is none before its module is imported."""
    module = sys.modules.get("tvm.s_tir.meta_schedule")
    return None if module is None else module.Database.current()


@tvm.transform.module_pass(opt_level=0, name="ApplySchedules")
def apply_schedules(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Give the kernels of TVM's calls the schedules that the database has for them."""
    return mod if _database() is None else relax.transform.MetaScheduleApplyDatabase()(mod)


def name_of_schedules() -> str:
    """A short name for these schedules, so that their times are told from others; empty without any."""
    database = _database()
    if database is None:
        return ""
    try:
        records = sorted(str(record.as_json()) for record in database.get_all_tuning_records())
    except Exception:  # a database that is a function has no records
        return f"schedules of {type(database).__name__}"
    return f"{len(records)} schedules {hashlib.sha256(repr(records).encode()).hexdigest()[:8]}"
