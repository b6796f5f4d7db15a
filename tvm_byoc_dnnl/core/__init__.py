"""What every part uses: the compilation and its ledger, errors, limits, files, processes, the native library."""
