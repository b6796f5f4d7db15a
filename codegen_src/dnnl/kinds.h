// SPDX-License-Identifier: Apache-2.0
// The table of node kinds, each with its lowering to primitives.
#pragma once

#include <optional>
#include <vector>

#include "common/graph.h"
#include "dnnl/layout.h"
#include "dnnl/lowering.h"
#include "dnnl/op_desc.h"
#include "kernels/byoc_attention_plan.h"

namespace tvm_byoc_dnnl {

/// One node during lowering, with short names for its tensors and attributes.
class NodeView {
 public:
  NodeView(Lowering* lowering, const Node& node, int output)
      : lowering(*lowering), node(node), a(node.attrs), output(output) {}

  int In(int i) const { return node.inputs[i]; }
  int OwnInputs() const { return node.own_inputs; }
  const Dims& Shape(int i) const { return lowering.shape(In(i)); }
  const Dims& OutShape() const { return lowering.shape(output); }
  DType OutDType() const { return lowering.dtype(output); }

  /// Arguments of an operation: an input in its layout (unless that has gaps), in a given layout,
  /// row-major, or in the layout that the primitive chooses; the output.
  OpArg AsIs(int arg, int i) const {
    const MemoryDesc& md = lowering.Layout(In(i));
    return IsCompact(md) ? OpArg{arg, In(i), md} : AsDense(arg, i);
  }
  OpArg As(const MemoryDesc& md, int arg, int i) const { return {arg, In(i), md}; }
  OpArg AsDense(int arg, int i) const { return {arg, In(i), Dense(Shape(i), DTypeOf(i))}; }
  OpArg AsAny(int arg, int i) const { return {arg, In(i), AnyLayout(Shape(i), DTypeOf(i))}; }
  /// Activations, in the layouts to try in turn: as they are, channels innermost, row-major.
  std::vector<OpArg> Layouts(int arg, int i) const {
    return {AsIs(arg, i), As(ChannelsLast(Shape(i), DTypeOf(i)), arg, i), AsDense(arg, i)};
  }
  /// Strides, dilations and paddings of a convolution or a pooling.
  void SetWindow(OpDesc* op) const {
    op->strides = a.strides;
    op->dilates = a.dilations;
    for (int64_t& dilation : op->dilates) --dilation;  // oneDNN counts the holes
    op->pad_begin = a.pad_begin;
    op->pad_end = a.pad_end;
  }
  /// The operation on each of these sources, and then on the other arguments, in turn.
  std::vector<OpDesc> OnEach(OpDesc op, const std::vector<OpArg>& sources,
                             const std::vector<OpArg>& others = {}) const {
    std::vector<OpDesc> result;
    for (const OpArg& source : sources) {
      op.args = {source};
      op.args.insert(op.args.end(), others.begin(), others.end());
      op.args.push_back(OutAny());
      result.push_back(op);
    }
    return result;
  }
  /// The layout of a value if its rows are dense there, else row-major.
  MemoryDesc DenseRows(int value) const {
    const MemoryDesc& md = lowering.Layout(value);
    const bool is_dense =
        IsStrided(md) && (md.get_strides().back() == 1 || md.get_dims().back() == 1);
    return is_dense ? md : Dense(lowering.shape(value), DType::kFloat32);
  }
  /// The layout that the caller wants of the result if its rows are dense there, else this one.
  MemoryDesc OutRows(const MemoryDesc& usual) const {
    const std::optional<MemoryDesc> wanted = lowering.OutputLayout(output);
    const bool serves = wanted && (wanted->get_strides().back() == 1 || OutShape().back() == 1);
    return serves ? *wanted : usual;
  }
  OpArg OutAny() const { return {DNNL_ARG_DST, output, AnyLayout(OutShape(), OutDType())}; }
  DType DTypeOf(int i) const { return lowering.dtype(In(i)); }

  Lowering& lowering;
  const Node& node;
  const Attrs& a;
  const int output;  // the value to produce
};

/// A kind either describes its primitive, in several ways with the best first, or does its own
/// lowering.
struct KindRow {
  std::vector<OpDesc> (*describe)(const NodeView&) = nullptr;
  void (*lower)(const NodeView&) = nullptr;
  /// Its own lowering together with these post-ops; false if they cannot be done at once.
  bool (*fuse)(const NodeView&, const std::vector<PostOpDesc>&) = nullptr;
  /// Lowers other nodes that do the same faster; false if there are none.
  bool (*rewrite)(const NodeView&) = nullptr;
};

const KindRow& RowOf(Kind kind);

/// oneDNN's algorithm for the `alg` of a node of this kind.
dnnl::algorithm ToDnnl(Kind kind, const std::string& alg);

/// The operation on each element that such a node, or a post-op, does.
Operation OperationOf(Kind kind, const std::string& alg, double alpha = 0, double beta = 0);

// Each behind what it names.
#define KIND(Name, ...) extern const KindRow k##Name##Row;
#include "common/kind_rows.h"
#undef KIND

/// Emits the cheapest of the candidates, a reference implementation if there is nothing better.
/// Throws Error(kUnsupported) if there is none.
inline void EmitOrFail(Lowering& l, const std::vector<OpDesc>& descriptions) {
  if (!l.Emit(descriptions, /*accept_reference=*/true)) l.FailUnsupported();
}

/// A node without attributes and post-ops, for Lowering::LowerInSteps.
Node NewNode(Kind kind, std::vector<int> inputs, int output);

/// `result` = `first` alg `second`, whatever their shapes; used for post-ops as well.
void LowerBinary(Lowering& l, Operation operation, int first, int second, int result);

/// A node that reads a tensor without elements but has a result.
void LowerEmpty(const NodeView& n);

/// Engine::Attend by so many threads.
bool RunAttention(byoc_attention_params params, void* const* data, int threads);

/// A value broadcast to this shape, in memory of its own.
int Expanded(Lowering& l, int value, const Dims& shape);
void ExpandTo(Lowering& l, int from, int to);

}  // namespace tvm_byoc_dnnl
