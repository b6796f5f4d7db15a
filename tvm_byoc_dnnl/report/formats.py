"""Numbers for people; and how results look at a prompt and in a notebook: one line, and a page or a text."""

from __future__ import annotations

from html import escape
from typing import Any


def quantity(value: int, unit: str = "") -> str:
    """Three digits and a decimal prefix: ``4.09 G``; of 0 and of small numbers, the number."""
    number = float(value)
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5 or prefix == "P":
            break
        number /= 1000
    digits = f"{number:.0f}" if not prefix or abs(number) >= 99.95 else f"{number:.3g}"
    return f"{digits} {prefix}{unit}".strip()


def percent(share: float) -> str:
    """A share as text; less than all is never printed as 100 %, more than nothing never as 0 %."""
    text = f"{share:.1%}" if 0.0005 <= share < 0.9995 else f"{share:.0%}"
    if share < 1 and text == "100%":
        text = ">99.9%"
    if share > 0 and text == "0%":
        text = "<0.1%"
    return text.replace("%", " %")


def count(number: int, noun: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def milliseconds(seconds: float) -> str:
    """Three digits: ``7.01 ms``."""
    return f"{1e3 * seconds:.3g} ms"


class Shown:
    """A result with a short ``repr``; a notebook shows its page, or its text where it has none."""

    def _said(self) -> str:
        """What is in it, for the one line."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._said()}>"

    def _repr_html_(self) -> str:
        shown: Any = self
        if not hasattr(self, "to_html"):
            return f"<pre>{escape(shown.to_text())}</pre>"
        return f'<iframe srcdoc="{escape(shown.to_html())}" style="width: 100%; height: 40em; border: 0"></iframe>'
