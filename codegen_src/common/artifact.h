// SPDX-License-Identifier: Apache-2.0
// The bytes of saved modules. All have one frame: magic, format version, who wrote it, length,
// payload, XXH64.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tvm_byoc_dnnl {

/// Raised whenever a payload changes. The frame up to the writer's name never does, so that every
/// version can say who wrote a file that it cannot read.
constexpr uint32_t kFormatVersion = 3;

/// The engine of files that name none.
constexpr const char* kFirstEngine = "dnnl";

/// A region: everything but its constants.
struct Artifact {
  std::string symbol;
  std::string graph_json;
  std::vector<std::string> const_names;
  std::string isa = {};  // on which it was built, by the engine's name; for messages
  std::string engine = kFirstEngine;
};

/// `writer` names the versions that wrote it, for messages.
std::string Save(const Artifact& artifact, std::string_view writer);

/// Throws Error(kArtifact) for anything that Save did not write, whichever bit is wrong.
Artifact Load(std::string_view bytes);

/// Constants of several regions: where each lies in the data that the library exports beside them.
struct WeightsTable {
  struct Entry {
    std::string name;
    uint8_t dtype_code = 0;  // DLPack's
    uint8_t dtype_bits = 0;
    std::vector<int64_t> shape;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t checksum = 0;  // XXH64
  };
  /// The constants of a region, as indices of entries.
  struct Region {
    std::string symbol;
    std::vector<uint32_t> entries;
  };
  /// A function without arguments that returns one entry.
  struct Getter {
    std::string symbol;
    uint32_t entry = 0;
  };
  uint64_t total_bytes = 0;
  std::vector<Entry> entries;
  std::vector<Region> regions;
  std::vector<Getter> getters;

  /// The name of the data: a hash of its content.
  std::string DataSymbol() const;
};

std::string Save(const WeightsTable& table, std::string_view writer);
WeightsTable LoadWeightsTable(std::string_view bytes);

/// A region as bytes that only the library of its namespace reads.
struct Blob {
  std::string symbol;
  std::string compiler;       // the namespace
  std::string compatibility;  // the library that the bytes need, as the vendor describes it
  std::string bytes;
  int64_t results = -1;  // tensors that it fills, behind its arguments; -1: an older file, or TVM's
};

std::string Save(const Blob& blob, std::string_view writer);
Blob LoadBlob(std::string_view bytes);

/// How a model calls its regions (native/program.h), as JSON.
std::string SaveProgram(std::string_view json, std::string_view writer);
std::string LoadProgram(std::string_view bytes);

/// What Save wrote into a file, wherever it lies there; but for blobs, which need their libraries.
struct SavedIn {
  std::vector<std::string_view> programs, regions, weights;
};
void FindSaved(std::string_view file, SavedIn* found);

}  // namespace tvm_byoc_dnnl
