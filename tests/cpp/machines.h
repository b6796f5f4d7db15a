// SPDX-License-Identifier: Apache-2.0
// Machines to ask for their plans, without running these: each instruction set is tested on every
// machine.
#ifndef TVM_BYOC_DNNL_TESTS_MACHINES_H_
#define TVM_BYOC_DNNL_TESTS_MACHINES_H_

#include <algorithm>
#include <string>
#include <vector>

#include "dnnl/layout.h"
#include "dnnl/machine.h"

namespace machines {

using namespace tvm_byoc_dnnl;  // NOLINT: for tests only

constexpr dnnl::cpu_isa kAll[] = {
    dnnl::cpu_isa::sse41,
    dnnl::cpu_isa::avx,
    dnnl::cpu_isa::avx2,
    dnnl::cpu_isa::avx2_vnni,
    dnnl::cpu_isa::avx2_vnni_2,
    dnnl::cpu_isa::avx512_core,
    dnnl::cpu_isa::avx512_core_vnni,
    dnnl::cpu_isa::avx512_core_bf16,
    dnnl::cpu_isa::avx512_core_fp16,
    dnnl::cpu_isa::avx512_core_amx,
    dnnl::cpu_isa::avx512_core_amx_fp16,
};

/// Images in blocks of `lanes` channels if these are whole blocks; else with their channels last.
inline MemoryDesc OfImage(const MemoryDesc& md, bool in_blocks, int64_t lanes) {
  using Tag = dnnl::memory::format_tag;
  const bool fits = in_blocks && md.get_dims()[1] % lanes == 0;
  const Tag tag = !fits ? Tag::acdb : lanes == 8 ? Tag::aBcd8b : Tag::aBcd16b;
  return MemoryDesc(md.get_dims(), md.get_data_type(), tag);
}

/// Weights in blocks of as many outputs; those of groups only if these are whole blocks.
inline MemoryDesc OfWeights(const MemoryDesc& md, int64_t lanes) {
  using Tag = dnnl::memory::format_tag;
  const Dims dims = md.get_dims();
  Tag tag = lanes == 8 ? Tag::Acdb8a : Tag::Acdb16a;
  if (dims.size() == 5) {
    tag = dims[1] % lanes != 0 ? Tag::abcde : lanes == 8 ? Tag::aBdec8b : Tag::aBdec16b;
  }
  return MemoryDesc(dims, md.get_data_type(), tag);
}

/// Decides the open layouts of a convolution of images as oneDNN does, and says by what it would be
/// computed: from AVX2 on, images have their channels last, but for those that are made of a
/// picture; before AVX2 they are in blocks of channels. Groups of few channels are unfolded where
/// layouts are open. Row-major images, but for a picture that is read, are left to a reference
/// implementation.
inline std::string Decide(OpDesc* op, bool has_vectors, int64_t lanes) {
  const auto image = [](const OpArg& arg) {
    return arg.arg == DNNL_ARG_SRC || arg.arg == DNNL_ARG_DST;
  };
  const Dims weights = op->Find(DNNL_ARG_WEIGHTS)->md.get_dims();
  const MemoryDesc dst = op->Find(DNNL_ARG_DST)->md;
  const bool is_float = op->Find(DNNL_ARG_SRC)->md.get_data_type() == dnnl::memory::data_type::f32;
  const bool unfolds =
      weights.size() == 5 && weights[2] < lanes && weights[1] * weights[2] > 1 && IsAny(dst);
  constexpr int64_t kOfPicture = 4;
  const bool is_plain = std::any_of(op->args.begin(), op->args.end(), [&](const OpArg& arg) {
    return image(arg) && !IsAny(arg.md) && IsDense(arg.md) &&
           arg.md.get_dims()[1] > (arg.IsInput() ? kOfPicture : 1);
  });
  const bool channels_last = std::any_of(op->args.begin(), op->args.end(), [&](const OpArg& arg) {
    return image(arg) && !IsAny(arg.md) && IsStrided(arg.md) && arg.md.get_strides()[1] == 1 &&
           arg.md.get_dims()[1] > 1;
  });
  const bool is_of_picture = op->Find(DNNL_ARG_SRC)->md.get_dims()[1] <= kOfPicture;
  const bool in_blocks = is_float && !channels_last && (!has_vectors || is_of_picture);
  for (OpArg& arg : op->args) {
    if (!IsAny(arg.md)) continue;
    if (arg.arg == DNNL_ARG_WEIGHTS) arg.md = OfWeights(arg.md, lanes);
    if (image(arg)) arg.md = OfImage(arg.md, in_blocks, lanes);
  }
  for (PostOpDesc& post_op : op->post_ops) {
    if (post_op.kind == PostOpDesc::Kind::kBinary && IsAny(post_op.md))
      post_op.md = OfImage(post_op.md, in_blocks, lanes);
  }
  return is_plain ? "ref:any" : unfolds ? "gemm:jit" : "jit:any";
}

/// What oneDNN would answer there. It has code of its own for everything that it computes at all.
template <bool has_vectors, int64_t lanes>
PrimitiveDesc AskFor(const OpDesc& asked) {
  OpDesc op = asked;
  std::string impl = "jit:any";
  const bool is_of_images =
      op.kind == dnnl::primitive::kind::convolution && op.Find(DNNL_ARG_DST)->md.get_ndims() == 4;
  if (is_of_images) impl = Decide(&op, has_vectors, lanes);
  const PrimitiveDesc real = AskOneDnn(op);
  return real ? real.Named(impl) : real;
}

/// A machine with this instruction set, two threads and 1 MB of second-level cache.
inline Machine WithIsa(dnnl::cpu_isa set) {
  Machine machine{Isa(set)};
  machine.threads = 2;
  machine.cache_bytes = 1 << 20;
  machine.ask = machine.isa.Vectors() == BYOC_AVX512 ? AskFor<true, 16>
                : machine.isa.Vectors() == BYOC_AVX2 ? AskFor<true, 8>
                                                     : AskFor<false, 8>;
  return machine;
}

}  // namespace machines

#endif  // TVM_BYOC_DNNL_TESTS_MACHINES_H_
