// SPDX-License-Identifier: Apache-2.0
#include "dnnl/execute.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "byoc_run.h"
#include "common/mapped.h"
#include "common/support/error.h"
#include "dnnl/emitted/dnnl_byoc_primitive.h"

namespace tvm_byoc_dnnl {
namespace {

/// Estimated size of a primitive with its descriptor and its code.
constexpr size_t kStepBytes = 96 << 10;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Check(int status, const char* error) {
  if (status == BYOC_NO_MEMORY) throw std::bad_alloc();
  if (status == BYOC_BAD_INDEX) throw std::out_of_range(error);
  if (status != BYOC_OK) throw std::runtime_error(error);
}

AlignedBuffer::AlignedBuffer(size_t bytes) : data_(byoc_allocate(bytes)), bytes_(bytes) {
  if (data_ == nullptr) throw std::bad_alloc();
}

void AlignedBuffer::Free::operator()(char* data) const { byoc_free(data); }

std::shared_ptr<AlignedBuffer> PackedStore::Find(const PackedKey& key) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& entry : entries_) {
    auto buffer = entry.key == key ? entry.buffer.lock() : nullptr;
    if (buffer != nullptr) return buffer;
  }
  return nullptr;
}

void PackedStore::Insert(const PackedKey& key, const std::shared_ptr<AlignedBuffer>& buffer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_old = [&](const Entry& entry) {  // or another plan's
    return entry.buffer.expired() || (entry.key == key && entry.buffer.lock() == buffer);
  };
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), is_old), entries_.end());
  if (key.tensor >= 0) entries_.push_back({key, buffer});
}

std::vector<PackedKey> PackedStore::FormsOf(int tensor) const {
  std::vector<PackedKey> forms;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.key.tensor == tensor && !entry.buffer.expired()) forms.push_back(entry.key);
  }
  return forms;
}

char* DnnlPlan::Packing::Take(int buffer, size_t bytes, int* ready) {
  const int index = program.buffers[buffer].index;
  buffers[index] = store->Find(program.packed[index]);
  *ready = buffers[index] != nullptr;
  if (!*ready) buffers[index] = std::make_shared<AlignedBuffer>(bytes);
  return buffers[index]->data();
}

void DnnlPlan::Packing::Drop(int number) {
  const Buffer& buffer = program.buffers[number];
  if (buffer.home == Home::kConstant) {
    DropPages(constants[buffer.index], static_cast<size_t>(buffer.bytes));
  } else if (buffer.home == Home::kPacked) {
    buffers[buffer.index].reset();
  }
}

DnnlPlan::DnnlPlan(Program program, Shapes shapes, const std::vector<const void*>& constants,
                   PackedStore* store)
    : Plan(std::move(shapes),
           program.knows_all ? program.known_seconds : std::numeric_limits<double>::infinity()),
      program_(std::move(program)),
      constants_(constants),
      buffers_(ListBuffers(program_)),
      packing_{program_, constants_, store, {}},
      plan_{} {
  packing_.buffers.resize(program_.packed.size());
  const int status = Build();
  if (status == BYOC_OK) {
    for (const byoc_buffer& buffer : buffers_) {
      if (buffer.home != BYOC_PACKED) continue;
      store->Insert(program_.packed[buffer.index], packing_.buffers[buffer.index]);
    }
    return;
  }
  const std::string error = plan_.error;
  byoc_destroy(&plan_);
  Check(status, error.c_str());
}

DnnlPlan::~DnnlPlan() { byoc_destroy(&plan_); }

int DnnlPlan::Build() {
  BYOC_TRY(byoc_setup(&plan_, buffers_.data(), static_cast<int>(buffers_.size()),
                      static_cast<int>(program_.init.size()),
                      static_cast<int>(program_.steps.size()),
                      static_cast<size_t>(program_.arena_bytes), constants_.data()));
  plan_.owner = {&packing_,
                 [](void* self, int buffer, size_t bytes, int* ready) -> char* {
                   try {
                     return static_cast<Packing*>(self)->Take(buffer, bytes, ready);
                   } catch (const std::bad_alloc&) {
                     return nullptr;
                   }
                 },
                 [](void* self, int buffer) { static_cast<Packing*>(self)->Drop(buffer); }};
  for (size_t i = 0; i < program_.init.size(); ++i) {
    BYOC_TRY(AddStep(program_.init[i], &plan_.init[i], /*once=*/true));
  }
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    BYOC_TRY(AddStep(program_.steps[i], &plan_.steps[i], /*once=*/false));
  }
  return byoc_initialise(&plan_);
}

int DnnlPlan::AddStep(const Step& step, byoc_step* to, bool once) {
  to->name = step.impl.c_str();
  if (step.kernel != nullptr) {
    const Place* scratch = nullptr;
    for (const StepArg& arg : step.args) {
      if (arg.arg == DNNL_ARG_SCRATCHPAD) {
        scratch = &arg.place;
        continue;
      }
      BYOC_TRY(byoc_bind(&plan_, to, arg.place.buffer, static_cast<size_t>(arg.place.offset),
                         arg.place.md.get_size(), arg.arg == DNNL_ARG_DST));
    }
    return byoc_use_kernel(&plan_, to, step.kernel->run, step.params.data(), step.params.size(),
                           scratch == nullptr ? -1 : scratch->buffer,
                           scratch == nullptr ? 0 : scratch->md.get_size());
  }
  dnnl_byoc_step* primitive = dnnl_byoc_begin(CpuEngine().get(), to, step.impl.c_str());
  if (primitive == nullptr) return BYOC_NO_MEMORY;
  primitive->from = step.pd.get();
  for (const StepArg& arg : step.args) {
    BYOC_TRY(dnnl_byoc_add_arg(&plan_, primitive, arg.arg, arg.place.buffer,
                               static_cast<size_t>(arg.place.offset), arg.place.md.get()));
  }
  return once ? BYOC_OK : dnnl_byoc_create(&plan_, primitive);
}

size_t DnnlPlan::bytes() const {
  return static_cast<size_t>(program_.arena_bytes) + kStepBytes * program_.steps.size();
}

bool DnnlPlan::UsesConstant(size_t index) const { return byoc_reads_constant(&plan_, index) != 0; }

size_t DnnlPlan::packed_bytes() const {
  size_t bytes = 0;
  for (const auto& buffer : packing_.buffers) bytes += buffer == nullptr ? 0 : buffer->bytes();
  return bytes;
}

void DnnlPlan::Execute(const std::vector<void*>& inputs, const std::vector<void*>& outputs,
                       double* seconds) const {
  char error[BYOC_ERROR_BYTES] = "";
  Check(byoc_run_timed(&plan_, inputs.data(), outputs.data(), seconds == nullptr ? nullptr : Now,
                       seconds, error),
        error);
}

void DnnlPlan::Run(const std::vector<void*>& inputs, const std::vector<void*>& outputs) const {
  Execute(inputs, outputs, nullptr);
}

}  // namespace tvm_byoc_dnnl
