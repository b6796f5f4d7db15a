// SPDX-License-Identifier: Apache-2.0
// Decisions about tensors and memory that need no library: which is constant, its last use, which
// may be written straight into the caller's outputs or into the result of a concat, and the place
// of each buffer in the arena.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "common/graph.h"

namespace tvm_byoc_dnnl {

constexpr int64_t kAlignment = 64;
constexpr int kNeverDies = std::numeric_limits<int>::max();

/// Whose memory a buffer is.
enum class Home : uint8_t {
  kArena,     // ours, per call: has an offset
  kInput,     // the caller's, read in place; index = argument
  kOutput,    // the caller's, written in place; index = output
  kConstant,  // as the host gave it; index = constant
  kPacked,    // computed from constants once, at initialisation
};

struct Buffer {
  Home home = Home::kArena;
  int index = -1;
  int64_t bytes = 0;
  int64_t offset = 0;  // in the arena, once placed
  int alias = -1;      // of an input: the output that is written over it
};

/// Per tensor: whether it depends on constants only.
std::vector<bool> FindConstants(const Graph& graph);

/// Per tensor: the last node that reads it (-1: none), kNeverDies for the graph's outputs.
std::vector<int> FindLastUses(const Graph& graph);

/// Per tensor: how often nodes and the graph's outputs read it.
std::vector<int> CountUses(const Graph& graph);

/// A place in a caller's output that a tensor may be written to, as strides in elements.
struct Destination {
  int output = -1;
  Dims strides;
};

/// Per tensor: where it is (or is a view of) an output. Each output is promised once, to the
/// earliest tensor in the chain of reshapes and permutes that ends in it.
std::vector<std::optional<Destination>> FindDestinations(const Graph& graph, const Shapes& shapes);

/// The channels of a concat's result that a tensor becomes.
struct Slice {
  int whole = -1;  // the result
  int64_t first_channel = 0;
};

/// Per tensor: where one concat of channels (axis 1) reads it, once, and nothing else does.
std::vector<std::optional<Slice>> FindSlices(const Graph& graph, const Shapes& shapes);

/// Row-major strides in elements; dims of 0 count as 1.
Dims DenseStrides(const Dims& shape);

/// Places the arena's buffers that `steps` touch (lists of buffer numbers, in order of execution):
/// two whose lifetimes meet never overlap. Greedy by size, best fit. Returns the arena's size.
/// Throws Error(kUnsupported) beyond kMaxBytes.
int64_t PlaceBuffers(const std::vector<std::vector<int>>& steps, std::vector<Buffer>* buffers);

}  // namespace tvm_byoc_dnnl
