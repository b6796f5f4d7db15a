// SPDX-License-Identifier: Apache-2.0
// A neutral description of a primitive: all that oneDNN needs to create it, as plain data. One
// function creates the primitive descriptor from it, so that another can print the very same calls
// as source.
#pragma once

#include <dnnl.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dnnl/layout.h"

namespace tvm_byoc_dnnl {

/// The only CPU engine of the process.
const dnnl::engine& CpuEngine();

/// One execution argument: which value, in which layout (possibly "any").
struct OpArg {
  int arg = 0;     // DNNL_ARG_*
  int value = -1;  // of the lowering
  MemoryDesc md;

  bool IsInput() const { return arg != DNNL_ARG_DST; }
};

/// Whether it is a product of matrices, a convolution or a transposed one; and one that normalises
/// along an axis.
inline bool IsProduct(dnnl::primitive::kind kind) {
  return kind == dnnl::primitive::kind::matmul || kind == dnnl::primitive::kind::convolution ||
         kind == dnnl::primitive::kind::deconvolution;
}
inline bool IsNormalization(dnnl::primitive::kind kind) {
  return kind == dnnl::primitive::kind::softmax ||
         kind == dnnl::primitive::kind::layer_normalization;
}

/// What is done with each element: by a primitive of its own, or behind another one.
struct Operation {
  dnnl::algorithm alg = dnnl::algorithm::undef;
  bool of_numbers = false;    // a bound that answers a NaN with itself, as oneDNN's do
  float alpha = 0, beta = 0;  // eltwise

  Operation& operation() { return *this; }
};

struct PostOpDesc : Operation {
  enum class Kind { kEltwise, kBinary, kSum };
  Kind kind = Kind::kEltwise;
  int value = -1;  // binary and sum: the operand
  MemoryDesc md;   // binary
};

/// Scale and zero point of an argument; their values are given when the primitive runs.
struct ScalingDesc {
  int arg = 0;                      // DNNL_ARG_*
  int scale = -1, zero_point = -1;  // of the lowering, or -1
  int scale_mask = 0, zero_point_mask = 0;
};

struct OpDesc : Operation {
  dnnl::primitive::kind kind = dnnl::primitive::kind::undef;
  std::vector<OpArg> args;  // inputs, then the output (DNNL_ARG_DST)
  Dims strides, dilates, pad_begin, pad_end, kernel;
  float k = 0, p = 0, epsilon = 0;
  int64_t axis = 0, group_size = 0, local_size = 0;
  unsigned flags = 0;     // of the normalisations
  std::string preferred;  // the algorithm that the graph asks for among kernels of ours
  std::vector<PostOpDesc> post_ops;
  std::vector<ScalingDesc> scalings;

  const OpArg* Find(int arg) const;
  OpArg* Find(int arg);
};

/// Whether it divides rows by the root of the mean of their squares, which no primitive does: the
/// description of a layer normalisation, for our kernel alone.
inline bool IsRms(const OpDesc& op) { return op.preferred == "rms"; }

/// The rows of an image or its weights one after the other; nothing for a form that oneDNN keeps to
/// itself.
std::optional<MemoryDesc> InOneRow(const MemoryDesc& md);

/// A convolution along the columns of images with short rows, as one along the one row that has
/// the same pixels in the same order; nothing for any other operation.
std::optional<OpDesc> AlongRows(const OpDesc& op);

/// Tells `attr` all that is set in the attributes of the primitive, in the order of oneDNN's calls:
/// Mask("scales" or "zero_points", DNNL_ARG_*, mask), then Eltwise, Binary or Sum for each post-op.
template <typename Attr>
void DescribeAttr(const OpDesc& op, Attr* attr) {
  for (const ScalingDesc& s : op.scalings) {
    if (s.scale >= 0) attr->Mask("scales", s.arg, s.scale_mask);
    if (s.zero_point >= 0) attr->Mask("zero_points", s.arg, s.zero_point_mask);
  }
  for (const PostOpDesc& post_op : op.post_ops) {
    switch (post_op.kind) {
      case PostOpDesc::Kind::kEltwise:
        attr->Eltwise(post_op);
        break;
      case PostOpDesc::Kind::kBinary:
        attr->Binary(post_op);
        break;
      case PostOpDesc::Kind::kSum:
        attr->Sum();
        break;
    }
  }
}

/// What oneDNN answers to a description, asked for once: each of its own answers is a copy. Copies
/// share it; it does not change.
class PrimitiveDesc {
 public:
  PrimitiveDesc() = default;
  /// Owns `pd`.
  PrimitiveDesc(const OpDesc& op, dnnl_primitive_desc_t pd);

  explicit operator bool() const { return answer_ != nullptr; }
  /// The same answer with another name of its implementation.
  PrimitiveDesc Named(const std::string& impl) const;

  /// The answer about an operation AlongRows as one about the operation itself, or the reverse,
  /// with layouts of its shapes; empty where weights have a form that oneDNN keeps to itself.
  PrimitiveDesc About(const OpDesc& op) const;
  /// Whether oneDNN was asked about the operation AlongRows.
  bool IsInOneRow() const { return answer_->is_in_one_row; }

  const_dnnl_primitive_desc_t get() const;
  const std::string& impl() const { return answer_->impl; }
  /// The layout that the primitive expects for a DNNL_ARG_*; none for what it does not take.
  const MemoryDesc& Arg(int arg) const;

 private:
  struct Answer {
    dnnl::primitive_desc_base pd;
    std::string impl;
    std::vector<std::pair<int, MemoryDesc>> args;
    bool is_in_one_row = false;
  };
  std::shared_ptr<const Answer> answer_;
};

/// Primitive descriptors by their descriptions. A layer is created when its call is annotated,
/// again with each post-op, with its whole region, and when the region is loaded; and networks
/// contain equal layers. oneDNN generates code for each answer, which takes long. Any thread may
/// ask at any time. A full cache starts again from empty.
class DescriptorCache {
 public:
  explicit DescriptorCache(size_t capacity) : capacity_(capacity) {}

  /// The result of `create` for an equal description; it may be an empty descriptor.
  PrimitiveDesc Get(const OpDesc& op, const std::function<PrimitiveDesc()>& create);

  /// Descriptors that a plan has live on.
  void Clear();

  size_t size() const;

 private:
  struct Entry {
    std::vector<MemoryDesc> layouts;
    PrimitiveDesc pd;
  };
  const PrimitiveDesc* Find(const std::string& key, const std::vector<MemoryDesc>& layouts) const;

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_multimap<std::string, Entry> entries_;  // by all but the layouts
};

/// An empty descriptor if oneDNN has no implementation. It is asked once for equal descriptions.
PrimitiveDesc AskOneDnn(const OpDesc& op);

/// Drops the answers, and the code that oneDNN keeps for descriptions that may come again.
void ForgetOneDnn();

/// DNNL_ARG_* of the operand of a binary post-op.
int PostOpArg(size_t index);

/// Calls the function for this kind of primitive.
dnnl_status_t Create(const OpDesc& op, const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t* pd);

/// The same call as source, which sets `step->pd`; `layouts` are the expressions for the layouts of
/// the operation's arguments, in their order. Throws Error(kUnsupported) for a kind without a row.
std::string PrintCreate(const OpDesc& op, const std::vector<std::string>& layouts);

/// "0.5f", which reads back as exactly this number.
std::string PrintNumber(float value);

std::string PrintAlgorithm(dnnl::algorithm alg);

}  // namespace tvm_byoc_dnnl
