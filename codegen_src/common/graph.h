// SPDX-License-Identifier: Apache-2.0
// The portable graph (docs/portable_graph.md): shapes and the symbolic dims they may be made of;
// and graphs, parsed, validated, and specialised to static shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/support/json.h"

namespace tvm_byoc_dnnl {

using Dims = std::vector<int64_t>;

/// A dim that is not known before the symbols are bound. Never part of a specialised shape.
constexpr int64_t kUnknownDim = -1;

/// No tensor is larger than this, so that offsets never overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 62;

/// A number, a symbol, or an expression of two dims.
struct Dim {
  enum class Op : uint8_t { kConst, kSymbol, kAdd, kSub, kMul, kFloorDiv, kMod, kMax, kMin };

  Op op = Op::kConst;
  int64_t value = 0;      // the number, or the index of the symbol
  std::vector<Dim> args;  // two for the expressions

  bool operator==(const Dim& other) const {
    return op == other.op && value == other.value && args == other.args;
  }
};

/// Whether `dim` depends on a symbol.
bool Mentions(const Dim& dim, int symbol);

/// Sums and products with their operands in one order, so that equal ones compare equal.
Dim Sorted(Dim dim);

/// The value of `dim`. Throws Error(kInput) on overflow, division by zero and negative results.
int64_t Evaluate(const Dim& dim, const std::vector<int64_t>& symbols);

Dims Evaluate(const std::vector<Dim>& shape, const std::vector<int64_t>& symbols);

/// The numbers of `shape`, with kUnknownDim for all that is not one.
Dims KnownDims(const std::vector<Dim>& shape);

/// Number of elements; kUnknownDim if a dim is. Throws Error(kGraph) beyond kMaxBytes.
int64_t ElementCount(const Dims& shape);

constexpr int kMany = 1 << 20;

constexpr const char* kEltwiseAlgs =
    "relu relu_of_numbers tanh elu square abs sqrt linear soft_relu hardsigmoid mish logistic exp "
    "gelu_tanh gelu_erf swish log clip pow round hardswish";
/// Of recurrent layers, in the order of byoc_activation (kernels/byoc_recurrent_plan.h).
constexpr const char* kActivations =
    "sigmoid tanh relu affine leaky_relu thresholded_relu scaled_tanh hard_sigmoid elu softsign "
    "softplus";
constexpr const char* kBinaryAlgs =
    "add sub mul div max min max_of_numbers min_of_numbers ge gt le lt eq ne";

/// The rows of kind_rows.h.
enum class Kind : uint8_t {
#define KIND(Name, ...) k##Name,
#include "common/kind_rows.h"
#undef KIND
};

constexpr int kKindCount = 0
#define KIND(...) +1
#include "common/kind_rows.h"
#undef KIND
    ;

const char* Name(Kind kind);

constexpr const char* kGraphFormat = "tvm_byoc_dnnl.graph";
constexpr int64_t kGraphVersion = 2;
constexpr int64_t kOldestGraphVersion = 1;  // without scales, aliases and gather

enum class DType : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt32,
  kInt8,
  kUInt8,
  kBool,
  kFloat64,
  kInt64,
};

/// Whether numbers of this dtype are integers of 8 bits.
inline bool IsByte(DType dtype) { return dtype == DType::kInt8 || dtype == DType::kUInt8; }

const char* Name(DType dtype);
int64_t SizeOf(DType dtype);

/// The attributes of all kinds; a kind's own are set, the others keep their defaults.
struct Attrs {
  Dims strides, dilations, pad_begin, pad_end, kernel, axes, begin, steps, table;
  int64_t axis = 0, group_size = 0, local_size = 0, window = 0, scale_bits = 32;
  double alpha = 0, beta = 0, k = 0, p = 0, epsilon = 0, value = 0, scale = 1, softcap = 0;
  double clip = std::numeric_limits<double>::infinity();
  std::vector<double> alphas, betas;
  std::vector<std::string> roles, directions, activations, results;
  std::string alg;
};

struct PostOp {
  bool binary = false;  // else eltwise
  std::string alg;
  double alpha = 0, beta = 0;
  int input = -1;  // binary: position in the node's inputs
};

/// The meaning of stored elements: value = (stored - zero point) * scale. Ids of tensors, or -1.
struct Scaling {
  int scale = -1;       // float32
  int zero_point = -1;  // int32
  int64_t axis = -1;    // along which there is one for each channel; -1: one for all

