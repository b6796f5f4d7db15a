"""`Report`: the data, and its forms for people."""

from __future__ import annotations

from os import PathLike

from ..calls.model import ReportData
from ..core.files import write_text
from .formats import Shown, count
from .html import render_html
from .text import render_text


class Report(Shown, ReportData):
    """Shows which call runs where, and why: the data is `ReportData`; the methods print it."""

    def to_text(self, *, width: int = 110, color: bool = False, every_call: bool = False) -> str:
        """The report for a terminal.

        Parameters
        ----------
        width : int
            Columns.
        color : bool
            Use the terminal's colours.
        every_call : bool
            List all calls, not only those that stay with TVM.
        """
        return render_text(self, width=width, color=color, every_call=every_call)

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """One self-contained page: the graph, regions coloured, reasons on hover; also written to ``path``."""
        page = render_html(self)
        if path is not None:
            write_text(path, page)
        return page

    def _said(self) -> str:
        of = f"{self.model}, " if self.model else ""
        totals = self.totals
        return f"{of}{totals.offloaded_calls} of {totals.calls} calls in {count(totals.regions, 'region')}"

    def __str__(self) -> str:
        return self.to_text()
