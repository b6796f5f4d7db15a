// SPDX-License-Identifier: Apache-2.0
#include "common/memory_plan.h"

#include <algorithm>

#include "check.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

Graph Make(int tensors) {
  Graph graph;
  graph.tensors.resize(tensors);
  graph.inputs.push_back({0, -1, {}});
  return graph;
}

Node MakeNode(Kind kind, std::vector<int> inputs, int output) {
  Node node;
  node.kind = kind;
  node.own_inputs = static_cast<int>(inputs.size());
  node.inputs = std::move(inputs);
  node.output = output;
  return node;
}

bool Overlap(const Buffer& a, const Buffer& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

std::vector<Buffer> Arena(const std::vector<int64_t>& sizes) {
  std::vector<Buffer> buffers;
  for (int64_t size : sizes) buffers.push_back({Home::kArena, -1, size, -1});
  return buffers;
}

}  // namespace

TEST(ConstantsAndLastUses) {
  Graph graph = Make(5);
  graph.constants.push_back({1, "c"});
  graph.nodes = {MakeNode(Kind::kEltwise, {1}, 2), MakeNode(Kind::kBinary, {0, 2}, 3),
                 MakeNode(Kind::kBinary, {3, 0}, 4)};
  graph.outputs = {4};
  CHECK_EQUAL(Join(FindConstants(graph)), "[0, 1, 1, 0, 0]");
  CHECK_EQUAL(Join(FindLastUses(graph)), Join(std::vector<int>{2, 0, 1, 2, kNeverDies}));
}

TEST(DestinationsGoThroughReshapesAndPermutes) {
  Graph graph = Make(4);
  graph.nodes = {MakeNode(Kind::kEltwise, {0}, 1), MakeNode(Kind::kReshape, {1}, 2),
                 MakeNode(Kind::kPermute, {2}, 3)};
  graph.nodes[2].attrs.axes = {1, 0};
  graph.outputs = {3};
  auto found = FindDestinations(graph, {{6}, {6}, {2, 3}, {3, 2}});
  CHECK_EQUAL(Join(found[3]->strides), "[2, 1]");
  CHECK_EQUAL(Join(found[2]->strides), "[1, 2]");
  CHECK(!found[1]);  // a reshape of a transposed tensor is not a view
  graph.nodes[2] = MakeNode(Kind::kReshape, {2}, 3);
  found = FindDestinations(graph, {{6}, {6}, {2, 3}, {3, 2}});
  CHECK_EQUAL(Join(found[1]->strides), "[1]");
}

TEST(DestinationsStopAtPostOpsAndConstants) {
  Graph graph = Make(3);
  graph.nodes = {MakeNode(Kind::kEltwise, {0}, 1), MakeNode(Kind::kReshape, {1}, 2)};
  graph.nodes[1].post_ops.resize(1);
  graph.outputs = {2};
  CHECK(!FindDestinations(graph, {{6}, {6}, {6}})[1]);
  graph.nodes[1].post_ops.clear();
  CHECK(FindDestinations(graph, {{6}, {6}, {6}})[1].has_value());
  graph.constants.push_back({0, "c"});
  CHECK(!FindDestinations(graph, {{6}, {6}, {6}})[1]);
}

TEST(SlicesOfConcats) {
  Graph graph = Make(6);
  graph.nodes = {MakeNode(Kind::kEltwise, {0}, 1), MakeNode(Kind::kEltwise, {0}, 2),
                 MakeNode(Kind::kConcat, {1, 2, 3}, 4), MakeNode(Kind::kEltwise, {4}, 5)};
  Node& concat = graph.nodes[2];
  concat.attrs.axis = 1;
  graph.outputs = {5};
  const Shapes shapes = {{2, 3, 4}, {2, 3, 4}, {2, 5, 4}, {2, 1, 4}, {2, 9, 4}, {2, 9, 4}};
  auto found = FindSlices(graph, shapes);
  CHECK(!found[0] && !found[4] && !found[5]);
  for (auto [tensor, first] : std::vector<std::pair<int, int64_t>>{{1, 0}, {2, 3}, {3, 8}}) {
    CHECK_EQUAL(found[tensor]->whole, 4);
    CHECK_EQUAL(found[tensor]->first_channel, first);
  }
  graph.outputs = {5, 1};  // another reader
  found = FindSlices(graph, shapes);
  CHECK(!found[1] && found[2] && found[3]);
  graph.outputs = {5};
  concat.inputs = {1, 2, 2};  // one source twice
  CHECK(!FindSlices(graph, shapes)[2]);
  concat.inputs = {1, 2, 3};
  concat.attrs.axis = 2;
  CHECK(!FindSlices(graph, shapes)[1]);
  concat.attrs.axis = 1;
  concat.post_ops.resize(1);
  CHECK(!FindSlices(graph, shapes)[1]);
  concat.post_ops.clear();
  concat.output_scaling.scale = 0;
  CHECK(!FindSlices(graph, shapes)[1]);
}

