// SPDX-License-Identifier: Apache-2.0
#include "common/file_identity.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "common/support/bytes.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

// The end of the record that Python appends; a digit for its version follows.
constexpr std::string_view kSeal = "tvm_byoc_dnnl checksum ";
constexpr size_t kTailBytes = 4096;  // holds a record of a few ranges, which has a checksum of all
constexpr int kBits = 64;

std::string Canonical(const std::string& folder) {
  char resolved[PATH_MAX];
  return realpath(folder.empty() ? "/" : folder.c_str(), resolved) != nullptr ? resolved : "";
}

/// A file that is open as long as this exists; only a regular one is, and a pipe is not waited for.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    regular_ = descriptor_ >= 0 && fstat(descriptor_, &about_) == 0 && S_ISREG(about_.st_mode);
  }
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  bool regular() const { return regular_; }
  const struct stat& about() const { return about_; }
  std::string Tail(size_t bytes) const {
    const auto size = static_cast<size_t>(about_.st_size);
    std::string tail(std::min(bytes, size), '\0');
    const ssize_t got =
        pread(descriptor_, tail.data(), tail.size(), static_cast<off_t>(size - tail.size()));
    tail.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return tail;
  }

 private:
  int descriptor_;
  struct stat about_ = {};
  bool regular_;
};

}  // namespace

std::optional<FileIdentity> IdentityOf(const std::string& path) {
  const OpenFile file(path);
  if (!file.regular()) return std::nullopt;
  const std::string tail = file.Tail(kTailBytes);
  FileIdentity identity;
  identity.sealed =
      tail.size() > kSeal.size() &&
      std::string_view(tail).substr(tail.size() - kSeal.size() - 1, kSeal.size()) == kSeal;
  const struct stat& about = file.about();
  std::string content = tail;
  Append<uint64_t>(about.st_dev, &content);
  Append<uint64_t>(about.st_ino, &content);
  Append<uint64_t>(static_cast<uint64_t>(about.st_size), &content);
  // Of a sealed file the time may change: the tail says what it holds.
  if (!identity.sealed) {
    Append<uint64_t>(static_cast<uint64_t>(about.st_mtim.tv_sec), &content);
    Append<uint64_t>(static_cast<uint64_t>(about.st_mtim.tv_nsec), &content);
  }
  identity.hash = Xxh64(content);
  return identity;
}

std::string NameWith(const std::string& path, const FileIdentity& identity) {
  const size_t end = path.rfind('/');
  // A name without a folder is searched for on the paths of the loader.
  if (end == std::string::npos) return path;
  std::string name = Canonical(path.substr(0, end));
  if (name.empty()) return path;
  for (int bit = 0; bit < kBits; ++bit) name += (identity.hash >> bit & 1) != 0 ? "/." : "/";
  name += path.substr(end);
  return name.size() < PATH_MAX ? name : path;
}

std::optional<uint64_t> HashIn(const std::string& name) {
  size_t end = name.rfind('/');
  if (end == std::string::npos) return std::nullopt;
  uint64_t hash = 0;
  for (int bit = kBits - 1; bit >= 0; --bit) {
    const bool one = end > 0 && name[end - 1] == '.';
    if (one) --end;
    if (end == 0 || name[end - 1] != '/') return std::nullopt;
    --end;
    hash |= static_cast<uint64_t>(one) << bit;
  }
  return hash;
}

bool IsLoadedWithOther(const std::string& name, uint64_t hash) {
  // Finds a library of this name, or of the same file under another one; opens no other.
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  struct link_map* map = nullptr;
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr;
  const std::optional<uint64_t> loaded = known ? HashIn(map->l_name) : std::nullopt;
  dlclose(library);
  return loaded && *loaded != hash;
}

void WaitShortly() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }

void FailToLoad(const std::string& path, bool overwritten) {
  if (overwritten) {
    Fail(ErrorKind::kArtifact, path, " was overwritten in place while a model is loaded from it: ",
         "close that model first, and let a new file take the place of the old one ",
         "(export_library and mv do, cp does not)");
  }
  Fail(ErrorKind::kArtifact, path, " is replaced again and again while it is loaded; ",
       "load it when it is complete");
}

}  // namespace tvm_byoc_dnnl
