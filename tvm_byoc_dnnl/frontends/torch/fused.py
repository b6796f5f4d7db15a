"""Operators into which PyTorch fuses a transformer's parts, written as the operators that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["decompositions"]


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload → function, as ``ExportedProgram.run_decompositions`` takes them."""
    import torch
    from torch.nn.functional import gelu, layer_norm, linear, relu, softmax

    def attention(
        query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any,
        proj_weight: Any, proj_bias: Any, mask: Any = None, need_weights: bool = True,
        average_attn_weights: bool = True, mask_type: int | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        q, k, v = (linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(-2, -1)
        if mask is not None:
            hidden = mask.to(torch.bool)
            if mask_type == 1:  # of keys; the others are of pairs
                hidden = hidden[:, None, None, :]
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = softmax(scores, dim=-1)
        result = linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
        shown = weights.mean(1) if average_attn_weights else weights
        return result, shown if need_weights else torch.empty(0, dtype=result.dtype)

    def encoder_layer(
        src: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
        use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any,
        norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None,
        mask_type: int | None = None,
    ) -> Any:  # fmt: skip
        def attended(x: Any) -> Any:
            inputs = (x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias)
            return attention(*inputs, mask, False, False, mask_type)[0]

        def fed_forward(x: Any) -> Any:
            activate = gelu if use_gelu else relu
            return linear(activate(linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

        x = src
        for part, weight, bias in (
            (attended, norm_weight_1, norm_bias_1),
            (fed_forward, norm_weight_2, norm_bias_2),
        ):
            if norm_first:
                x = x + part(layer_norm(x, (embed_dim,), weight, bias, eps))
            else:
                x = layer_norm(x + part(x), (embed_dim,), weight, bias, eps)
        return x

    return {
        torch.ops.aten._native_multi_head_attention.default: attention,
        torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer,
    }
