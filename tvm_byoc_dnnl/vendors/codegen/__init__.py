"""Stage 5, codegen: regions become runtime modules, and the rest goes through TVM's CPU lowering."""
