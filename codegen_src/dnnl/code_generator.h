// SPDX-License-Identifier: Apache-2.0
// What other threads do while a graph is still being lowered.
#ifndef TVM_BYOC_DNNL_DNNL_CODE_GENERATOR_H_
#define TVM_BYOC_DNNL_DNNL_CODE_GENERATOR_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {

/// Has oneDNN describe and create primitives in other threads. It keeps their code, and we keep the
/// descriptions, so that each step finds its own. What fails here fails again, with a message,
/// where it is needed.
class CodeGenerator {
 public:
  CodeGenerator();
  /// What has not begun is left out.
  ~CodeGenerator();

  /// Asks for the primitive of an operation that will be lowered later.
  void Ask(OpDesc op);

  /// Generates the code of a primitive, unless it was added before.
  void Add(const PrimitiveDesc& pd);

  /// Takes part in the work until all of it is done. Nothing may be added afterwards.
  void Finish();

 private:
  void Push(std::function<void()> task);
  void Work(bool waits);

  const int threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // under the lock
  bool complete_ = false;                   // under the lock: nothing will be added
  std::set<const_dnnl_primitive_desc_t> known_;
  std::vector<PrimitiveDesc> kept_;  // so that no address in `known_` is used again
  std::vector<std::thread> helpers_;
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_CODE_GENERATOR_H_
