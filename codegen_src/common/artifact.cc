// SPDX-License-Identifier: Apache-2.0
#include "common/artifact.h"

#include <cstdio>
#include <tuple>

#include "common/data_object.h"
#include "common/support/bytes.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr std::string_view kMagic = "TVMBYOCD";
constexpr size_t kChecksumBytes = 8;  // of all that stands before it

// The first field of a payload.
constexpr std::string_view kRegionKind = "region";
constexpr std::string_view kWeightsKind = "weights";
constexpr std::string_view kBlobKind = "blob";
constexpr std::string_view kProgramKind = "program";

/// The payload in its frame.
std::string Seal(const std::string& payload, std::string_view writer) {
  std::string bytes(kMagic);
  Append<uint32_t>(kFormatVersion, &bytes);
  AppendString(writer, &bytes);
  AppendString(payload, &bytes);
  Append<uint64_t>(Xxh64(bytes), &bytes);
  return bytes;
}

/// The writer's name for a message: bytes of a damaged file must not reach a terminal.
std::string Printable(std::string_view text) {
  std::string shown;
  for (char c : text.substr(0, 80)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown;
}

/// A reader of the payload, behind its kind.
ByteReader Unseal(std::string_view bytes, std::string_view kind) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    Fail(ErrorKind::kArtifact, "not a saved dnnl_byoc module: ", bytes.size(),
         " bytes without its magic number");
  }
  ByteReader reader(bytes.substr(kMagic.size()));
  const auto version = reader.Read<uint32_t>();
  // Format 1, of before the first release, had no writer here.
  const std::string writer =
      version > 1 ? Printable(reader.Take(reader.Read<uint64_t>())) : std::string("a preview");
  if (version != kFormatVersion) {
    Fail(ErrorKind::kArtifact, "the saved module has format version ", version, " (written by ",
         writer, "), this library reads version ", kFormatVersion,
         ": use the version of tvm-byoc-dnnl that built the model, or build it again");
  }
  const auto length = reader.Read<uint64_t>();
  if (reader.left() < kChecksumBytes || length != reader.left() - kChecksumBytes) {
    Fail(ErrorKind::kArtifact, "the saved module is damaged: got ", reader.left(),
         " bytes after the header, expected ", length, " + ", kChecksumBytes);
  }
  const size_t checked = bytes.size() - kChecksumBytes;
  const auto expected = ByteReader(bytes.substr(checked)).Read<uint64_t>();
  const uint64_t got = Xxh64(bytes.substr(0, checked));
  if (got != expected) {
    Fail(ErrorKind::kArtifact, "the saved module is damaged: checksum ", got, ", expected ",
         expected);
  }
  ByteReader payload(reader.Take(length));
  const std::string found = payload.ReadString();
  if (found != kind) {
    Fail(ErrorKind::kArtifact, "the saved module is a \"", Printable(found), "\", expected a \"",
         kind, "\"");
  }
  return payload;
}

/// Whether elements of this shape and width take the bytes that the entry says, from a place where
/// vectors may be loaded: a tensor is made of these, and must not reach beyond its data.
bool IsSound(const WeightsTable::Entry& entry) {
  if (entry.offset % kPartAlignment != 0) return false;
  uint64_t bits = entry.dtype_bits;
  for (int64_t dim : entry.shape) {
    if (dim < 0 || __builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits)) return false;
  }
  return bits / 8 + (bits % 8 != 0) == entry.bytes;
}

/// As many items as a count says that stands before them.
template <typename Read>
void ReadItems(ByteReader* reader, const Read& read) {
  const auto count = reader->Read<uint64_t>();
  for (uint64_t i = 0; i < count; ++i) read();
}

uint32_t ReadIndex(ByteReader* reader, size_t count) {
  const auto index = reader->Read<uint32_t>();
  if (index >= count) {
    Fail(ErrorKind::kArtifact, "the saved module is damaged: it refers to constant ", index, " of ",
         count);
  }
  return index;
}

}  // namespace

std::string Save(const Artifact& artifact, std::string_view writer) {
  std::string payload;
  AppendString(kRegionKind, &payload);
  AppendString(artifact.symbol, &payload);
  AppendString(artifact.graph_json, &payload);
  AppendString(artifact.isa, &payload);
  Append<uint64_t>(artifact.const_names.size(), &payload);
  for (const std::string& name : artifact.const_names) AppendString(name, &payload);
  AppendString(artifact.engine, &payload);
  return Seal(payload, writer);
}

Artifact Load(std::string_view bytes) {
  ByteReader payload = Unseal(bytes, kRegionKind);
  Artifact artifact;
  artifact.symbol = payload.ReadString();
  artifact.graph_json = payload.ReadString();
  artifact.isa = payload.ReadString();
  ReadItems(&payload, [&] { artifact.const_names.push_back(payload.ReadString()); });
  if (payload.left() != 0) artifact.engine = payload.ReadString();
  payload.ExpectEnd();
  return artifact;
}

bool WeightsTable::Entry::operator==(const Entry& other) const {
  auto fields = [](const Entry& e) {
    return std::tie(e.name, e.dtype_code, e.dtype_bits, e.shape, e.offset, e.bytes, e.checksum);
  };
  return fields(*this) == fields(other);
}

std::string WeightsTable::DataSymbol() const {
  std::string content;
  Append<uint64_t>(total_bytes, &content);
  for (const Entry& entry : entries) {
    for (uint64_t field : {entry.offset, entry.bytes, entry.checksum}) {
      Append<uint64_t>(field, &content);
    }
  }
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(Xxh64(content)));
  return Cat("tvm_byoc_weights_", hex);
}

