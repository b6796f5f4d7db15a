// SPDX-License-Identifier: Apache-2.0
#include "common/data_object.h"

#include <elf.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "check.h"
#include "common/mapped.h"

namespace {

using tvm_byoc_dnnl::DropPages;
using tvm_byoc_dnnl::FindMapped;
using tvm_byoc_dnnl::PartOffsets;
using tvm_byoc_dnnl::WriteDataObject;

template <typename T>
T Read(const std::string& bytes, uint64_t offset) {
  T value{};
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string Written(const std::vector<std::string>& parts) {
  const std::string path = "data_object_test." + std::to_string(getpid()) + ".o";
  WriteDataObject(path, "the_symbol", {parts.begin(), parts.end()});
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::remove(path.c_str());
  return bytes;
}

}  // namespace

TEST(ObjectFile) {
  const std::vector<std::string> parts = {"first", std::string(5000, 'x'), "", "last"};
  const std::string bytes = Written(parts);
  const auto header = Read<Elf64_Ehdr>(bytes, 0);
  CHECK(std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0);
  CHECK_EQUAL(header.e_type, ET_REL);
  CHECK_EQUAL(header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr), bytes.size());
  const auto data = Read<Elf64_Shdr>(bytes, header.e_shoff + sizeof(Elf64_Shdr));
  CHECK_EQUAL(data.sh_flags & (SHF_ALLOC | SHF_WRITE | SHF_EXECINSTR), uint64_t{SHF_ALLOC});
  const std::vector<uint64_t> offsets = PartOffsets({5, 5000, 0, 4});
  CHECK_EQUAL(data.sh_size, offsets.back());
  for (size_t i = 0; i < parts.size(); ++i) {
    CHECK_EQUAL(bytes.substr(data.sh_offset + offsets[i], parts[i].size()), parts[i]);
  }
  const auto symbols = Read<Elf64_Shdr>(bytes, header.e_shoff + 2 * sizeof(Elf64_Shdr));
  const auto names = Read<Elf64_Shdr>(bytes, header.e_shoff + symbols.sh_link * sizeof(Elf64_Shdr));
  const auto symbol = Read<Elf64_Sym>(bytes, symbols.sh_offset + sizeof(Elf64_Sym));
  CHECK_EQUAL(std::string(bytes.c_str() + names.sh_offset + symbol.st_name), "the_symbol");
  CHECK_EQUAL(symbol.st_size, data.sh_size);
  CHECK_EQUAL(symbol.st_shndx, 1);
}

TEST(NothingToWrite) { CHECK(Written({}).size() > sizeof(Elf64_Ehdr)); }

TEST(AFileThatCannotBeWrittenIsAnError) {
  const auto why = [](const std::string& path) {
    try {
      WriteDataObject(path, "s", {std::string(1 << 20, 'x')});
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("it was written");
  };
  const std::string path = "data_object_test." + std::to_string(getpid()) + ".limited";
  CHECK_EQUAL(why(path + "/x.o"),
              "cannot write " + path + "/x.o: No such file or directory (after 0 bytes)");
  CHECK_EQUAL(why("."), "cannot write .: Is a directory (after 0 bytes)");
  // A limit of this process stands for a disk that is full after 64 kB.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1 << 16, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string got = why(path);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(!std::ifstream(path));  // nothing is left of it
  CHECK_EQUAL(got, "cannot write " + path + ": File too large (after 65536 bytes)");
}

TEST(OtherMemoryKeepsItsPages) {
  std::vector<char> heap(1 << 20, 'x');
  DropPages(heap.data(), heap.size());
  CHECK(heap == std::vector<char>(1 << 20, 'x'));
}

TEST(DataThatNobodyExports) { CHECK(FindMapped("tvm_byoc_weights_of_nobody").empty()); }
