// SPDX-License-Identifier: Apache-2.0
// Names of libraries that say which content they have.
//
// dlopen does not open a file whose name it has seen before: it answers with the library that it
// has loaded under this name, also where another file was moved over that one since. So a library
// is loaded under a name that leads to the same file and contains what the file is: its path, with
// an identity written in "/." and "/" in front of the last part. $ORIGIN, debuggers and
// /proc/self/maps still see the file, nothing is copied, and no descriptor stays open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tvm_byoc_dnnl {

/// What tells one file, and one content of it, from another.
struct FileIdentity {
  uint64_t hash = 0;
  bool sealed = false;  // it ends with the record that export_library of this package appends
};

/// The identity of a regular file; nothing for what is none, or cannot be read.
std::optional<FileIdentity> IdentityOf(const std::string& path);

/// A path of the same file with the identity in it; the path as it is where that would be too long.
std::string NameWith(const std::string& path, const FileIdentity& identity);

/// The identity's hash in such a name; nothing for other names.
std::optional<uint64_t> HashIn(const std::string& name);

/// Whether a library is loaded from the file of this name, but from another content of it.
bool IsLoadedWithOther(const std::string& name, uint64_t hash);

/// Waits for what another thread does with the same file.
void WaitShortly();

/// Says why a file could not be loaded in several attempts.
[[noreturn]] void FailToLoad(const std::string& path, bool overwritten);

/// Loads a library by what its file is now: `load` is called with the name to load it under, and
/// its result is given back. Fails if the file was overwritten in place while a library is loaded
/// from it, as that library is no longer what it was, and the loader cannot load the new one.
template <typename Load>
auto LoadByContent(const std::string& path, const Load& load) -> decltype(load(path)) {
  constexpr int kTries = 10;
  bool overwritten = false;
  for (int i = 0; i < kTries; ++i) {
    const std::optional<FileIdentity> before = IdentityOf(path);
    if (!before) return load(path);  // the loader says what is wrong with it
    const std::string name = NameWith(path, *before);
    overwritten = IsLoadedWithOther(name, before->hash);
    if (!overwritten) {
      auto loaded = load(name);
      // A file that was moved here meanwhile may have been loaded under the name of the other.
      const std::optional<FileIdentity> after = IdentityOf(path);
      if (!after || after->hash == before->hash) return loaded;
    }
    WaitShortly();  // for another thread to drop such a library
  }
  FailToLoad(path, overwritten);
}

}  // namespace tvm_byoc_dnnl
