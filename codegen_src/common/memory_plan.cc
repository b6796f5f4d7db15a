// SPDX-License-Identifier: Apache-2.0
#include "common/memory_plan.h"

#include <algorithm>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {

std::vector<bool> FindConstants(const Graph& graph) {
  std::vector<bool> constant(graph.tensors.size(), false);
  for (const Constant& c : graph.constants) constant[c.tensor] = true;
  for (const Node& node : graph.nodes) {
    const std::vector<int> reads = node.Reads();
    constant[node.output] =
        std::all_of(reads.begin(), reads.end(), [&](int tensor) { return constant[tensor]; });
  }
  return constant;
}

std::vector<int> FindLastUses(const Graph& graph) {
  std::vector<int> last(graph.tensors.size(), -1);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (int tensor : graph.nodes[i].Reads()) last[tensor] = static_cast<int>(i);
  }
  for (int output : graph.outputs) last[output] = kNeverDies;
  return last;
}

std::vector<int> CountUses(const Graph& graph) {
  std::vector<int> uses(graph.tensors.size(), 0);
  for (int output : graph.outputs) ++uses[output];
  for (const Node& node : graph.nodes) {
    for (int tensor : node.Reads()) ++uses[tensor];
  }
  return uses;
}

Dims DenseStrides(const Dims& shape) {
  Dims strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

std::vector<std::optional<Destination>> FindDestinations(const Graph& graph, const Shapes& shapes) {
  std::vector<std::optional<Destination>> found(graph.tensors.size());
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    int tensor = graph.outputs[i];
    if (!found[tensor]) found[tensor] = {static_cast<int>(i), DenseStrides(shapes[tensor])};
  }
  // Only nodes write; a constant's value is computed at initialisation, when there is no caller.
  std::vector<bool> constant = FindConstants(graph);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    const auto& out = found[node.output];
    if (!out || !node.post_ops.empty() || constant[node.output]) continue;
    int input = node.inputs[0];
    if (found[input]) continue;
    if (node.kind == Kind::kPermute) {
      Dims strides(out->strides.size());
      for (size_t axis = 0; axis < strides.size(); ++axis) {
        strides[node.attrs.axes[axis]] = out->strides[axis];
      }
      found[input] = {out->output, strides};
    } else if (node.kind == Kind::kReshape && out->strides == DenseStrides(shapes[node.output])) {
      found[input] = {out->output, DenseStrides(shapes[input])};
    }
  }
  return found;
}

std::vector<std::optional<Slice>> FindSlices(const Graph& graph, const Shapes& shapes) {
  const std::vector<int> uses = CountUses(graph);
  std::vector<std::optional<Slice>> found(graph.tensors.size());
  for (const Node& node : graph.nodes) {
    const bool joins_channels = node.kind == Kind::kConcat && node.attrs.axis == 1;
    const bool is_plain = node.post_ops.empty() && node.Reads() == node.inputs;
    if (!joins_channels || !is_plain) continue;
    int64_t first = 0;
    for (int input : node.inputs) {
      if (uses[input] == 1) found[input] = {node.output, first};
      first += shapes[input][1];
    }
  }
  return found;
}

int64_t PlaceBuffers(const std::vector<std::vector<int>>& steps, std::vector<Buffer>* buffers) {
  struct Lifetime {
    int first = -1, last = -1;
    bool Meets(const Lifetime& other) const { return first <= other.last && other.first <= last; }
  };
  std::vector<Lifetime> lifetimes(buffers->size());
  for (size_t step = 0; step < steps.size(); ++step) {
    for (int buffer : steps[step]) {
      Lifetime& lifetime = lifetimes[buffer];
      if (lifetime.first < 0) lifetime.first = static_cast<int>(step);
      lifetime.last = static_cast<int>(step);
    }
  }
  std::vector<int> order;
  for (size_t i = 0; i < buffers->size(); ++i) {
    if ((*buffers)[i].home == Home::kArena && lifetimes[i].first >= 0) {
      order.push_back(static_cast<int>(i));
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int x, int y) { return (*buffers)[x].bytes > (*buffers)[y].bytes; });

  auto rounded = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  int64_t arena = 0;
  std::vector<int> placed;  // sorted by offset
  for (int i : order) {
    Buffer& buffer = (*buffers)[i];
    if (buffer.bytes < 0 || buffer.bytes > kMaxBytes - arena - kAlignment) {
      Fail(ErrorKind::kUnsupported, "its intermediate tensors need more than 2^62 bytes");
    }
    int64_t size = rounded(buffer.bytes);
    int64_t best = -1, best_room = std::numeric_limits<int64_t>::max(), end = 0;
    for (int j : placed) {
      if (!lifetimes[i].Meets(lifetimes[j])) continue;
      const Buffer& other = (*buffers)[j];
      int64_t room = other.offset - end;
      if (room >= size && room < best_room) {
        best = end;
        best_room = room;
      }
      end = std::max(end, other.offset + rounded(other.bytes));
    }
    buffer.offset = best >= 0 ? best : end;
    arena = std::max(arena, buffer.offset + size);
    auto position = std::upper_bound(placed.begin(), placed.end(), i, [&](int x, int y) {
      return (*buffers)[x].offset < (*buffers)[y].offset;
    });
    placed.insert(position, i);
  }
  return arena;
}

}  // namespace tvm_byoc_dnnl