std::string Save(const WeightsTable& table, std::string_view writer) {
  std::string payload;
  AppendString(kWeightsKind, &payload);
  Append<uint64_t>(table.total_bytes, &payload);
  Append<uint64_t>(table.entries.size(), &payload);
  for (const WeightsTable::Entry& entry : table.entries) {
    AppendString(entry.name, &payload);
    Append<uint8_t>(entry.dtype_code, &payload);
    Append<uint8_t>(entry.dtype_bits, &payload);
    Append<uint64_t>(entry.shape.size(), &payload);
    for (int64_t dim : entry.shape) Append<uint64_t>(static_cast<uint64_t>(dim), &payload);
    for (uint64_t field : {entry.offset, entry.bytes, entry.checksum}) {
      Append<uint64_t>(field, &payload);
    }
  }
  Append<uint64_t>(table.regions.size(), &payload);
  for (const WeightsTable::Region& region : table.regions) {
    AppendString(region.symbol, &payload);
    Append<uint64_t>(region.entries.size(), &payload);
    for (uint32_t entry : region.entries) Append<uint32_t>(entry, &payload);
  }
  Append<uint64_t>(table.getters.size(), &payload);
  for (const WeightsTable::Getter& getter : table.getters) {
    AppendString(getter.symbol, &payload);
    Append<uint32_t>(getter.entry, &payload);
  }
  return Seal(payload, writer);
}

WeightsTable LoadWeightsTable(std::string_view bytes) {
  ByteReader payload = Unseal(bytes, kWeightsKind);
  WeightsTable table;
  table.total_bytes = payload.Read<uint64_t>();
  ReadItems(&payload, [&] {
    WeightsTable::Entry entry;
    entry.name = payload.ReadString();
    entry.dtype_code = payload.Read<uint8_t>();
    entry.dtype_bits = payload.Read<uint8_t>();
    ReadItems(&payload,
              [&] { entry.shape.push_back(static_cast<int64_t>(payload.Read<uint64_t>())); });
    entry.offset = payload.Read<uint64_t>();
    entry.bytes = payload.Read<uint64_t>();
    entry.checksum = payload.Read<uint64_t>();
    if (entry.offset > table.total_bytes || entry.bytes > table.total_bytes - entry.offset) {
      Fail(ErrorKind::kArtifact, "the saved module is damaged: constant \"", Printable(entry.name),
           "\" lies beyond the ", table.total_bytes, " bytes of data");
    }
    if (!IsSound(entry)) {
      Fail(ErrorKind::kArtifact, "the saved module is damaged: constant \"", Printable(entry.name),
           "\" of shape ", Join(entry.shape), " and ", static_cast<int>(entry.dtype_bits),
           " bits does not have ", entry.bytes, " bytes at ", entry.offset);
    }
    table.entries.push_back(std::move(entry));
  });
  ReadItems(&payload, [&] {
    WeightsTable::Region region{payload.ReadString(), {}};
    ReadItems(&payload,
              [&] { region.entries.push_back(ReadIndex(&payload, table.entries.size())); });
    table.regions.push_back(std::move(region));
  });
  ReadItems(&payload, [&] {
    std::string symbol = payload.ReadString();
    table.getters.push_back({std::move(symbol), ReadIndex(&payload, table.entries.size())});
  });
  payload.ExpectEnd();
  return table;
}

std::string Save(const Blob& blob, std::string_view writer) {
  std::string payload;
  AppendString(kBlobKind, &payload);
  for (const std::string* field :
       {&blob.symbol, &blob.compiler, &blob.compatibility, &blob.bytes}) {
    AppendString(*field, &payload);
  }
  Append<int64_t>(blob.results, &payload);
  return Seal(payload, writer);
}

Blob LoadBlob(std::string_view bytes) {
  ByteReader payload = Unseal(bytes, kBlobKind);
  Blob blob;
  for (std::string* field : {&blob.symbol, &blob.compiler, &blob.compatibility, &blob.bytes}) {
    *field = payload.ReadString();
  }
  if (payload.left() > 0) blob.results = payload.Read<int64_t>();
  payload.ExpectEnd();
  return blob;
}

std::string SaveProgram(std::string_view json, std::string_view writer) {
  std::string payload;
  AppendString(kProgramKind, &payload);
  AppendString(json, &payload);
  return Seal(payload, writer);
}

std::string LoadProgram(std::string_view bytes) {
  ByteReader payload = Unseal(bytes, kProgramKind);
  std::string json = payload.ReadString();
  payload.ExpectEnd();
  return json;
}

SavedIn FindSaved(std::string_view file) {
  SavedIn found;
  for (size_t at = 0; (at = file.find(kMagic, at)) != std::string_view::npos;) {
    const std::string_view rest = file.substr(at);
    at += kMagic.size();
    try {
      ByteReader reader(rest.substr(kMagic.size()));
      reader.Read<uint32_t>();  // the version, which Unseal looks at
      reader.Take(reader.Read<uint64_t>());
      const std::string_view payload = reader.Take(reader.Read<uint64_t>());
      reader.Take(kChecksumBytes);
      const std::string kind = ByteReader(payload).ReadString();
      const std::string_view bytes = rest.substr(0, rest.size() - reader.left());
      at += bytes.size() - kMagic.size();
      if (kind == kProgramKind) found.programs.push_back(bytes);
      if (kind == kRegionKind) found.regions.push_back(bytes);
      if (kind == kWeightsKind) found.weights.push_back(bytes);
      if (kind == kBlobKind) found.blobs.push_back(bytes);
    } catch (const Error&) {  // the magic number alone
    }
  }
  return found;
}

}  // namespace tvm_byoc_dnnl
