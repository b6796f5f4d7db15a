"""The vendors that come with the package: one folder each, whose module `ops` registers a namespace."""
