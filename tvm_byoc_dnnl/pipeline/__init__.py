"""Stage 4, build: the ``byoc`` pipeline with its own passes, and the executable that comes out of it."""

#: its name among the pipelines of TVM
PIPELINE = "byoc"
