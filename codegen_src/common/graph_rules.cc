// SPDX-License-Identifier: Apache-2.0
// Checks nodes by the rules of their kinds (kind_rows.h); the helpers that the rules share.
#include <algorithm>

#include "common/graph.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr int64_t kMaxAttr = int64_t{1} << 31;  // strides, pads ... : engines may compute with int

bool Same(int64_t a, int64_t b) { return a == b || a == kUnknownDim || b == kUnknownDim; }

/// One node under inspection; the helpers throw with the node's name.
class Checker {
 public:
  Checker(const Graph& graph, const Node& node, const Shapes& shapes)
      : graph_(graph), node_(node), shapes_(shapes), a(node.attrs) {}

  const Dims& In(int i) const { return shapes_[node_.inputs[i]]; }
  const Dims& Out() const { return shapes_[node_.output]; }
  int64_t Rank() const { return static_cast<int64_t>(In(0).size()); }
  int64_t SpatialRank() const { return Rank() - 2; }
  bool HasBias() const { return node_.own_inputs == 3; }
  int OwnInputs() const { return node_.own_inputs; }

  template <typename... Parts>
  [[noreturn]] void Fault(Parts&&... parts) const {
    Fail(ErrorKind::kGraph, DescribeNode(graph_, node_, shapes_), ": ",
         std::forward<Parts>(parts)...);
  }

  void Need(bool condition, const char* what) const {
    if (!condition) Fault("expected ", what);
  }

  void NeedShape(const char* what, const Dims& got, const Dims& expected) const {
    bool same = got.size() == expected.size();
    for (size_t i = 0; same && i < got.size(); ++i) same = Same(got[i], expected[i]);
    if (!same) Fault("the shape of the ", what, " is ", Join(got), ", expected ", Join(expected));
  }

  void NeedOut(const Dims& expected) const { NeedShape("output", Out(), expected); }

  void NeedAxis(int64_t axis) const {
    if (axis < 0 || axis >= Rank()) Fault("axis ", axis, " is not in [0, ", Rank(), ")");
  }

  void NeedList(const char* name, const Dims& list, size_t length, int64_t least) const {
    if (list.size() != length) {
      Fault("`", name, "` has ", list.size(), " numbers, expected ", length);
    }
    for (int64_t number : list) {
      if (number < least || number >= kMaxAttr) {
        Fault("`", name, "` ", Join(list), " has a number out of [", least, ", 2^31)");
      }
    }
  }

  DType InDType(int i) const { return graph_.tensors[node_.inputs[i]].dtype; }
  DType OutDType() const { return graph_.tensors[node_.output].dtype; }

  /// For kinds that move elements as they are stored: the first `count` inputs, or all of them.
  void NeedSameElements(int count = kMany) const {
    for (int i = 0; i < std::min(count, node_.own_inputs); ++i) {
      if (InDType(i) != OutDType()) Fault("the dtypes of inputs and output differ");
      if (!node_.scalings[i].IsNone())
        Fault("it moves elements as they are: input ", i, " is scaled");
    }
    if (!node_.output_scaling.IsNone())
      Fault("it moves elements as they are: its output is scaled");
  }

  /// Dtypes and shapes of the scale and zero point of a tensor.
  void NeedScaling(const std::string& what, const Scaling& scaling, int tensor) const {
    const Dims& shape = shapes_[tensor];
    const auto rank = static_cast<int64_t>(shape.size());
    if (scaling.axis >= rank)
      Fault("axis ", scaling.axis, " of the ", what, " is not in [0, ", rank, ")");
    int64_t channels = scaling.axis < 0 ? 1 : shape[scaling.axis];
    // Axis 1 of grouped weights stands for the channels of all groups.
    const bool has_groups =
        (node_.kind == Kind::kConvolution || node_.kind == Kind::kDeconvolution) &&
        node_.inputs[1] == tensor && shape.size() > In(0).size();
    if (has_groups && scaling.axis == 1 && channels >= 0 && shape[0] >= 0)
      channels = Product(channels, shape[0]);
    auto need = [&](const char* name, int id, DType dtype) {
      if (id < 0) return;
      const Dims& dims = shapes_[id];
      if (graph_.tensors[id].dtype != dtype || dims.size() != 1 ||
          (dims[0] != 1 && !Same(dims[0], channels))) {
        Fault("the ", name, " of the ", what, " is ", Name(graph_.tensors[id].dtype), Join(dims),
              ", expected ", Name(dtype), "[1]",
              scaling.axis < 0 ? std::string() : Cat(" or [", channels, "]"));
      }
    };
    need("scale", scaling.scale, DType::kFloat32);
    need("zero_point", scaling.zero_point, DType::kInt32);
    const DType stored = graph_.tensors[tensor].dtype;
    if (scaling.zero_point >= 0 && stored != DType::kInt8 && stored != DType::kUInt8 &&
        stored != DType::kInt32) {
      Fault("the ", what, " has a zero point and is ", Name(stored),
            ", expected int8, uint8 or int32");
    }
  }

