"""How results look at a prompt and in a notebook: one line, and a page or a text."""

from __future__ import annotations

from html import escape
from typing import Any


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
