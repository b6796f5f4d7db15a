"""Target hooks: a namespace's own way from regions to PrimFuncs to a runtime module, and fused operators."""
