// SPDX-License-Identifier: Apache-2.0
// The record of an exported library: whether its file is complete and unchanged.
//
// It is appended to the file: linkers, loaders and TVM read an ELF file from its headers and never
// read it. Weights that are plain data are left out of the first checksum: each has one of its own,
// which is compared when it is read, so that a file of gigabytes is mapped and not read. The second
// is of those weights.
//
// A file whose end is damaged must not pass for somebody else's library, so a symbol says inside of
// it that it had a record: its name lies near the file's beginning and near its end, and its data
// among the weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tvm_byoc_dnnl {

/// The first byte, and that behind the last one.
using ByteRange = std::pair<uint64_t, uint64_t>;

/// The name and the data of the symbol of every library that has a record.
constexpr std::string_view kLibraryMark = "tvm_byoc_dnnl_has_a_checksum";

/// The record of a library, to be appended to it; `key` says what it was made from. Empty for a
/// file that is no ELF file. A record that is there already is left out of `data`.
std::string RecordOf(std::string_view* data, const std::string& key);

/// Throws Error(kArtifact), which names `path`, for a file that is not a complete ELF file: mapping
/// a truncated library ends the process with a bus error.
void CheckHeaders(std::string_view data, const std::string& path);

/// The same of a `file` that errors call `path`, and for one whose record does not fit: it computes
/// wrong numbers. With a `key`, what it must have been made from, the weights are compared, too,
/// and a library without a record is refused.
void CheckLibrary(const std::string& file, const std::string& path, const std::string& key);

/// Throws Error(kArtifact): a file is not what its record says.
[[noreturn]] void RefuseDamaged(const std::string& path);

/// The ranges of plain weights in a library whose record fits; `data` becomes the library's bytes.
/// Throws Error(kArtifact) for any other.
std::vector<ByteRange> WeightsIn(std::string_view* data, const std::string& path);

}  // namespace tvm_byoc_dnnl