  bool IsNone() const { return scale < 0 && zero_point < 0; }
};

struct Node {
  Kind kind = Kind::kReorder;
  std::vector<int> inputs;  // tensor ids: the kind's own inputs, then the operands of post-ops
  int own_inputs = 0;       // how many of them are the kind's own
  int output = -1;
  std::vector<Scaling> scalings;  // one for each input
  Scaling output_scaling;
  Attrs attrs;
  std::vector<PostOp> post_ops;
  std::vector<std::string> source;  // operators that it was made from, for reports
  std::vector<int> calls;           // and the positions of these calls in the region

  /// All tensors that it reads: the inputs, then scales and zero points.
  std::vector<int> Reads() const;

  /// Whether any operand or the result has a scale or a zero point.
  bool IsScaled() const { return Reads().size() > inputs.size(); }
};

struct Tensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<Dim> shape;
};

/// An argument of the call: a tensor, or (tensor < 0) a shape.
struct Input {
  int tensor = -1;
  int alias = -1;  // position of the output that is written over it
  std::vector<Dim> shape;
};

struct Constant {
  int tensor = -1;
  std::string name;
};

/// Measured times of what an engine can choose from. A graph carries those of its own workloads.
struct KnownTimes {
  struct Time {
    double seconds = 0;
    double model = 0;  // that the engine expects without a measurement
  };
  std::string setting;  // of the engine: other ones ignore these times
  /// The engine's own name of an operation with its shapes, and the names of its candidates.
  std::map<std::string, std::map<std::string, Time>> workloads;
};

/// {"setting": text, "workloads": {name: {candidate: [seconds, model]}}}. Throws Error(kGraph).
KnownTimes ReadKnownTimes(const json::Value& document);

json::Object WriteKnownTimes(const KnownTimes& times);

struct Graph {
  std::string name;
  std::vector<std::string> symbols;
  std::vector<Tensor> tensors;
  std::vector<Input> inputs;
  std::vector<Constant> constants;
  std::vector<Node> nodes;
  std::vector<int> outputs;
  KnownTimes times;  // may be empty

  bool IsStatic() const { return symbols.empty(); }
  const std::vector<Dim>& InputShape(int input) const {
    return inputs[input].tensor < 0 ? inputs[input].shape : tensors[inputs[input].tensor].shape;
  }
};

/// Parses and validates. Throws Error(kGraph), or Error(kArtifact) for another format version.
Graph ParseGraph(std::string_view json);

/// One shape per tensor.
using Shapes = std::vector<Dims>;

/// The symbols' values, from the shapes of the call's arguments (one per input).
/// Throws Error(kInput) if an argument contradicts the graph.
std::vector<int64_t> BindSymbols(const Graph& graph, const std::vector<Dims>& arguments);

/// All shapes under these symbol values, checked against every node's rule.
Shapes Specialise(const Graph& graph, const std::vector<int64_t>& symbols);

/// Checks shapes and attributes of one node (graph_rules.cc); unknown dims fit everything.
void CheckNode(const Graph& graph, const Node& node, const Shapes& shapes);

/// Checks that the constants of a graph have these names.
void CheckConstants(const Graph& graph, const std::vector<std::string>& names);

/// Checks that what is overwritten by an output is not read afterwards.
void CheckAliases(const Graph& graph);

/// "convolution 'y' (float32 [1, 64, 56, 56])", for messages.
std::string DescribeNode(const Graph& graph, const Node& node, const Shapes& shapes);

/// What a portable graph demands of a kind of nodes.
struct KindSpec {
  const char* name;
  int min_inputs, max_inputs;
  const char* attrs;  // exactly these, separated by spaces; `?` behind one that may be left out
  const char* algs;   // allowed values of `alg`
};

const KindSpec& SpecOf(Kind kind);
std::optional<Kind> FindKind(std::string_view name);
std::optional<DType> FindDType(std::string_view name);

/// Whether this is DLPack's type of such a code and width.
bool IsStoredAs(DType dtype, int dlpack_code, int bits);

/// The member that holds an attribute.
using AttrField = std::variant<Dims Attrs::*, int64_t Attrs::*, double Attrs::*,
                               std::vector<double> Attrs::*, std::vector<std::string> Attrs::*>;

/// The attribute must be one that the table of kinds names (other than `alg`).
const AttrField& FieldOf(const std::string& attr);

}  // namespace tvm_byoc_dnnl
