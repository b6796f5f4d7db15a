// SPDX-License-Identifier: Apache-2.0
// Attention over the pages of TVM's cache of keys and values, in the place of the functions that
// `relax.frontend.nn` gives to such a cache.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/engine.h"
#include "common/support/error.h"
#include "kernels/byoc_attention_plan.h"
#include "runtime/arguments.h"
#include "runtime/guarded.h"

namespace tvm_byoc_dnnl {
namespace {

bool IsDense(const DLTensor& tensor, int ndim, DLDataTypeCode code) {
  return tensor.ndim == ndim && tensor.device.device_type == kDLCPU && tensor.dtype.code == code &&
         tensor.dtype.bits == 32 && tensor.dtype.lanes == 1 && ffi::IsContiguous(tensor);
}

/// The arguments of a call. Their number says which of three functions is called: `decode` has one
/// query for each sequence and no limits of these; `ragged` has keys and values side by side.
class PagedCall {
 public:
  explicit PagedCall(ffi::PackedArgs args)
      : is_decode_(args.size() == 13), in_pages_(args.size() != 14) {
    auto next = [&, i = 0](bool is_there = true) mutable {
      return is_there ? args[i++].cast<DLTensor*>() : nullptr;
    };
    query_ = next();
    limits_ = next(!is_decode_);
    keys_ = next();
    values_ = next(!in_pages_);
    key_limits_ = next();
    pages_ = next(in_pages_);
    last_ = next(in_pages_);
    next();  // what turns by angles in the call
    next();
    result_ = next();
    sums_ = next();
    const int scalars = is_decode_ ? 9 : in_pages_ ? 10 : 9;
    is_causal_ = !is_decode_ && args[scalars].cast<int64_t>() != 0;
    turns_ = args[scalars + (is_decode_ ? 0 : 1)].cast<int64_t>() != 0;
    scale_ = args[args.size() - 1].cast<double>();
  }

  /// Whether it is one for the kernel: float32, keys already turned, no windows.
  bool IsPlain() const {
    const auto are_numbers = [](const DLTensor* t) { return !t || IsDense(*t, 1, kDLInt); };
    return !turns_ && are_numbers(limits_) && are_numbers(key_limits_) && are_numbers(pages_) &&
           are_numbers(last_) && IsDense(*query_, 3, kDLFloat) && IsDense(*result_, 3, kDLFloat) &&
           IsDense(*sums_, 2, kDLFloat) && IsDense(*keys_, in_pages_ ? 5 : 3, kDLFloat) &&
           (in_pages_ || IsDense(*values_, 3, kDLFloat));
  }

  /// False if the engine has no such kernel here.
  bool Run(const Engine& engine) const {
    byoc_attention_params p = Described();
    const int64_t sequences = key_limits_->shape[0] - 1;
    if (is_decode_) {
      p.batch = sequences;
      p.queries = 1;
      std::vector<int64_t> starts(sequences);
      std::vector<const int32_t*> tables(sequences);
      for (int64_t i = 0; i < sequences; ++i) {
        const int64_t keys = Keys(i);
        starts[i] = keys - 1;
        tables[i] = Numbers(pages_) + Numbers(key_limits_)[i];
        p.keys = std::max(p.keys, keys);
      }
      return Attend(engine, p, 0, 0, starts.data(), tables.data());
    }
    for (int64_t i = 0; i < sequences; ++i) {
      const int64_t first = Numbers(limits_)[i], key = Numbers(key_limits_)[i];
      p.queries = Numbers(limits_)[i + 1] - first;
      if (first < 0 || p.queries < 0 || first + p.queries > query_->shape[0]) FailAt(i);
      if (p.queries == 0) continue;
      p.keys = Keys(i);
      const int64_t start = p.keys - p.queries;
      const int32_t* table = in_pages_ ? Numbers(pages_) + key : nullptr;
      if (!Attend(engine, p, first, in_pages_ ? 0 : key, &start, &table)) return false;
    }
    return true;
  }

