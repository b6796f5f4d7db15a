"""The vendors that come with the package: one folder each, which registers a namespace when it is imported."""
