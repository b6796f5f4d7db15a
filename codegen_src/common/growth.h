// SPDX-License-Identifier: Apache-2.0
// Caches that grow: outputs of a graph that are an input with new rows behind it, which attention
// reads. Plans for them serve every length up to a capacity.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/graph.h"

namespace tvm_byoc_dnnl {

/// The caches of a graph, which have one length.
struct Growth {
  struct Cache {
    int input = -1;   // of the graph: the rows so far
    int output = -1;  // of the graph: these and the new ones
    int64_t axis = 0;
    int starts = -1;  // inputs of the graph: where the new rows of each sequence begin, and
    int ends = -1;    // where its own rows end; without them all begin behind the rows so far
  };
  std::vector<int> symbols;  // that the length depends on, among them the number of rows so far
  Dim length;                // with the new ones
  Dim added;                 // what the length is longer than each of the symbols
  std::vector<Cache> caches;
  std::vector<int> masks;  // inputs whose last dim is the length
  std::vector<int> nodes;  // that join rows, and attention that reads as many keys as there are
};

/// Nothing if the graph has no caches, or if anything depends on their length but these and what
/// becomes the bias of their attention.
std::optional<Growth> FindGrowth(const Graph& graph);

/// The rows that a buffer has room for which holds so many.
int64_t CacheCapacity(int64_t rows);

/// The values of the symbols with which the plan for this capacity is made.
std::vector<int64_t> AtCapacity(const Growth& growth, std::vector<int64_t> symbols,
                                int64_t capacity);

}  // namespace tvm_byoc_dnnl
