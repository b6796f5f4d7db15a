// SPDX-License-Identifier: Apache-2.0
#include "common/data_object.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

// Whole pages are mapped; the data has this offset in the file as well.
constexpr uint64_t kPage = 4096;

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr const char* kSection = ".lrodata";  // beyond the reach of 32-bit offsets
constexpr uint64_t kLarge = 0x10000000;       // SHF_X86_64_LARGE, which not every elf.h has
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr const char* kSection = ".rodata.weights";
constexpr uint64_t kLarge = 0;
#else
#error "an ELF machine number is needed here"
#endif

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

/// A string table: offsets of what was added.
class Strings {
 public:
  uint32_t Add(std::string_view text) {
    auto offset = static_cast<uint32_t>(bytes_.size());
    bytes_.append(text).push_back('\0');
    return offset;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_ = std::string(1, '\0');
};

template <typename T>
std::string_view Raw(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// The header of a file whose table of so many sections is at `offset`; one of them has the names of
// all.
Elf64_Ehdr Header(uint64_t offset, uint16_t sections, uint16_t names) {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_REL;
  header.e_machine = kMachine;
  header.e_version = EV_CURRENT;
  header.e_shoff = offset;
  header.e_ehsize = sizeof(header);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = sections;
  header.e_shstrndx = names;
  return header;
}

}  // namespace

std::vector<uint64_t> PartOffsets(const std::vector<uint64_t>& sizes) {
  std::vector<uint64_t> offsets{0};
  uint64_t end = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    end += sizes[i];
    offsets.push_back(i + 1 < sizes.size() ? AlignUp(end, kPartAlignment) : end);
    end = offsets.back();
  }
  return offsets;
}

void WriteDataObject(const std::string& path, const std::string& symbol,
                     const std::vector<std::string_view>& parts) {
  std::vector<uint64_t> sizes;
  for (std::string_view part : parts) sizes.push_back(part.size());
  const std::vector<uint64_t> offsets = PartOffsets(sizes);
  const uint64_t data_bytes = offsets.back();

  Strings names, section_names;
  Elf64_Sym symbols[2] = {};
  symbols[1].st_name = names.Add(symbol);
  symbols[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT);
  symbols[1].st_shndx = 1;
  symbols[1].st_size = data_bytes;

  enum { kData = 1, kSymbols, kNames, kSectionNames, kStackNote, kSections };
  Elf64_Shdr sections[kSections] = {};
  uint64_t end = kPage;
  auto place = [&](int index, const char* name, uint32_t type, uint64_t bytes, uint64_t align) {
    end = AlignUp(end, align);
    sections[index].sh_name = section_names.Add(name);
    sections[index].sh_type = type;
    sections[index].sh_offset = end;
    sections[index].sh_size = bytes;
    sections[index].sh_addralign = align;
    end += bytes;
  };
  // Only whole pages can be dropped, so padding pays where there are many.
  place(kData, kSection, SHT_PROGBITS, data_bytes, data_bytes < kPage ? kPartAlignment : kPage);
  sections[kData].sh_flags = SHF_ALLOC | kLarge;
  place(kSymbols, ".symtab", SHT_SYMTAB, sizeof(symbols), 8);
  sections[kSymbols].sh_link = kNames;
  sections[kSymbols].sh_info = 1;  // the first global symbol
  sections[kSymbols].sh_entsize = sizeof(Elf64_Sym);
  place(kNames, ".strtab", SHT_STRTAB, names.bytes().size(), 1);
  place(kStackNote, ".note.GNU-stack", SHT_PROGBITS, 0, 1);  // the stack need not be executable
  const uint32_t own_name = section_names.Add(".shstrtab");
  place(kSectionNames, "", SHT_STRTAB, 0, 1);
  sections[kSectionNames].sh_name = own_name;
  sections[kSectionNames].sh_size = section_names.bytes().size();
  end += section_names.bytes().size();

  const Elf64_Ehdr header = Header(AlignUp(end, 8), kSections, kSectionNames);
  OutputFile file(path);
  auto write = [&](uint64_t offset, std::string_view bytes) {
    file.PadTo(offset);
    file.Write(bytes);
  };
  write(0, Raw(header));
  for (size_t i = 0; i < parts.size(); ++i) write(sections[kData].sh_offset + offsets[i], parts[i]);
  write(sections[kSymbols].sh_offset, Raw(symbols));
  write(sections[kNames].sh_offset, names.bytes());
  write(sections[kSectionNames].sh_offset, section_names.bytes());
  write(header.e_shoff, Raw(sections));
  file.Close();
}

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)),
      descriptor_(
          open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666)) {
  if (descriptor_ < 0) FailWriting();
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  struct stat about;
  if (fstat(descriptor_, &about) == 0 && S_ISREG(about.st_mode)) unlink(path_.c_str());
  close(descriptor_);
}

void OutputFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) FailWriting();
    bytes.remove_prefix(static_cast<size_t>(written));
    position_ += static_cast<uint64_t>(written);
  }
}

void OutputFile::PadTo(uint64_t position) {
  static constexpr char kZeros[4096] = {};
  while (position_ < position) {
    Write({kZeros, static_cast<size_t>(std::min<uint64_t>(sizeof(kZeros), position - position_))});
  }
}

void OutputFile::Close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0) FailWriting();
}

void OutputFile::FailWriting() {
  const int error = errno;
  throw std::runtime_error(
      Cat("cannot write ", path_, ": ", std::strerror(error), " (after ", position_, " bytes)"));
}

}  // namespace tvm_byoc_dnnl
