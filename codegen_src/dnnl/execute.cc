// SPDX-License-Identifier: Apache-2.0
#include "dnnl/execute.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

#include "common/mapped.h"
#include "common/support/error.h"
#include "dnnl/report.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr size_t kMaxFreeContexts = 64;

// Outside of any plan: packs at initialisation through the same steps that a call runs.
void FillRange(char* data, size_t bytes, const std::string& element) {
  if (std::all_of(element.begin(), element.end(), [&](char c) { return c == element[0]; })) {
    std::memset(data, element[0], bytes);
    return;
  }
  size_t done = std::min(bytes, element.size());
  std::memcpy(data, element.data(), done);
  while (done < bytes) {  // doubling what is there
    size_t chunk = std::min(done, bytes - done);
    std::memcpy(data + done, data, chunk);
    done += chunk;
  }
}

void Check(dnnl_status_t status, const char* what, const Step& step) {
  if (status != dnnl_success) {
    throw std::runtime_error(Cat("oneDNN: ", what, " of node ", step.node, " (", step.impl,
                                 ") failed with status ", static_cast<int>(status)));
  }
}

}  // namespace

const dnnl::engine& CpuEngine() {
  static const auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // outlives all
  return *engine;
}

/// What one call needs for itself: the arena, a stream, memory objects and argument lists.
class DnnlPlan::Context {
 public:
  explicit Context(const DnnlPlan& plan)
      : plan_(plan), arena_(static_cast<size_t>(plan.program_.arena_bytes)), stream_(CpuEngine()) {
    for (const Step& step : plan.program_.steps) {
      std::vector<dnnl_exec_arg_t> args;
      for (const StepArg& arg : step.args) {
        const Buffer& buffer = plan.program_.buffers[arg.place.buffer];
        bool outside = buffer.home == Home::kInput || buffer.home == Home::kOutput;
        char* base = buffer.home == Home::kArena ? arena_.data() + buffer.offset
                     : outside                   ? nullptr
                                                 : plan.ConstantBase(buffer);
        void* data = outside ? nullptr : base + arg.place.offset;
        memories_.emplace_back(arg.place.md, CpuEngine(), data);
        args.push_back({arg.arg, memories_.back().get()});
        if (outside) {
          bound_.push_back({memories_.back().get(), buffer.home == Home::kInput,
                            static_cast<size_t>(buffer.index), arg.place.offset});
        }
      }
      args_.push_back(std::move(args));
    }
  }

  void Bind(const std::vector<void*>& inputs, const std::vector<void*>& outputs) {
    for (const Bound& bound : bound_) {
      char* base = static_cast<char*>((bound.input ? inputs : outputs)[bound.index]);
      dnnl_memory_set_data_handle(bound.memory, base + bound.offset);
    }
  }

  void RunStep(size_t index) const {
    const Step& step = plan_.program_.steps[index];
    const std::vector<dnnl_exec_arg_t>& args = args_[index];
    if (step.IsFill()) {
      void* data = nullptr;
      dnnl_memory_get_data_handle(args[0].memory, &data);
      FillRange(static_cast<char*>(data), step.args[0].place.md.get_size(), step.fill);
      return;
    }
    Check(dnnl_primitive_execute(plan_.primitives_[index].get(), stream_.get(),
                                 static_cast<int>(args.size()), args.data()),
          "execution", step);
  }

  void Wait() { stream_.wait(); }

 private:
  struct Bound {
    dnnl_memory_t memory;
    bool input;  // else output
    size_t index;
    int64_t offset;
  };

  const DnnlPlan& plan_;
  AlignedBuffer arena_;
  dnnl::stream stream_;
  std::vector<dnnl::memory> memories_;
  std::vector<Bound> bound_;
  std::vector<std::vector<dnnl_exec_arg_t>> args_;  // by step
};

DnnlPlan::DnnlPlan(Program program, Shapes shapes, const std::vector<const void*>& constants,
                   PackedStore* store)
    : Plan(std::move(shapes)), program_(std::move(program)), constants_(constants) {
  Pack(store);
  for (const Step& step : program_.steps) {
    primitives_.push_back(step.IsFill() ? dnnl::primitive() : dnnl::primitive(step.pd.get()));
  }
  Release(Acquire());  // memory problems show at load, not at the first call
}

DnnlPlan::~DnnlPlan() = default;

char* DnnlPlan::ConstantBase(const Buffer& buffer) const {
  if (buffer.home == Home::kPacked) return packed_[buffer.index]->data();
  return static_cast<char*>(const_cast<void*>(constants_[buffer.index]));
}

