// SPDX-License-Identifier: Apache-2.0
#include "common/artifact.h"

#include <cstdio>

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

/// A payload that is written, or one that is read: its fields are listed once for both.
class Payload {
 public:
  Payload() = default;
  explicit Payload(ByteReader from) : reads_(true), from_(from) {}

  template <typename... Fields>
  void operator()(Fields&... fields) {
    (Pass(fields), ...);
  }

  /// How many items there are, and each of them.
  template <typename Item, typename List>
  void Each(std::vector<Item>& items, const List& list) {
    uint64_t count = items.size();
    Pass(count);
    for (uint64_t i = 0; i < count; ++i) {
      if (reads_) items.emplace_back();
      list(items[i]);
    }
  }
  template <typename Item>
  void Each(std::vector<Item>& items) {
    Each(items, [&](Item& item) { Pass(item); });
  }

  /// Older files do not have all fields.
  bool HasMore() const { return !reads_ || from_.left() != 0; }
  void ExpectEnd() const { from_.ExpectEnd(); }
  const std::string& bytes() const { return bytes_; }

 private:
  void Pass(std::string& text) {
    reads_ ? void(text = from_.ReadString()) : AppendString(text, &bytes_);
  }
  template <typename Integer>
  void Pass(Integer& number) {
    reads_ ? void(number = from_.Read<Integer>()) : Append(number, &bytes_);
  }

  bool reads_ = false;
  ByteReader from_{{}};
  std::string bytes_;
};

void List(Artifact& artifact, Payload& fields) {
  fields(artifact.symbol, artifact.graph_json, artifact.isa);
  fields.Each(artifact.const_names);
  if (fields.HasMore()) fields(artifact.engine);
}

void List(WeightsTable& table, Payload& fields) {
  fields(table.total_bytes);
  fields.Each(table.entries, [&](WeightsTable::Entry& entry) {
    fields(entry.name, entry.dtype_code, entry.dtype_bits);
    fields.Each(entry.shape);
    fields(entry.offset, entry.bytes, entry.checksum);
  });
  fields.Each(table.regions, [&](WeightsTable::Region& region) {
    fields(region.symbol);
    fields.Each(region.entries);
  });
  fields.Each(table.getters,
              [&](WeightsTable::Getter& getter) { fields(getter.symbol, getter.entry); });
}

void List(Blob& blob, Payload& fields) {
  fields(blob.symbol, blob.compiler, blob.compatibility, blob.bytes);
  if (fields.HasMore()) fields(blob.results);
}

void List(std::string& text, Payload& fields) { fields(text); }

template <typename Saved>
std::string SaveAs(std::string_view kind, Saved saved, std::string_view writer) {
  Payload payload;
  std::string name(kind);
  payload(name);
  List(saved, payload);
  return Seal(payload.bytes(), writer);
}

template <typename Saved>
Saved LoadAs(std::string_view kind, std::string_view bytes) {
  Saved saved;
  Payload payload(Unseal(bytes, kind));
  List(saved, payload);
  payload.ExpectEnd();
  return saved;
}

void CheckIndex(uint32_t index, size_t count) {
  if (index < count) return;
  Fail(ErrorKind::kArtifact, "the saved module is damaged: it refers to constant ", index, " of ",
       count);
}

void CheckEntry(const WeightsTable::Entry& entry, uint64_t total_bytes) {
  if (entry.offset > total_bytes || entry.bytes > total_bytes - entry.offset) {
    Fail(ErrorKind::kArtifact, "the saved module is damaged: constant \"", Printable(entry.name),
         "\" lies beyond the ", total_bytes, " bytes of data");
  }
  if (IsSound(entry)) return;
  Fail(ErrorKind::kArtifact, "the saved module is damaged: constant \"", Printable(entry.name),
       "\" of shape ", Join(entry.shape), " and ", static_cast<int>(entry.dtype_bits),
       " bits does not have ", entry.bytes, " bytes at ", entry.offset);
}

}  // namespace

std::string Save(const Artifact& artifact, std::string_view writer) {
  return SaveAs(kRegionKind, artifact, writer);
}
Artifact Load(std::string_view bytes) { return LoadAs<Artifact>(kRegionKind, bytes); }

std::string WeightsTable::DataSymbol() const {
  std::string content;
  Append(total_bytes, &content);
  for (const Entry& entry : entries) {
    for (uint64_t field : {entry.offset, entry.bytes, entry.checksum}) Append(field, &content);
  }
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(Xxh64(content)));
  return Cat("tvm_byoc_weights_", hex);
}

std::string Save(const WeightsTable& table, std::string_view writer) {
  return SaveAs(kWeightsKind, table, writer);
}

WeightsTable LoadWeightsTable(std::string_view bytes) {
  auto table = LoadAs<WeightsTable>(kWeightsKind, bytes);
  const size_t count = table.entries.size();
  for (const WeightsTable::Entry& entry : table.entries) CheckEntry(entry, table.total_bytes);
  for (const WeightsTable::Region& region : table.regions) {
    for (uint32_t entry : region.entries) CheckIndex(entry, count);
  }
  for (const WeightsTable::Getter& getter : table.getters) CheckIndex(getter.entry, count);
  return table;
}

std::string Save(const Blob& blob, std::string_view writer) {
  return SaveAs(kBlobKind, blob, writer);
}
Blob LoadBlob(std::string_view bytes) { return LoadAs<Blob>(kBlobKind, bytes); }

std::string SaveProgram(std::string_view json, std::string_view writer) {
  return SaveAs(kProgramKind, std::string(json), writer);
}
std::string LoadProgram(std::string_view bytes) { return LoadAs<std::string>(kProgramKind, bytes); }

void FindSaved(std::string_view file, SavedIn* found) {
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
      if (kind == kProgramKind) found->programs.push_back(bytes);
      if (kind == kRegionKind) found->regions.push_back(bytes);
      if (kind == kWeightsKind) found->weights.push_back(bytes);
    } catch (const Error&) {  // the magic number alone
    }
  }
}

}  // namespace tvm_byoc_dnnl
