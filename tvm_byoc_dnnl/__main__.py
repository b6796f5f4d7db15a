"""``python -m tvm_byoc_dnnl``: the command line."""

from .cli import main

main()
