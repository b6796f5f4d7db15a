// SPDX-License-Identifier: Apache-2.0
#include "dnnl/code_generator.h"

#include <omp.h>

#include <exception>
#include <system_error>
#include <utility>

#include "dnnl/execute.h"

namespace tvm_byoc_dnnl {

CodeGenerator::CodeGenerator() : threads_(omp_get_max_threads()) {}

CodeGenerator::~CodeGenerator() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_.clear();
  }
  Finish();
}

void CodeGenerator::Ask(OpDesc op) {
  if (threads_ == 1) return;  // nobody would be faster than the lowering
  Push([op = std::move(op)] { AskOneDnn(op, CpuEngine()); });
}

void CodeGenerator::Add(const PrimitiveDesc& pd) {
  if (!known_.insert(pd.get()).second) return;
  kept_.push_back(pd);
  Push([pd] {
    dnnl_primitive_t primitive = nullptr;
    if (dnnl_primitive_create(&primitive, pd.get()) == dnnl_success)
      dnnl_primitive_destroy(primitive);
  });
}

void CodeGenerator::Push(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(task));
  }
  changed_.notify_one();
  if (static_cast<int>(helpers_.size()) + 1 >= threads_) return;
  try {
    helpers_.emplace_back([this] {
      omp_set_num_threads(threads_);  // part of what oneDNN keeps the code by
      Work(/*waits=*/true);
    });
  } catch (const std::system_error&) {  // no thread to be had
  }
}

void CodeGenerator::Finish() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    complete_ = true;
  }
  changed_.notify_all();
  Work(/*waits=*/false);
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
}

void CodeGenerator::Work(bool waits) {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (waits) changed_.wait(lock, [this] { return complete_ || !work_.empty(); });
      if (work_.empty()) return;
      task = std::move(work_.front());
      work_.pop_front();
    }
    try {
      task();
    } catch (const std::exception&) {  // as above: it fails again where it is needed
    }
  }
}

}  // namespace tvm_byoc_dnnl