 private:
  static const int32_t* Numbers(const DLTensor* tensor) {
    return reinterpret_cast<const int32_t*>(DataOf(*tensor));
  }

  [[noreturn]] static void FailAt(int64_t sequence) {
    Fail(ErrorKind::kInput, "the limits of sequence ", sequence, " do not fit the cache");
  }

  byoc_attention_params Described() const {
    byoc_attention_params p{};
    p.batch = 1;
    p.heads = query_->shape[1];
    p.key_heads = keys_->shape[in_pages_ ? 2 : 1];
    p.key.width = query_->shape[2];
    p.value.width = result_->shape[2];
    const int64_t rows = in_pages_ ? keys_->shape[3] : 0;
    const auto source = [&](int64_t width) -> byoc_attention_strides {
      if (in_pages_) return {2 * p.key_heads * rows * width, rows * width, width};
      return {0, width, p.key_heads * width};
    };
    p.key.strides = source(p.key.width);
    p.value.strides = source(p.value.width);
    p.query = {p.heads * p.key.width, p.key.width, p.heads * p.key.width};
    p.dst = {p.heads * p.value.width, p.value.width, p.heads * p.value.width};
    p.rule.scale = scale_;
    p.rule.no_nan = p.rule.has_sums = 1;
    p.reach.has_starts = is_decode_ || is_causal_;
    p.reach.page_rows = rows;
    return p;
  }

  /// The keys of a sequence; they are all there.
  int64_t Keys(int64_t sequence) const {
    const int32_t* limits = Numbers(key_limits_);
    const int64_t first = limits[sequence], count = limits[sequence + 1] - first;
    const DLTensor& rows = in_pages_ ? *pages_ : *keys_;
    if (first < 0 || count < 0 || first + count > rows.shape[0]) FailAt(sequence);
    if (!in_pages_ || count == 0) return count;
    const int32_t* pages = Numbers(pages_) + first;
    const int64_t last = Numbers(last_)[sequence];
    const bool are_there = std::all_of(
        pages, pages + count, [&](int32_t page) { return page >= 0 && page < keys_->shape[0]; });
    if (!are_there || last < 0 || last > keys_->shape[3]) FailAt(sequence);
    return (count - 1) * keys_->shape[3] + last;
  }

  bool Attend(const Engine& engine, const byoc_attention_params& p, int64_t query, int64_t key,
              const int64_t* starts, const int32_t* const* tables) const {
    const auto at = [](const DLTensor* tensor, int64_t place) -> void* {
      return reinterpret_cast<float*>(DataOf(*tensor)) + place;
    };
    const auto changed = [](const void* data) { return const_cast<void*>(data); };
    std::vector<void*> data = {at(query_, query * p.query.row), at(keys_, key * p.key.strides.row),
                               in_pages_ ? at(keys_, p.key_heads * p.key.strides.head)
                                         : at(values_, key * p.value.strides.row)};
    if (p.reach.has_starts) data.push_back(changed(starts));
    if (in_pages_) data.push_back(changed(tables));
    data.push_back(at(result_, query * p.dst.row));
    data.push_back(at(sums_, query * p.heads));
    return engine.Attend(p, data.data());
  }

  const bool is_decode_, in_pages_;
  const DLTensor *query_, *limits_, *keys_, *values_, *key_limits_, *pages_, *last_;
  const DLTensor *result_, *sums_;
  bool is_causal_, turns_;
  double scale_;
};

/// A function for such a cache: the engine's where it has one, else the given one of TVM.
ffi::Function PagedAttention(const ffi::String& engine, const ffi::Function& otherwise) {
  return ffi::Function::FromPacked([engine, otherwise](ffi::PackedArgs args, ffi::Any* result) {
    const bool is_done = GuardedFromForks([&] {
      const PagedCall call(args);
      return call.IsPlain() && call.Run(FindEngine(engine));
    });
    if (!is_done) otherwise.CallPacked(args, result);
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def("tvm_byoc_dnnl.PagedAttention", PagedAttention);
}

}  // namespace
}  // namespace tvm_byoc_dnnl
