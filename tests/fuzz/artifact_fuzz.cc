// SPDX-License-Identifier: Apache-2.0
// The readers of saved modules, on the bytes as they are and as the payload of a sound frame:
// nothing random passes a checksum.
#include "common/artifact.h"
#include "common/support/bytes.h"
#include "common/support/error.h"
#include "fuzz.h"

using namespace tvm_byoc_dnnl;  // NOLINT: a test

namespace {

constexpr std::string_view kWriter = "fuzz";

/// What was accepted from this writer is what Save writes.
template <typename Read>
void LoadAndSave(std::string_view bytes, const Read& read) {
  try {
    const std::string again = Save(read(bytes), kWriter);
    fuzz::Require(bytes.find(kWriter) != 20 || again == bytes,
                  "accepted bytes that Save does not write");
  } catch (const Error& error) {
    fuzz::Require(error.kind() == ErrorKind::kArtifact, error.what());
  }
}

std::string Framed(std::string_view kind, std::string_view content) {
  std::string payload;
  AppendString(kind, &payload);
  payload += content;
  std::string bytes = "TVMBYOCD";
  Append<uint32_t>(kFormatVersion, &bytes);
  AppendString(kWriter, &bytes);
  AppendString(payload, &bytes);
  Append<uint64_t>(Xxh64(bytes), &bytes);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::Text(data, size);
  LoadAndSave(text, Load);
  LoadAndSave(text, LoadWeightsTable);
  LoadAndSave(Framed("region", text), Load);
  LoadAndSave(Framed("weights", text), LoadWeightsTable);
  return 0;
}
