"""Stage 2, annotate: patterns and predicates decide which calls become composite functions, with a verdict per call."""
