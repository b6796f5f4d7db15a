// SPDX-License-Identifier: Apache-2.0
#include "native/library_record.h"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

#include "common/mapped.h"
#include "common/support/bytes.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr std::string_view kMagic = "tvm_byoc_dnnl checksum 1";
constexpr size_t kEnd = sizeof(uint32_t) + kMagic.size();
// The names of the symbols of plain weights begin with this.
constexpr std::string_view kWeights = "tvm_byoc_weights_";
constexpr std::string_view kElf = ELFMAG;

struct Record {
  std::vector<uint64_t> bytes, skip, checksum, weights;
  std::optional<std::string> key;
};

[[noreturn]] void Refuse(const std::string& path, const std::string& reason) {
  Fail(ErrorKind::kArtifact, path, " is not a library that can be loaded: ", reason);
}

[[noreturn]] void RefuseEnd(const std::string& path) {
  Refuse(path,
         "the record at its end is missing or damaged: it was cut off, or changed after its export "
         "(by strip, patchelf ...); copy or export it again");
}

/// Of bytes of a file; throws Error(kArtifact) behind the end of the data.
template <typename Row>
Row At(std::string_view data, uint64_t at) {
  Row row;
  const std::string_view rest = data.substr(std::min<uint64_t>(at, data.size()));
  std::memcpy(&row, ByteReader(rest).Take(sizeof(row)).data(), sizeof(row));
  return row;
}

template <typename Row>
std::vector<Row> Table(std::string_view data, uint64_t at, uint64_t count) {
  std::vector<Row> rows;
  for (uint64_t i = 0; i < count; ++i) rows.push_back(At<Row>(data, at + i * sizeof(Row)));
  return rows;
}

/// The numbers of one member of the record, which has no other members but its key.
std::vector<uint64_t> NumbersOf(std::string_view record, const std::string& name) {
  std::vector<uint64_t> numbers;
  size_t at = record.find(Cat('"', name, "\":"));
  if (at == std::string_view::npos) return numbers;
  at += name.size() + 3;
  const size_t end = std::min(record.find_first_of("\"}", at), record.size());
  while ((at = record.find_first_of("0123456789", at)) < end) {
    uint64_t number = 0;
    const char* after = std::from_chars(record.data() + at, record.data() + end, number).ptr;
    numbers.push_back(number);
    at = static_cast<size_t>(after - record.data());
  }
  return numbers;
}

/// The record behind a library's end, if there is one.
std::optional<Record> Find(std::string_view data) {
  if (data.size() < kEnd || data.substr(data.size() - kMagic.size()) != kMagic) return {};
  Record record;
  const size_t end = data.size() - kEnd;
  const size_t length = At<uint32_t>(data, end);
  if (length > end) return record;
  const std::string_view text = data.substr(end - length, length);
  record.bytes = NumbersOf(text, "bytes");
  record.skip = NumbersOf(text, "skip");
  record.checksum = NumbersOf(text, "checksum");
  record.weights = NumbersOf(text, "weights");
  constexpr std::string_view kKey = "\"key\": \"";
  if (size_t at = text.find(kKey); at != std::string_view::npos) {
    at += kKey.size();
    record.key = text.substr(at, text.find('"', at) - at);
  }
  return record;
}

/// The checksums of the ranges that are not empty, behind some numbers, as one checksum.
uint64_t ChecksumOf(std::string_view data, std::string numbers,
                    const std::vector<ByteRange>& ranges) {
  for (const auto& [begin, end] : ranges) {
    if (end > begin) Append<uint64_t>(Xxh64(data.substr(begin, end - begin)), &numbers);
  }
  return Xxh64(numbers);
}

uint64_t ChecksumOfWeights(std::string_view data, const std::vector<ByteRange>& weights) {
  std::string numbers;
  Append<uint64_t>(0, &numbers);
  return ChecksumOf(data, numbers, weights);
}

/// Of what lies outside of the ranges, and of their places.
uint64_t ChecksumWithout(std::string_view data, const std::vector<ByteRange>& weights) {
  std::string numbers;
  std::vector<ByteRange> kept;
  uint64_t start = 0;
  auto keep = [&](uint64_t end) {
    for (uint64_t place : {start, end}) Append<uint64_t>(place, &numbers);
    kept.emplace_back(start, end);
  };
  for (const auto& [begin, end] : weights) {
    keep(begin);
    start = end;
  }
  keep(data.size());
  return ChecksumOf(data, numbers, kept);
}

/// The ranges of weights, if they and the checksums fit; `data` becomes the library's bytes.
std::optional<std::vector<ByteRange>> Fitting(const Record& record, bool with_weights,
                                              std::string_view* data) {
  const auto& [bytes, skip, checksum, weights, key] = record;
  if (bytes.size() != 1 || checksum.size() != 1 || skip.size() % 2 != 0) return {};
  if (bytes[0] > data->size()) return {};
  const std::string_view kept = data->substr(0, bytes[0]);
  std::vector<ByteRange> ranges;
  uint64_t last = 0;
  for (size_t i = 0; i < skip.size(); i += 2) {
    if (skip[i] < last || skip[i + 1] < skip[i] || skip[i + 1] > kept.size()) return {};
    last = skip[i + 1];
    ranges.emplace_back(skip[i], last);
  }
  if (ChecksumWithout(kept, ranges) != checksum[0]) return {};
  if (with_weights && (weights.size() != 1 || ChecksumOfWeights(kept, ranges) != weights[0]))
    return {};
  *data = kept;
  return ranges;
}

