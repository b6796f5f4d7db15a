// SPDX-License-Identifier: Apache-2.0
#include "common/artifact.h"

#include "check.h"
#include "common/data_object.h"
#include "common/support/bytes.h"

namespace {

using tvm_byoc_dnnl::Artifact;
using tvm_byoc_dnnl::Blob;
using tvm_byoc_dnnl::Load;
using tvm_byoc_dnnl::LoadBlob;
using tvm_byoc_dnnl::LoadWeightsTable;
using tvm_byoc_dnnl::PartOffsets;
using tvm_byoc_dnnl::Save;
using tvm_byoc_dnnl::WeightsTable;
using tvm_byoc_dnnl::Xxh64;

constexpr const char* kWriter = "a test 1.0";

WeightsTable SomeTable() {
  WeightsTable table;
  table.total_bytes = 100;
  table.entries = {{"a", 2, 32, {2, 3}, 0, 24, 0x123456789abcdef0}, {"b", 0, 8, {36}, 64, 36, 1}};
  table.regions = {{"dnnl_0", {1, 0}}, {"dnnl_1", {}}};
  table.getters = {{"weight", 1}};
  return table;
}

/// The same bytes with another format version and a sound checksum.
std::string WithVersion(std::string bytes, char version) {
  bytes[8] = version;
  const uint64_t checksum = Xxh64(bytes.substr(0, bytes.size() - 8));
  for (int i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<char>(checksum >> (8 * i));
  return bytes;
}

}  // namespace

TEST(Checksum) {  // of the algorithm's own description, and for each way through the tail
  CHECK_EQUAL(Xxh64(""), 0xEF46DB3751D8E999u);
  CHECK_EQUAL(Xxh64("a"), 0xD24EC4F1A98C6E5Bu);
  CHECK_EQUAL(Xxh64("abc"), 0x44BC2CF5AD770999u);
  CHECK_EQUAL(Xxh64("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1u);
}

TEST(RoundTrip) {
  for (const Artifact& artifact :
       {Artifact{"f", "{}", {"a", "", "b"}, "avx2"}, Artifact{"", std::string("\0x", 2), {}}}) {
    Artifact loaded = Load(Save(artifact, kWriter));
    CHECK_EQUAL(loaded.symbol, artifact.symbol);
    CHECK_EQUAL(loaded.graph_json, artifact.graph_json);
    CHECK(loaded.const_names == artifact.const_names);
    CHECK_EQUAL(loaded.isa, artifact.isa);
  }
}

TEST(WeightsRoundTrip) {
  const WeightsTable table = SomeTable();
  const WeightsTable loaded = LoadWeightsTable(Save(table, kWriter));
  CHECK_EQUAL(loaded.total_bytes, table.total_bytes);
  CHECK(Save(loaded, kWriter) == Save(table, kWriter));
  CHECK_EQUAL(loaded.regions.size(), 2u);
  CHECK_EQUAL(loaded.regions[0].symbol, "dnnl_0");
  CHECK(loaded.regions[0].entries == table.regions[0].entries);
  CHECK_EQUAL(loaded.getters.at(0).symbol, "weight");
  CHECK_EQUAL(loaded.getters.at(0).entry, 1u);
  CHECK_EQUAL(loaded.DataSymbol(), table.DataSymbol());
}

TEST(BlobRoundTrip) {
  const Blob blob{"acme_0", "acme", "acme 1.2", std::string("\0x", 2), 3};
  const std::string bytes = Save(blob, kWriter);
  const Blob loaded = LoadBlob(bytes);
  CHECK_EQUAL(loaded.symbol, blob.symbol);
  CHECK_EQUAL(loaded.compiler, blob.compiler);
  CHECK_EQUAL(loaded.compatibility, blob.compatibility);
  CHECK_EQUAL(loaded.bytes, blob.bytes);
  CHECK_EQUAL(loaded.results, 3);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    CHECK_THROWS(kArtifact, "", LoadBlob(damaged));
  }
  CHECK_THROWS(kArtifact, "is a \"blob\", expected a \"region\"", Load(bytes));
}

TEST(DataIsNamedByItsContent) {
  WeightsTable other = SomeTable();
  other.entries[1].checksum = 2;
  CHECK(other.DataSymbol() != SomeTable().DataSymbol());
}

TEST(EveryTruncationAndEveryBit) {
  const std::string region = Save(Artifact{"symbol", "{\"a\":1}", {"c0", "c1"}}, kWriter);
  const std::string weights = Save(SomeTable(), kWriter);
  auto load = [&](const std::string& bytes, bool is_region) {
    if (is_region) {
      Load(bytes);
    } else {
      LoadWeightsTable(bytes);
    }
  };
  for (bool is_region : {true, false}) {
    const std::string& bytes = is_region ? region : weights;
    for (size_t length = 0; length < bytes.size(); ++length) {
      CHECK_THROWS(kArtifact, "", load(bytes.substr(0, length), is_region));
    }
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string damaged = bytes;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      CHECK_THROWS(kArtifact, "", load(damaged, is_region));
    }
    CHECK_THROWS(kArtifact, "damaged", load(bytes + "x", is_region));
  }
  CHECK_THROWS(kArtifact, "is a \"weights\", expected a \"region\"", Load(weights));
  CHECK_THROWS(kArtifact, "is a \"region\", expected a \"weights\"", LoadWeightsTable(region));
}

TEST(OtherVersionsSayWhoWroteThem) {
  const std::string bytes = Save(Artifact{"symbol", "{}", {}}, kWriter);
  CHECK_THROWS(kArtifact, "format version 9 (written by a test 1.0), this library reads version 3",
               Load(WithVersion(bytes, 9)));
  CHECK_THROWS(kArtifact, "format version 1 (written by a preview)", Load(WithVersion(bytes, 1)));
}

TEST(WhatATableRefersToMustBeThere) {
  WeightsTable beyond = SomeTable();
  beyond.entries[1].bytes = 37;
  CHECK_THROWS(kArtifact, "constant \"b\" lies beyond the 100 bytes",
               LoadWeightsTable(Save(beyond, kWriter)));
  for (auto shape : {std::vector<int64_t>{37}, {-36, -1}, {int64_t{1} << 62, 36}, {}}) {
    WeightsTable larger = SomeTable();  // a tensor of it would read what is not its own
    larger.entries[1].shape = shape;
    CHECK_THROWS(kArtifact, "8 bits does not have 36 bytes",
                 LoadWeightsTable(Save(larger, kWriter)));
  }
  WeightsTable askew = SomeTable();
  askew.entries[0].offset = 4;
  CHECK_THROWS(kArtifact, "24 bytes at 4", LoadWeightsTable(Save(askew, kWriter)));
  WeightsTable missing = SomeTable();
  missing.getters[0].entry = 2;
  CHECK_THROWS(kArtifact, "constant 2 of 2", LoadWeightsTable(Save(missing, kWriter)));
}

TEST(PartsAreAligned) {
  CHECK(PartOffsets({24, 1, 64, 36}) == (std::vector<uint64_t>{0, 64, 128, 192, 228}));
  CHECK(PartOffsets({}) == std::vector<uint64_t>{0});
}
