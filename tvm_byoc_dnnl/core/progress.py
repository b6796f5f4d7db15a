"""What is being done, shown on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(message: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal which work is being done; the value changes the message."""
    if not sys.stderr.isatty():
        yield lambda message: None
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False, markup=False).status(message) as status:
        yield status.update