  // Sizes may be as large as 2^62, so numbers that are computed from them may overflow.
  int64_t Sum(int64_t x, int64_t y) const {
    int64_t result = 0;
    if (__builtin_add_overflow(x, y, &result)) Fault("its sizes overflow: ", x, " + ", y);
    return result;
  }
  int64_t Product(int64_t x, int64_t y) const {
    int64_t result = 0;
    if (__builtin_mul_overflow(x, y, &result)) Fault("its sizes overflow: ", x, " * ", y);
    return result;
  }

  /// `from` broadcasts to `to`: equal ranks, each axis equal or 1.
  void NeedBroadcast(const char* what, const Dims& from, const Dims& to) const {
    bool ok = from.size() == to.size();
    for (size_t i = 0; ok && i < from.size(); ++i) ok = from[i] == 1 || Same(from[i], to[i]);
    if (!ok) Fault("the ", what, " ", Join(from), " does not broadcast to ", Join(to));
  }

 private:
  const Graph& graph_;
  const Node& node_;
  const Shapes& shapes_;

 public:
  const Attrs& a;
};

Dims BroadcastShape(const Checker& c, const Dims& x, const Dims& y, size_t axes) {
  Dims result;
  for (size_t i = 0; i < axes; ++i) {
    if (x[i] != 1 && y[i] != 1 && !Same(x[i], y[i])) {
      c.Fault("axis ", i, " is ", x[i], " and ", y[i], ", expected equal or 1");
    }
    result.push_back(x[i] == 1 ? y[i] : y[i] == 1 ? x[i] : std::max(x[i], y[i]));
  }
  return result;
}

void NeedWindowRank(const Checker& c) {
  c.Need(c.Rank() >= 3 && c.Rank() <= 5, "a source of rank 3, 4 or 5 (N C [D] [H] W)");
}

// Attributes shared by convolution, deconvolution and pooling. A negative end padding of a
// deconvolution is the frameworks' output padding; a convolution or pooling may leave rows unread
// but not step back.
void NeedWindow(const Checker& c, int64_t least_end) {
  size_t spatial = static_cast<size_t>(c.SpatialRank());
  c.NeedList("strides", c.a.strides, spatial, 1);
  c.NeedList("dilations", c.a.dilations, spatial, 1);
  c.NeedList("pad_begin", c.a.pad_begin, spatial, 0);
  c.NeedList("pad_end", c.a.pad_end, spatial, least_end);
}

int64_t Extent(const Checker& c, int64_t kernel, size_t i) {
  return c.Sum(c.Product(kernel - 1, c.a.dilations[i]), 1);
}

int64_t WindowOut(const Checker& c, int64_t in, int64_t kernel, size_t i) {
  if (in == kUnknownDim || kernel == kUnknownDim) return kUnknownDim;
  int64_t room = in + c.a.pad_begin[i] + c.a.pad_end[i] - Extent(c, kernel, i);
  if (room < 0 && in > 0) {
    c.Fault("the window of ", Extent(c, kernel, i), " is larger than the padded axis ", i + 2);
  }
  return std::max<int64_t>(room / c.a.strides[i] + 1, 0);
}

