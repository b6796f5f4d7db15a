"""TVM's own dynamic modules: `relax.frontend.nn` with open sizes, and its paged cache of keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import spec

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.tvm_version import open_cache

pytestmark = [pytest.mark.native, open_cache]

HEADS, SIZE, WIDTH = 2, 8, 16


class Layer(nn.Module):
    """Attention over a paged cache, and two products."""

    def __init__(self) -> None:
        self.norm = nn.RMSNorm(WIDTH, -1, 1e-5, bias=False)
        self.first, self.last = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, cache: Any) -> Any:
        _, length, _ = x.shape
        joined = nn.op.reshape(self.first(self.norm(x)), (1, length, 3 * HEADS, SIZE))
        mixed = cache.attention_with_fused_qkv(0, joined, HEADS, sm_scale=SIZE**-0.5)
        return x + self.last(nn.op.gelu(nn.op.reshape(mixed, (1, length, WIDTH))))


class Decoder(nn.Module):
    """One layer behind an embedding; `create` makes its cache."""

    def __init__(self) -> None:
        self.words, self.layer, self.head = nn.Embedding(50, WIDTH), Layer(), nn.Linear(WIDTH, 50, bias=False)

    def step(self, ids: nn.Tensor, cache: Any) -> Any:
        return self.head(self.layer(self.words(ids), cache)), cache

    def create(self, batch: Any, total: Any, chunk: Any, page: Any, window: Any) -> Any:
        from tvm.relax.frontend.nn.llm.kv_cache import RopeMode, TIRPagedKVCache

        return TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=batch,
            max_total_seq_len=total,
            prefill_chunk_size=chunk,
            page_size=page,
            support_sliding_window=window,
            layer_partition=relax.ShapeExpr([0, 1]),
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            qk_head_dim=SIZE,
            v_head_dim=SIZE,
            mla_original_qk_head_dim=SIZE,
            mla_original_v_head_dim=SIZE,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=10000,
            rope_scaling={},
            rope_ext_factors=relax.prim_value(0),
            rotary_dim=SIZE,
            enable_disaggregation=False,
            dtype="float32",
            target=tvm.target.Target("llvm"),
        )


def exported() -> tuple[tvm.IRModule, list[Any]]:
    from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache

    plain = {"param_mode": "packed", "effect_mode": "none"}
    methods = {
        "step": {"ids": spec.Tensor([1, "length"], "int32"), "cache": spec.Object(PagedKVCache), "$": plain},
        "create": {
            **dict.fromkeys(("batch", "total", "chunk", "page", "window"), int),
            "$": {"param_mode": "none", "effect_mode": "none"},
        },
    }
    net = Decoder()
    mod, params = net.export_tvm(spec=spec.ModuleSpec.from_raw(methods, net))
    rng = np.random.default_rng(0)
    shapes = [[int(d) for d in p.shape] for _, p in params]
    return mod, [tvm.runtime.tensor(rng.standard_normal(s, dtype="float32") * np.float32(0.2)) for s in shapes]


def generated(executable: Any, params: list[Any]) -> list[np.ndarray]:
    """The logits of a prompt and of the tokens behind it."""
    machine, of_tvm = relax.VirtualMachine(executable, tvm.cpu()), tvm.get_global_func
    cache = machine["create"](*(tvm_ffi.Shape([n]) for n in (4, 128, 32, 16, 0)))
    of_tvm("vm.builtin.kv_state_add_sequence")(cache, 0)
    results = []

    def step(ids: list[int], *lengths: int) -> None:
        sequences = tvm_ffi.Shape(range(len(lengths)))
        of_tvm("vm.builtin.kv_state_begin_forward")(cache, sequences, tvm_ffi.Shape(lengths))
        logits, _ = machine["step"](tvm.runtime.tensor(np.array([ids], "int32")), cache, params)
        of_tvm("vm.builtin.kv_state_end_forward")(cache)
        results.append(logits.numpy())

    step([*range(3, 23)], 20)
    step([2], 1)
    of_tvm("vm.builtin.kv_state_fork_sequence")(cache, 0, 1, 18)
    of_tvm("vm.builtin.kv_state_add_sequence")(cache, 2)
    step([8, 4, 1, 5], 1, 2, 1)
    of_tvm("vm.builtin.kv_state_popn")(cache, 0, 5)
    step([7, 6, 5], 1, 1, 1)
    return results


def test_a_decoder_with_a_paged_cache_runs_in_regions_beside_it() -> None:
    mod, params = exported()
    partitioned = byoc.partition(mod, strict=True)
    executable = tvm.compile(partitioned, "llvm", relax_pipeline="byoc")
    assert "tvm_byoc_dnnl.PagedAttention" in executable.as_text()
    got = generated(executable, params)
    want = generated(tvm.compile(mod, "llvm"), params)
    for result, wanted in zip(got, want, strict=True):
        assert_right(result, wanted, 1e-5)
    assert len([f for f in partitioned.functions.values() if f.attrs and "Codegen" in f.attrs]) == 2
