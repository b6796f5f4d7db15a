// SPDX-License-Identifier: Apache-2.0
#include "artifact.h"

#include <cstdint>

#include "support/crc32.h"
#include "support/error.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr std::string_view kMagic = "TVMBYOCD";
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kHeaderBytes = 8 + 4 + 8;  // magic, version, payload length
constexpr size_t kChecksumBytes = 4;        // of all that stands before it

// Little-endian whatever the machine.
template <typename Integer>
void Append(Integer value, std::string* out) {
  for (size_t i = 0; i < sizeof(value); ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Integer>
  Integer Read() {
    std::string_view raw = Take(sizeof(Integer));
    Integer value = 0;
    for (size_t i = 0; i < raw.size(); ++i) {
      value |= static_cast<Integer>(static_cast<uint8_t>(raw[i])) << (8 * i);
    }
    return value;
  }

  std::string ReadString() { return std::string(Take(Read<uint64_t>())); }

  bool AtEnd() const { return bytes_.empty(); }

 private:
  std::string_view Take(uint64_t count) {
    if (count > bytes_.size()) {
      Fail(ErrorKind::kArtifact, "the saved module is damaged: it ends too early");
    }
    std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
};

void AppendString(const std::string& text, std::string* out) {
  Append<uint64_t>(text.size(), out);
  *out += text;
}

}  // namespace

std::string Save(const Artifact& artifact) {
  std::string payload;
  AppendString(artifact.symbol, &payload);
  AppendString(artifact.graph_json, &payload);
  Append<uint64_t>(artifact.const_names.size(), &payload);
  for (const std::string& name : artifact.const_names) AppendString(name, &payload);

  std::string bytes(kMagic);
  Append<uint32_t>(kFormatVersion, &bytes);
  Append<uint64_t>(payload.size(), &bytes);
  bytes += payload;
  Append<uint32_t>(Crc32(bytes), &bytes);
  return bytes;
}

Artifact Load(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    Fail(ErrorKind::kArtifact, "not a saved dnnl_byoc module: ", bytes.size(),
         " bytes without its magic number");
  }
  ByteReader reader(bytes.substr(kMagic.size()));
  uint32_t version = reader.Read<uint32_t>();
  if (version != kFormatVersion) {
    Fail(ErrorKind::kArtifact, "the saved module has format version ", version,
         ", this library reads version ", kFormatVersion,
         ": use the version of tvm-byoc-dnnl that built the model, or build it again");
  }
  uint64_t length = reader.Read<uint64_t>();
  uint64_t rest = bytes.size() - kHeaderBytes;
  if (rest < kChecksumBytes || length != rest - kChecksumBytes) {
    Fail(ErrorKind::kArtifact, "the saved module is damaged: got ", rest,
         " bytes after the header, expected ", length, " + ", kChecksumBytes);
  }
  size_t checked = bytes.size() - kChecksumBytes;
  uint32_t expected = ByteReader(bytes.substr(checked)).Read<uint32_t>();
  uint32_t got = Crc32(bytes.substr(0, checked));
  if (got != expected) {
    Fail(ErrorKind::kArtifact, "the saved module is damaged: checksum ", got, ", expected ",
         expected);
  }
  ByteReader payload(bytes.substr(kHeaderBytes, length));
  Artifact artifact;
  artifact.symbol = payload.ReadString();
  artifact.graph_json = payload.ReadString();
  uint64_t count = payload.Read<uint64_t>();
  for (uint64_t i = 0; i < count; ++i) artifact.const_names.push_back(payload.ReadString());
  if (!payload.AtEnd()) Fail(ErrorKind::kArtifact, "the saved module is damaged: surplus bytes");
  return artifact;
}

}  // namespace tvm_byoc_dnnl
