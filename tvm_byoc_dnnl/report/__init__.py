"""explain: which call runs where and why, as data, as text and as a page with the graph drawn."""

from __future__ import annotations

from ..partitioning.report_data import CallReport, Candidate, NearMiss, RegionReport, Totals
from .collect import Report, explain

__all__ = ["CallReport", "Candidate", "NearMiss", "RegionReport", "Report", "Totals", "explain"]