/// Whether an ELF file's own tables lie within it, as far as they say what a library without a
/// record is.
bool IsSound(std::string_view data) {
  auto inside = [&](uint64_t begin, uint64_t bytes) {
    return begin <= data.size() && bytes <= data.size() - begin;
  };
  const auto header = At<Elf64_Ehdr>(data, 0);
  if (!inside(header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr)) ||
      !inside(header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr)))
    return false;
  bool has_symbols = header.e_shnum == 0;
  for (const Elf64_Shdr& section : Table<Elf64_Shdr>(data, header.e_shoff, header.e_shnum)) {
    has_symbols |= section.sh_type == SHT_DYNSYM;
    if (section.sh_type != SHT_NULL && section.sh_type != SHT_NOBITS &&
        !inside(section.sh_offset, section.sh_size))
      return false;
  }
  for (const Elf64_Phdr& segment : Table<Elf64_Phdr>(data, header.e_phoff, header.e_phnum)) {
    if (!inside(segment.p_offset, segment.p_filesz)) return false;
  }
  return header.e_phnum > 0 && has_symbols;
}

/// The weights that a library exports as data.
std::vector<ByteRange> ExportedWeights(std::string_view data) {
  const auto header = At<Elf64_Ehdr>(data, 0);
  auto section = [&](uint64_t number) {
    return At<Elf64_Shdr>(data, header.e_shoff + number * sizeof(Elf64_Shdr));
  };
  std::vector<ByteRange> found;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr table = section(i);
    if (table.sh_type != SHT_DYNSYM) continue;
    const uint64_t names = section(table.sh_link).sh_offset;
    for (const Elf64_Sym& symbol :
         Table<Elf64_Sym>(data, table.sh_offset, table.sh_size / sizeof(Elf64_Sym))) {
      const uint64_t name = names + symbol.st_name;
      if (name > data.size() || data.substr(name, kWeights.size()) != kWeights) continue;
      const Elf64_Shdr home = section(symbol.st_shndx);
      const uint64_t begin = symbol.st_value - home.sh_addr + home.sh_offset;
      found.emplace_back(begin, begin + symbol.st_size);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

void RefuseDamaged(const std::string& path) {
  Refuse(path,
         "it is damaged, its checksum is another than when it was exported; copy or export it "
         "again");
}

std::string RecordOf(std::string_view* data, const std::string& key) {
  if (data->substr(0, kElf.size()) != kElf) return "";
  if (const auto old = Find(*data); old && old->bytes.size() == 1) {
    *data = data->substr(0, old->bytes[0]);
  }
  const std::vector<ByteRange> weights = ExportedWeights(*data);
  std::string ranges, record = "{";
  for (const auto& [begin, end] : weights) {
    ranges += Cat(ranges.empty() ? "[" : ", [", begin, ", ", end, "]");
  }
  if (!key.empty()) record += Cat("\"key\": \"", key, "\", ");
  record += Cat("\"bytes\": ", data->size(), ", \"skip\": [", ranges,
                "], \"checksum\": ", ChecksumWithout(*data, weights),
                ", \"weights\": ", ChecksumOfWeights(*data, weights), "}");
  const auto length = static_cast<uint32_t>(record.size());
  Append<uint32_t>(length, &record);
  return record + std::string(kMagic);
}

void CheckHeaders(std::string_view data, const std::string& path) {
  if (data.size() < sizeof(Elf64_Ehdr) || data.substr(0, kElf.size()) != kElf)
    Refuse(path, "no ELF file; expected what export_library or `tvm-byoc compile` wrote");
  const auto header = At<Elf64_Ehdr>(data, 0);
  uint64_t needed = header.e_shoff;
  const uint64_t table = uint64_t{header.e_shentsize} * header.e_shnum;
  needed += std::min(table, std::numeric_limits<uint64_t>::max() - needed);
  if (data.size() < needed) {  // the section headers are at the end
    Refuse(path, Cat("it has ", data.size(), " bytes, its header says ", needed,
                     "; it was cut off, copy or export it again"));
  }
  if (!IsSound(data)) Refuse(path, "its headers are damaged; copy or export it again");
}

void CheckLibrary(const std::string& file, const std::string& path, const std::string& key) {
  if (std::filesystem::file_size(file) == 0) return CheckHeaders("", path);
  const auto mapped = MapFile(file);
  std::string_view data(mapped->data(), mapped->bytes());
  const std::optional<Record> record = Find(data);
  if (!record) {
    CheckHeaders(data, path);
    if (data.find(kLibraryMark) != std::string_view::npos) RefuseEnd(path);
    if (!key.empty()) Refuse(path, "it has no record of what it was made from");
    return;
  }
  if (!Fitting(*record, !key.empty(), &data)) RefuseDamaged(path);
  if (!key.empty() && record->key != key) {
    const std::string got = record->key ? Cat("'", *record->key, "'") : "None";
    Refuse(path, Cat("it was made from something else: ", got, ", expected '", key, "'"));
  }
}

std::vector<ByteRange> WeightsIn(std::string_view* data, const std::string& path) {
  if (data->substr(0, kElf.size()) != kElf)
    Refuse(path, "no ELF file; expected what export_library or `tvm-byoc compile` wrote");
  const std::optional<Record> record = Find(*data);
  if (!record) RefuseEnd(path);
  auto weights = Fitting(*record, false, data);
  if (!weights) RefuseDamaged(path);
  return *weights;
}

}  // namespace tvm_byoc_dnnl
