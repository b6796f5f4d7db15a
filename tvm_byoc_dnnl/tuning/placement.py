"""The result of `tune`."""

from __future__ import annotations

from .database import Database


class Placement(dict[str, str]):
    """Call → compiler, as `compile` takes it, and how it was found.

    Attributes
    ----------
    seconds, default_seconds : float or None
        One call of the whole model with this placement, and with the default one, measured in turns; ``None`` where
        they are the same, a vendor's own cost model decided, or the model hung or crashed in a process of its own.
    tried : int
        Placements whose cost was compared.
    measured : int
        Workloads that were measured.
    choices : Database or None
        The times by which libraries choose among their implementations; ``None`` if they choose by their own models.
    """

    seconds: float | None = None
    default_seconds: float | None = None
    tried: int = 0
    measured: int = 0
    choices: Database | None = None

    def __repr__(self) -> str:
        choices = "" if self.choices is None else f", choices={self.choices.name_of_candidates()!r}"
        return f"Placement({super().__repr__()}{choices})"


def choices_of(placement: object) -> Database | None:
    """The times that belong to a placement; a plain dict has none."""
    return placement.choices if isinstance(placement, Placement) else None
