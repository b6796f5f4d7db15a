// SPDX-License-Identifier: Apache-2.0
// The file of a model: the record at its end (pipeline/library_file.py), and what was saved in it.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/support/bytes.h"
#include "common/support/error.h"
#include "common/support/xxhash.h"
#include "native/model.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr std::string_view kMagic = "tvm_byoc_dnnl checksum 1";

using Range = std::pair<uint64_t, uint64_t>;

/// The numbers of one member of the record, which has no members but numbers and lists of them.
std::vector<uint64_t> NumbersOf(std::string_view record, const std::string& key) {
  std::vector<uint64_t> numbers;
  size_t at = record.find(Cat('"', key, "\":"));
  if (at == std::string_view::npos) return numbers;
  at += key.size() + 3;
  const size_t end = std::min(record.find_first_of("\"}", at), record.size());
  while ((at = record.find_first_of("0123456789", at)) < end) {
    uint64_t number = 0;
    const char* after = std::from_chars(record.data() + at, record.data() + end, number).ptr;
    numbers.push_back(number);
    at = static_cast<size_t>(after - record.data());
  }
  return numbers;
}

/// The checksum of what lies outside of the ranges, and of their places.
uint64_t ChecksumWithout(std::string_view data, const std::vector<Range>& skipped) {
  std::string numbers, parts;
  uint64_t start = 0;
  auto part = [&](uint64_t end) {
    for (uint64_t place : {start, end}) Append<uint64_t>(place, &numbers);
    if (end > start) Append<uint64_t>(Xxh64(data.substr(start, end - start)), &parts);
  };
  for (const auto& [first, end] : skipped) {
    part(first);
    start = end;
  }
  part(data.size());
  return Xxh64(numbers + parts);
}

[[noreturn]] void FailDamaged(const std::string& path) {
  Fail(ErrorKind::kArtifact, path,
       " is not a library that can be loaded: it is damaged, its checksum is another than when it "
       "was exported; copy or export it again");
}

/// The ranges of plain weights in a library whose record fits it, and the library's bytes.
std::vector<Range> ReadRecord(const std::string& path, std::string_view* data) {
  const size_t tail = sizeof(uint32_t) + kMagic.size();
  if (data->substr(0, 4) !=
      "\x7f"
      "ELF") {
    Fail(ErrorKind::kArtifact, path,
         " is not a library that can be loaded: no ELF file; expected what export_library wrote");
  }
  if (data->size() < tail || data->substr(data->size() - kMagic.size()) != kMagic) {
    Fail(
        ErrorKind::kArtifact, path,
        " is not a library that can be loaded: the record at its end is missing or damaged: it was "
        "cut off, or changed after its export (by strip, patchelf ...); copy or export it again");
  }
  const size_t end = data->size() - tail;
  const size_t length = ByteReader(data->substr(end)).Read<uint32_t>();
  if (length > end) FailDamaged(path);
  const std::string_view record = data->substr(end - length, length);
  const auto bytes = NumbersOf(record, "bytes"), skip = NumbersOf(record, "skip");
  const auto checksum = NumbersOf(record, "checksum");
  if (bytes.size() != 1 || checksum.size() != 1 || skip.size() % 2 != 0 || bytes[0] > end)
    FailDamaged(path);
  *data = data->substr(0, bytes[0]);
  std::vector<Range> ranges;
  uint64_t last = 0;
  for (size_t i = 0; i < skip.size(); i += 2) {
    if (skip[i] < last || skip[i + 1] < skip[i] || skip[i + 1] > data->size()) FailDamaged(path);
    last = skip[i + 1];
    ranges.emplace_back(skip[i], last);
  }
  if (ChecksumWithout(*data, ranges) != checksum[0]) FailDamaged(path);
  return ranges;
}

}  // namespace

ModelFile ReadModelFile(const std::string& path) {
  ModelFile file;
  file.mapped = MapFile(path);
  std::string_view data(file.mapped->data(), file.mapped->bytes());
  const std::vector<Range> weights = ReadRecord(path, &data);
  SavedIn found;
  uint64_t start = 0;
  auto search = [&](uint64_t end) {
    const SavedIn part = FindSaved(data.substr(start, end - start));
    for (auto list : {&SavedIn::programs, &SavedIn::regions, &SavedIn::weights, &SavedIn::blobs})
      (found.*list).insert((found.*list).end(), (part.*list).begin(), (part.*list).end());
  };
  for (const auto& [first, end] : weights) {
    search(first);
    start = end;
  }
  search(data.size());
  if (found.programs.size() != 1 || found.weights.size() > 1) {
    Fail(ErrorKind::kUnsupported, "it cannot run without TVM: ",
         found.programs.empty() ? "its file does not say how its regions are called"
                                : "it is made of several models");
  }
  file.program = LoadProgram(found.programs[0]);
  for (std::string_view region : found.regions) file.regions.push_back(Load(region));
  if (found.weights.empty()) return file;
  file.table = LoadWeightsTable(found.weights[0]);
  const auto home = std::find_if(weights.begin(), weights.end(), [&](const Range& range) {
    return range.second - range.first == file.table.total_bytes;
  });
  if (home == weights.end()) FailDamaged(path);
  file.weights = home->first;
  return file;
}

}  // namespace tvm_byoc_dnnl