/// Runs the steps of initialisation whose results a call reads and the store does not have.
void DnnlPlan::Pack(PackedStore* store) {
  packed_.resize(program_.packed.size());
  auto packed_index = [&](const StepArg& arg) {
    const Buffer& buffer = program_.buffers[arg.place.buffer];
    return buffer.home == Home::kPacked ? buffer.index : -1;
  };
  std::set<int> resident;  // read by calls
  for (const Step& step : program_.steps) {
    for (const StepArg& arg : step.args) {
      if (packed_index(arg) >= 0) resident.insert(packed_index(arg));
    }
  }
  std::set<int> missing;
  auto need = [&](int index) {
    if (packed_[index] != nullptr || missing.count(index)) return;
    packed_[index] = store->Find(program_.packed[index]);
    if (packed_[index] == nullptr) missing.insert(index);
  };
  for (int index : resident) need(index);
  std::vector<bool> run(program_.init.size(), false);
  for (size_t i = program_.init.size(); i-- > 0;) {
    const Step& step = program_.init[i];
    auto writes = std::find_if(step.args.begin(), step.args.end(),
                               [](const StepArg& arg) { return arg.arg == DNNL_ARG_DST; });
    run[i] = missing.count(packed_index(*writes)) > 0;
    if (!run[i]) continue;
    for (const StepArg& arg : step.args) {
      if (packed_index(arg) >= 0) need(packed_index(arg));
    }
  }
  for (int index : missing) {
    int64_t bytes = 0;
    for (const Buffer& buffer : program_.buffers) {
      if (buffer.home == Home::kPacked && buffer.index == index) bytes = buffer.bytes;
    }
    packed_[index] = std::make_shared<AlignedBuffer>(static_cast<size_t>(bytes));
  }
  dnnl::stream stream(CpuEngine());
  std::vector<std::vector<int>> dying = LastUses(run);
  for (size_t i = 0; i < program_.init.size(); ++i) {
    const Step& step = program_.init[i];
    if (!run[i]) continue;
    RunInitStep(step, stream.get());
    stream.wait();
    for (int number : dying[i]) {  // at once: the sum of what is unpacked and packed is the peak
      const Buffer& buffer = program_.buffers[number];
      if (buffer.home == Home::kConstant && !UsesConstant(buffer.index)) {
        DropPages(constants_[buffer.index], static_cast<size_t>(buffer.bytes));
      } else if (buffer.home == Home::kPacked && resident.count(buffer.index) == 0) {
        packed_[buffer.index].reset();
      }
    }
  }
  for (int index : resident) {
    if (missing.count(index) != 0) store->Insert(program_.packed[index], packed_[index]);
  }
}

/// Per step of initialisation that runs: the buffers that no later one touches.
std::vector<std::vector<int>> DnnlPlan::LastUses(const std::vector<bool>& run) const {
  std::vector<std::vector<int>> dying(program_.init.size());
  std::set<int> later;
  for (size_t i = program_.init.size(); i-- > 0;) {
    if (!run[i]) continue;
    for (const StepArg& arg : program_.init[i].args) {
      if (later.insert(arg.place.buffer).second) dying[i].push_back(arg.place.buffer);
    }
  }
  return dying;
}

void DnnlPlan::RunInitStep(const Step& step, dnnl_stream_t stream) const {
  std::vector<dnnl::memory> memories;
  std::vector<dnnl_exec_arg_t> args;
  for (const StepArg& arg : step.args) {
    char* base = ConstantBase(program_.buffers[arg.place.buffer]);
    memories.emplace_back(arg.place.md, CpuEngine(), base + arg.place.offset);
    args.push_back({arg.arg, memories.back().get()});
  }
  if (step.IsFill()) {
    char* data = static_cast<char*>(memories[0].get_data_handle());
    FillRange(data, step.args[0].place.md.get_size(), step.fill);
    return;
  }
  dnnl::primitive primitive(step.pd.get());
  Check(dnnl_primitive_execute(primitive.get(), stream, static_cast<int>(args.size()), args.data()),
        "initialisation", step);
}

bool DnnlPlan::UsesConstant(size_t index) const {
  for (const Step& step : program_.steps) {
    for (const StepArg& arg : step.args) {
      const Buffer& buffer = program_.buffers[arg.place.buffer];
      if (buffer.home == Home::kConstant && buffer.index == static_cast<int>(index)) return true;
    }
  }
  return false;
}

size_t DnnlPlan::packed_bytes() const {
  size_t bytes = 0;
  for (const auto& buffer : packed_) bytes += buffer == nullptr ? 0 : buffer->bytes();
  return bytes;
}

std::unique_ptr<DnnlPlan::Context> DnnlPlan::Acquire() const {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_contexts_.empty()) {
      std::unique_ptr<Context> context = std::move(free_contexts_.back());
      free_contexts_.pop_back();
      return context;
    }
  }
  return std::make_unique<Context>(*this);
}

void DnnlPlan::Release(std::unique_ptr<Context> context) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_contexts_.size() < kMaxFreeContexts) free_contexts_.push_back(std::move(context));
}

void DnnlPlan::Run(const std::vector<void*>& inputs, const std::vector<void*>& outputs) const {
  std::unique_ptr<Context> context = Acquire();
  context->Bind(inputs, outputs);
  for (size_t i = 0; i < primitives_.size(); ++i) context->RunStep(i);
  context->Wait();
  Release(std::move(context));
}

json::Object DnnlPlan::Describe(const Graph& graph) const { return DescribePlan(graph, *this); }

json::Object DnnlPlan::Profile(const Graph& graph, const std::vector<void*>& inputs,
                               const std::vector<void*>& outputs) const {
  using Clock = std::chrono::steady_clock;
  std::unique_ptr<Context> context = Acquire();
  context->Bind(inputs, outputs);
  std::vector<double> seconds;
  for (size_t i = 0; i < primitives_.size(); ++i) {
    Clock::time_point start = Clock::now();
    context->RunStep(i);
    context->Wait();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  Release(std::move(context));
  return DescribeProfile(graph, *this, seconds);
}

}  // namespace tvm_byoc_dnnl
