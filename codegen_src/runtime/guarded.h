// SPDX-License-Identifier: Apache-2.0
// The mapping of our errors to tvm-ffi's.
#pragma once

#include <new>
#include <stdexcept>
#include <utility>

#include "common/support/error.h"
#include "native/threads.h"
#include "runtime/ffi.h"

namespace tvm_byoc_dnnl {

/// Runs `body`; our exceptions leave as errors that Python sees as the classes of errors.py.
template <typename Body>
auto Guarded(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const Error& error) {
    throw ffi::Error(Name(error.kind()), error.what(), "");
  } catch (const std::out_of_range& error) {  // an index in the data of a call
    throw ffi::Error("IndexError", error.what(), "");
  } catch (const std::runtime_error& error) {  // of an engine, or of the system
    throw ffi::Error("RuntimeError", error.what(), "");
  } catch (const std::bad_alloc&) {
    throw ffi::Error("MemoryError", "out of memory in a dnnl_byoc module", "");
  }
}

/// The same while no other thread forks; `body` must not wait for Python.
template <typename Body>
auto GuardedFromForks(const Body& body) -> decltype(body()) {
  return Guarded([&]() -> decltype(body()) {
    const HoldsForks here;
    return body();
  });
}

/// A function for Python whose exceptions leave like this.
template <typename Result, typename... Args>
auto Door(Result (*function)(Args...)) {
  return [function](Args... args) -> Result {
    return GuardedFromForks([&]() -> Result { return function(std::forward<Args>(args)...); });
  };
}

}  // namespace tvm_byoc_dnnl
