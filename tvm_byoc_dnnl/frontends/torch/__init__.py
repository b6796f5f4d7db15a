"""PyTorch: exported programs as Relax, and what their importer in TVM leaves open."""
