"""The entries of the table, one file for each family of operators."""

from . import casts, constants, elementwise, indexing, sequences, shapes

__all__ = ["casts", "constants", "elementwise", "indexing", "sequences", "shapes"]
