// SPDX-License-Identifier: Apache-2.0
#include "common/engine.h"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const Engine>> engines;
  std::atomic<EngineHelp> help{nullptr};
};

Registry& TheRegistry() {
  static auto* registry = new Registry;  // outlives all
  return *registry;
}

/// The folder of the library that this code is in, with a slash at its end.
std::string OwnFolder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&OwnFolder), &info);
  const std::string path = info.dli_fname == nullptr ? "" : info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

/// The name is read from a saved module and is not trusted: it must not name another folder.
void CheckName(const std::string& name) {
  for (char c : name) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_') continue;
    Fail(ErrorKind::kArtifact, "an engine's name has the letters a-z, digits and _, got ",
         name.size(), " characters with others");
  }
}

const Engine* LoadEngine(const std::string& name) {
  const std::string path = Cat(OwnFolder(), "libtvm_byoc_engine_", name, ".so");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::string error = library == nullptr ? dlerror() : "";
  std::string advice = Cat("Searched: ", path, " and its run path. Install what is named here, or ",
                           "put its folder on LD_LIBRARY_PATH");
  if (EngineHelp help = TheRegistry().help; library == nullptr && help != nullptr) {
    advice = help(name, error);
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) error = dlerror();
  }
  if (library == nullptr)
    Fail(ErrorKind::kLibrary, "cannot load ", path, ": ", error, ". ", advice);
  auto entry = reinterpret_cast<EngineEntry>(dlsym(library, kEngineEntry));
  if (entry == nullptr) Fail(ErrorKind::kLibrary, path, " does not export ", kEngineEntry);
  return entry();
}

}  // namespace

std::unique_ptr<Plan> Planner::MakeGrowingPlan(const Shapes&, const std::vector<const void*>&,
                                               const Growth&) {
  Fail(ErrorKind::kUnsupported, "this library has no plans for caches that grow");
}

std::string Engine::Setting() const {
  const std::string by = ChoosesBy();
  return Cat(Version(), ", ", Isa(), ", ", by, by.empty() ? "" : ", ", Threads(),
             Threads() == 1 ? " thread" : " threads");
}

KnownTimes Engine::MeasureCandidates(const Graph&, int) const { return {}; }

const Engine& FindEngine(const std::string& name) {
  CheckName(name);
  Registry& registry = TheRegistry();
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    auto found = registry.engines.find(name);
    if (found != registry.engines.end()) return *found->second;
  }
  // Without the lock: the host is called, and may wait for a thread that waits for the lock.
  std::unique_ptr<const Engine> loaded(LoadEngine(name));
  std::lock_guard<std::mutex> lock(registry.mutex);
  return *registry.engines.try_emplace(name, std::move(loaded)).first->second;
}

void RegisterEngine(const std::string& name, std::unique_ptr<const Engine> engine) {
  std::lock_guard<std::mutex> lock(TheRegistry().mutex);
  TheRegistry().engines[name] = std::move(engine);
}

void ForgetAll() {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  for (const auto& entry : registry.engines) entry.second->Forget();
}

void SetEngineHelp(EngineHelp help) { TheRegistry().help = help; }

}  // namespace tvm_byoc_dnnl
