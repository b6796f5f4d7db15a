"""Target hooks: a namespace's own way from regions to PrimFuncs to a runtime module, and fused operators."""

from ..namespaces import get_target_options
from .registration import InlineComposites, for_each_region, refuse_region

__all__ = ["InlineComposites", "for_each_region", "get_target_options", "refuse_region"]
