// SPDX-License-Identifier: Apache-2.0
#include "common/output_file.h"

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
