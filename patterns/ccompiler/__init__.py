"""A C compiler as a backend: regions → TE → TIR → C → object code in the exported library, without LLVM.

It is also the example of target hooks: everything that a vendor registers is in `ops`.
"""
