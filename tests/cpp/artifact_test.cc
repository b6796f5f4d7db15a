// SPDX-License-Identifier: Apache-2.0
#include "artifact.h"

#include "check.h"
#include "support/crc32.h"

namespace {

using tvm_byoc_dnnl::Artifact;
using tvm_byoc_dnnl::Crc32;
using tvm_byoc_dnnl::Load;
using tvm_byoc_dnnl::Save;

}  // namespace

TEST(Checksum) {
  CHECK_EQUAL(Crc32("123456789"), 0xCBF43926u);
  CHECK_EQUAL(Crc32(""), 0u);
}

TEST(RoundTrip) {
  for (const Artifact& artifact :
       {Artifact{"f", "{}", {"a", "", "b"}}, Artifact{"", std::string("\0x", 2), {}}}) {
    Artifact loaded = Load(Save(artifact));
    CHECK_EQUAL(loaded.symbol, artifact.symbol);
    CHECK_EQUAL(loaded.graph_json, artifact.graph_json);
    CHECK(loaded.const_names == artifact.const_names);
  }
}

TEST(EveryTruncationAndEveryBit) {
  const std::string bytes = Save({"symbol", "{\"a\":1}", {"c0", "c1"}});
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK_THROWS(kArtifact, "", Load(bytes.substr(0, length)));
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    CHECK_THROWS(kArtifact, "", Load(damaged));
  }
  CHECK_THROWS(kArtifact, "damaged", Load(bytes + "x"));
}