int64_t TransposedOut(const Checker& c, int64_t in, int64_t kernel, size_t i) {
  if (in == kUnknownDim || kernel == kUnknownDim) return kUnknownDim;
  int64_t full = c.Sum(c.Product(in - 1, c.a.strides[i]), Extent(c, kernel, i));
  return c.Sum(full, -c.a.pad_begin[i] - c.a.pad_end[i]);
}

template <int64_t (*OutDim)(const Checker&, int64_t, int64_t, size_t)>
void CheckWindows(const Checker& c, int64_t least_end) {
  NeedWindowRank(c);
  NeedWindow(c, least_end);
  const Dims& src = c.In(0);
  const Dims& weights = c.In(1);
  size_t rank = src.size();
  bool grouped = weights.size() == rank + 1;
  c.Need(grouped || weights.size() == rank, "weights [G,]O,I,k…");
  int64_t groups = grouped ? weights[0] : 1;
  int64_t out_per_group = weights[grouped];
  int64_t in_per_group = weights[grouped + 1];
  auto times = [](int64_t x, int64_t y) { return x < 0 || y < 0 ? kUnknownDim : x * y; };
  if (!Same(src[1], times(groups, in_per_group))) {
    c.Fault("the source has ", src[1], " channels, the weights take ", groups, " x ", in_per_group);
  }
  Dims expected = {src[0], times(groups, out_per_group)};
  for (size_t i = 0; i + 2 < rank; ++i) {
    int64_t kernel = weights[grouped + 2 + i];
    c.Need(kernel != 0, "a kernel of at least 1");
    expected.push_back(OutDim(c, src[i + 2], kernel, i));
  }
  c.NeedOut(expected);
  if (c.HasBias()) c.NeedShape("bias", c.In(2), {expected[1]});
}

// Lists of a recurrent layer. The words that are there stand in the order of `all`.
void NeedWords(const Checker& c, const char* name, const std::vector<std::string>& words,
               const char* all) {
  std::vector<std::string> known = Words(all);
  auto next = known.begin();
  for (const std::string& word : words) {
    next = std::find(next, known.end(), word);
    if (next == known.end()) {
      c.Fault("`", name, "` has \"", word, "\", expected some of ", all, " in this order");
    }
    ++next;
  }
}

/// What attention and attention over a cache have in common. With heads, each of the keys' serves
/// as many of the queries'. Keys and values may be narrower than float32; `starts` is an input of
/// neither.
void CheckAttention(const Checker& c, int starts) {
  const Dims &query = c.In(0), &key = c.In(1);
  c.Need(c.a.softcap >= 0, "a softcap of 0 or more");
  if (query.size() == 4) {
    c.Need(
        query[1] < 0 || key[1] < 0 || query[1] == key[1] || (key[1] > 0 && query[1] % key[1] == 0),
        "as many heads of queries as of keys, or a multiple of them");
  }
  for (int i = 0; i < c.OwnInputs(); ++i) {
    const DType dtype = c.InDType(i);
    const bool is_narrow =
        dtype == DType::kBFloat16 || dtype == DType::kFloat16 || dtype == DType::kInt8;
    c.Need(i == starts || dtype == DType::kFloat32 || (is_narrow && (i == 1 || i == 2)),
           "inputs float32, keys and values also bfloat16, float16 or int8");
  }
  c.Need(c.OutDType() == DType::kFloat32, "an output float32");
}

