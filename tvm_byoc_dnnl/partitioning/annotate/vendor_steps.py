"""Steps of a vendor around the annotation, without which a build goes on: preparing passes, many answers at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import tvm

from ...core.errors import NativeLibraryError, VendorError
from ...core.ledger import Fact
from ...core.vendor_code import run_pass
from ...core.verdict import Reject
from ...graph.graph import PortableGraph
from ...regions.failure import describe
from ...vendors.namespace import Namespace, told

__all__ = ["answers_of", "prepared_by"]

_logger = logging.getLogger("tvm_byoc_dnnl")


def prepared_by(ns: Namespace, mod: tvm.IRModule) -> tuple[tvm.IRModule, list[Fact]]:
    """The module behind the preparing passes of a namespace; one that fails is left out, and noted."""
    failures: list[Fact] = []
    for make_pass in ns.prepare:
        try:
            mod = run_pass(make_pass, mod, f"prepare= of {ns.name!r}")
        except NativeLibraryError:
            raise
        except Exception as error:
            reason = f"{describe(error)}; the model goes on without this pass"
            failures.append(Fact("the module", "all calls", "prepare", ns.name, "prepare", reason))
    return mod, failures


def answers_of(ns: Namespace, graphs: Sequence[PortableGraph]) -> Sequence[Reject | None]:
    """What ``probe_many`` of a namespace says of graphs; nothing where it fails, and each is asked about by itself."""
    try:
        answers = told(ns, "probe_many", graphs)
        if len(answers) == len(graphs) and all(isinstance(answer, (Reject, type(None))) for answer in answers):
            return answers
        raise VendorError(f"probe_many of {ns.name!r} returned {answers!r}; expected an answer to {len(graphs)} graphs")
    except NativeLibraryError:
        raise
    except Exception as error:
        _logger.warning("%s; the answers are asked for one by one", describe(error))
        return ()
