"""Numbers for people."""

from __future__ import annotations


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
