// SPDX-License-Identifier: Apache-2.0
// Independent pieces of work on threads that are none of OpenMP's team.
#pragma once

#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

#include "byoc_team.h"

namespace tvm_byoc_dnnl {

/// Calls `work`, which does not throw, with each number below `count`: here and in as many threads
/// as this one may use. They may use as many, which is part of what a library keeps its code by.
template <typename Work>
void ForEach(size_t count, const Work& work) {
  const int threads = byoc_threads();
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  try {
    for (size_t n = 1; n < count && static_cast<int>(n) < threads; ++n) {
      helpers.emplace_back([&] {
        byoc_set_threads(threads);
        take();
      });
    }
  } catch (const std::system_error&) {  // no thread to be had
  }
  take();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace tvm_byoc_dnnl