void CheckLayer(const Checker& c) {
  const Attrs& a = c.a;
  const bool is_lstm = a.alg == "lstm" || a.alg == "coupled_lstm";
  const int64_t gates = a.alg == "rnn" ? 1 : is_lstm ? 4 : 3;
  const size_t curves = a.alg == "rnn" ? 1 : is_lstm ? 3 : 2;
  const auto count = static_cast<int64_t>(a.directions.size());
  NeedWords(c, "roles", a.roles,
            is_lstm ? "bias peepholes state cell lengths scales" : "bias state lengths scales");
  NeedWords(c, "results", a.results, is_lstm ? "state cell all" : "state all");
  NeedWords(c, "directions", a.directions, "forward reverse");
  c.Need(count > 0 && !a.results.empty(), "directions and results");
  c.Need(c.OwnInputs() == 3 + static_cast<int>(a.roles.size()), "an input for each role");
  const size_t all_curves = curves * a.directions.size();
  c.Need(a.activations.size() == all_curves, "the activations of each direction");
  for (const std::string& name : a.activations) {
    if (!HasWord(kActivations, name)) {
      c.Fault("unknown activation \"", name, "\", expected one of ", kActivations);
    }
  }
  for (const std::vector<double>* numbers : {&a.alphas, &a.betas}) {
    c.Need(numbers->empty() || numbers->size() == all_curves, "a number for each activation");
  }
  c.Need(a.clip >= 0, "a clip of 0 or more");

  const Dims& src = c.In(0);
  const Dims& recurrent = c.In(2);
  c.Need(src.size() == 3 && recurrent.size() == 3,
         "a source [steps, batch, input] and weights of rank 3");
  const int64_t hidden = recurrent[2];
  auto times = [&](int64_t factor) { return hidden < 0 ? kUnknownDim : c.Product(factor, hidden); };
  c.NeedShape("weights of the source", c.In(1), {count, times(gates), src[2]});
  c.NeedShape("weights of the states", recurrent, {count, times(gates), hidden});
  for (size_t i = 0; i < a.roles.size(); ++i) {
    const std::string& role = a.roles[i];
    const Dims expected = role == "bias"        ? Dims{count, times(2 * gates)}
                          : role == "scales"    ? Dims{count, times(2 * gates)}
                          : role == "peepholes" ? Dims{count, times(3)}
                          : role == "lengths"   ? Dims{src[1]}
                                                : Dims{count, src[1], hidden};
    c.NeedShape(role.c_str(), c.In(3 + static_cast<int>(i)), expected);
  }
  const DType stored = c.InDType(1);
  const bool has_scales = !a.roles.empty() && a.roles.back() == "scales";
  c.Need(stored == c.InDType(2) &&
             (has_scales ? stored == DType::kInt8
                         : stored == DType::kFloat32 || stored == DType::kBFloat16),
         "weights of both products float32 or bfloat16, or int8 with scales");
  for (int i = 0; i < c.OwnInputs(); ++i) {
    if (i == 1 || i == 2) continue;
    const bool is_length = i >= 3 && a.roles[static_cast<size_t>(i) - 3] == "lengths";
    const DType expected = is_length ? DType::kInt32 : DType::kFloat32;
    c.Need(c.InDType(i) == expected, "inputs float32, lengths int32");
  }
  c.Need(c.OutDType() == DType::kFloat32, "an output float32");
  int64_t rows = 0;
  for (const std::string& result : a.results) {
    const int64_t more = result == "all" ? src[0] : 1;
    rows = rows < 0 || more < 0 ? kUnknownDim : c.Sum(rows, more);
  }
  c.NeedOut({rows, count, src[1], hidden});
}

#define KIND(Name, text, least, most, attrs, algs, ...) \
  void Check##Name(const Checker& c) __VA_ARGS__
#include "common/kind_rows.h"
#undef KIND

using Rule = void (*)(const Checker&);
constexpr Rule kRules[kKindCount] = {
#define KIND(Name, ...) Check##Name,
#include "common/kind_rows.h"
#undef KIND
};

}  // namespace

void CheckNode(const Graph& graph, const Node& node, const Shapes& shapes) {
  Checker checker(graph, node, shapes);
  kRules[static_cast<int>(node.kind)](checker);
  for (size_t i = 0; i < node.scalings.size(); ++i) {
    if (node.scalings[i].IsNone()) continue;
    if (static_cast<int>(i) >= node.own_inputs) checker.Fault("the operand of a post-op is scaled");
    checker.NeedScaling(Cat("input ", i), node.scalings[i], node.inputs[i]);
  }
  checker.NeedScaling("output", node.output_scaling, node.output);
  for (const PostOp& op : node.post_ops) {
    if (op.binary) {
      checker.NeedBroadcast("operand of a post-op", checker.In(op.input), checker.Out());
    }
  }
}

}  // namespace tvm_byoc_dnnl