TEST(BuffersThatMeetDoNotOverlap) {
  // 0 lives through all; 1 and 3 never meet.
  std::vector<Buffer> buffers = Arena({100, 1000, 64, 900});
  int64_t bytes = PlaceBuffers({{0, 1}, {1, 2}, {2, 3}, {3, 0}}, &buffers);
  CHECK(!Overlap(buffers[0], buffers[1]));
  CHECK(!Overlap(buffers[1], buffers[2]));
  CHECK(!Overlap(buffers[2], buffers[3]));
  CHECK(!Overlap(buffers[0], buffers[3]));
  CHECK(Overlap(buffers[1], buffers[3]));
  CHECK_EQUAL(bytes, 1024 + 128 + 64);
  for (const Buffer& buffer : buffers) CHECK_EQUAL(buffer.offset % kAlignment, 0);
}

TEST(TheSmallestGapThatFitsIsTaken) {
  // 0..4 lie one after the other; when 5 comes, 1 and 3 are dead: gaps of 448 and of 320.
  std::vector<Buffer> buffers = Arena({512, 448, 384, 320, 256, 128});
  PlaceBuffers({{0, 1, 2, 3, 4}, {0, 2, 4, 5}}, &buffers);
  CHECK_EQUAL(buffers[5].offset, buffers[3].offset);
}

TEST(OnlyTheArenaIsPlaced) {
  std::vector<Buffer> buffers = Arena({64, 64});
  buffers[1].home = Home::kOutput;
  CHECK_EQUAL(PlaceBuffers({{0, 1}}, &buffers), 64);
  CHECK_EQUAL(buffers[1].offset, -1);
  buffers = Arena({64});
  CHECK_EQUAL(PlaceBuffers({}, &buffers), 0);  // nobody touches it
}

TEST(AnArenaBeyondAllMemoryIsRefused) {
  std::vector<Buffer> buffers = Arena({kMaxBytes / 2, kMaxBytes / 2, 64});
  CHECK_THROWS(kUnsupported, "2^62", PlaceBuffers({{0, 1, 2}}, &buffers));
  buffers = Arena({-1});  // a size that did not fit
  CHECK_THROWS(kUnsupported, "2^62", PlaceBuffers({{0}}, &buffers));
}

TEST(RandomPlansNeverOverlap) {
  uint32_t state = 1;
  auto random = [&](uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
  };
  for (int round = 0; round < 50; ++round) {
    const int count = 2 + static_cast<int>(random(30));
    std::vector<Buffer> buffers;
    std::vector<std::pair<int, int>> lifetimes;
    std::vector<std::vector<int>> steps(20);
    for (int i = 0; i < count; ++i) {
      buffers.push_back({Home::kArena, -1, static_cast<int64_t>(random(5000)), -1});
      int first = static_cast<int>(random(20));
      int last = first + static_cast<int>(random(static_cast<uint32_t>(20 - first)));
      lifetimes.emplace_back(first, last);
      steps[first].push_back(i);
      steps[last].push_back(i);
    }
    int64_t bytes = PlaceBuffers(steps, &buffers);
    for (int i = 0; i < count; ++i) {
      CHECK(buffers[i].offset >= 0 && buffers[i].offset + buffers[i].bytes <= bytes);
      for (int j = 0; j < i; ++j) {
        bool meet =
            lifetimes[i].first <= lifetimes[j].second && lifetimes[j].first <= lifetimes[i].second;
        CHECK(!meet || !Overlap(buffers[i], buffers[j]));
      }
    }
  }
}
