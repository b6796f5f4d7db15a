"""Helpers for the package's own tests and benchmarks, and for those of vendors."""
