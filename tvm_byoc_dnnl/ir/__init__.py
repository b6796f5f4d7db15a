"""Relax, read and rewritten: the differences between TVM versions, walks, signatures."""
