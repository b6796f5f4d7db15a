// SPDX-License-Identifier: Apache-2.0
// Numbers and strings as bytes, on little-endian machines (byoc_checksum.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "byoc_checksum.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {

template <typename Number>
void Append(Number value, std::string* out) {
  static_assert(std::is_arithmetic_v<Number> || std::is_enum_v<Number>);
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline void AppendString(std::string_view text, std::string* out) {
  Append<uint64_t>(text.size(), out);
  *out += text;
}

/// Reads what the above wrote; throws Error(kArtifact) where the bytes end too early.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Integer>
  Integer Read() {
    Integer value = 0;
    std::memcpy(&value, Take(sizeof(value)).data(), sizeof(value));
    return value;
  }

  std::string ReadString() { return std::string(Take(Read<uint64_t>())); }

  std::string_view Take(uint64_t count) {
    if (count > bytes_.size()) {
      Fail(ErrorKind::kArtifact, "the saved module is damaged: it ends too early");
    }
    std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  size_t left() const { return bytes_.size(); }

  void ExpectEnd() const {
    if (!bytes_.empty()) Fail(ErrorKind::kArtifact, "the saved module is damaged: surplus bytes");
  }

 private:
  std::string_view bytes_;
};

/// XXH64 with seed 0: a checksum that is computed as fast as memory is read.
inline uint64_t Xxh64(std::string_view bytes) { return byoc_checksum(bytes.data(), bytes.size()); }

}  // namespace tvm_byoc_dnnl
