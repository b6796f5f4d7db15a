"""oneDNN's namespace, and its operators: one file per family.

An operator's default predicate is its lowering plus a probe of the library, so most files hold lowerings only.
"""

from __future__ import annotations

from ...vendor import portable_codegen, register_namespace
from . import (
    attention,  # each registers its operators
    elementwise,  # noqa: F401
    machine,
    norm,  # noqa: F401
    products,  # noqa: F401
    quantize,  # noqa: F401
    recurrent,  # noqa: F401
    reduce,  # noqa: F401
    resize,  # noqa: F401
    shape,  # noqa: F401
)
from .common import OPTIONS
from .library import (
    EXAMINATION,
    create_module,
    create_source,
    describe,
    emit,
    measure_candidates,
    probe,
    probe_many,
    source_build,
    write_program,
)
from .policy import DnnlPolicy, primitive_flops
from .post_ops import fuse_post_ops
from .resize import TakeTables

register_namespace(
    "dnnl",
    codegen=portable_codegen(
        "dnnl", create_module, create_source, source_build, OPTIONS, measure_candidates, machine.measure
    ),
    probe=probe,
    probe_many=probe_many,
    describe=describe,
    emit=emit,
    write_program=write_program,
    optimize=fuse_post_ops,
    primitive_flops=primitive_flops,
    doctor=EXAMINATION,
    prepare=[attention.CausalMasks, TakeTables],
    policy=DnnlPolicy(cheap_beside_host=False),
)
