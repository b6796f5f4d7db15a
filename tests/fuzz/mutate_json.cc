// SPDX-License-Identifier: Apache-2.0
// libFuzzer's mutator for graphs: changes a document, not its bytes, so that most of what it makes
// gets past the JSON reader. Documents that are not JSON are left to libFuzzer's own mutations.
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/graph.h"
#include "common/support/error.h"
#include "common/support/json.h"
#include "fuzz.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test
using json::Array;
using json::Member;
using json::Object;
using json::Value;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kIntegers[] = {0,
                                 1,
                                 2,
                                 3,
                                 4,
                                 5,
                                 7,
                                 8,
                                 16,
                                 17,
                                 31,
                                 64,
                                 -1,
                                 -2,
                                 1 << 20,
                                 1LL << 31,
                                 (1LL << 31) - 1,
                                 1LL << 32,
                                 1LL << 60,
                                 1LL << 61,
                                 1LL << 62,
                                 kMost,
                                 kLeast};
constexpr double kNumbers[] = {0.0, -0.0, 1.0, -1.0, 0.5, 1e-5, 6.0, 1e38, 1e300, -1e300, 5e-324};

const std::vector<std::string>& Vocabulary() {
  static const std::vector<std::string> words = [] {
    std::vector<std::string> all = Words(
        "float32 float16 bfloat16 int32 int8 uint8 bool float64 int64 n m + - * // % max min inf "
        "-inf nan tensor shape kind attrs post_ops source eltwise binary alg alpha beta input "
        "scale zero_point axis alias "
        "inputs outputs name dtype dnnl_0");
    for (int i = 0; i < kKindCount; ++i) {
      const KindSpec& spec = SpecOf(static_cast<Kind>(i));
      all.emplace_back(spec.name);
      for (const char* list : {spec.attrs, spec.algs}) {
        std::vector<std::string> more = Words(list);
        all.insert(all.end(), more.begin(), more.end());
      }
    }
    return all;
  }();
  return words;
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  /// `value` with one place changed; `donor` gives whole values.
  Value Change(const Value& value, const Value& donor) {
    if (Below(4) == 0) return ReplaceEverywhere(value);
    donor_ = &donor;
    target_ = Below(Count(value));
    return Visit(value);
  }

  size_t Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }

 private:
  static size_t Count(const Value& value) {
    size_t count = 1;
    if (const Array* array = value.As<Array>()) {
      for (const Value& item : *array) count += Count(item);
    } else if (const Object* object = value.As<Object>()) {
      for (const Member& member : *object) count += Count(member.second);
    }
    return count;
  }

  static const Value& At(const Value& value, size_t* index) {
    if (*index == 0) return value;
    auto descend = [&](const Value& item) -> const Value* {
      size_t count = Count(item);
      --*index;
      if (*index < count) return &At(item, index);
      *index -= count - 1;
      return nullptr;
    };
    if (const Array* array = value.As<Array>()) {
      for (const Value& item : *array) {
        if (const Value* found = descend(item)) return *found;
      }
    } else if (const Object* object = value.As<Object>()) {
      for (const Member& member : *object) {
        if (const Value* found = descend(member.second)) return *found;
      }
    }
    return value;
  }

  Value Visit(const Value& value) {
    if (target_-- == 0) return ChangeHere(value);
    return Rebuild(value, [this](const Value& item) { return Visit(item); });
  }

  static Value Rebuild(const Value& value, const std::function<Value(const Value&)>& of) {
    if (const Array* array = value.As<Array>()) {
      Array result;
      for (const Value& item : *array) result.push_back(of(item));
      return result;
    }
    if (const Object* object = value.As<Object>()) {
      Object result;
      for (const Member& member : *object) result.emplace_back(member.first, of(member.second));
      return result;
    }
    return value;
  }

  int64_t Integer(int64_t old) {
    switch (Below(4)) {
      case 0:
        return old < kMost ? old + 1 : old;
      case 1:
        return old > kLeast ? old - 1 : old;
      default:
        return kIntegers[Below(std::size(kIntegers))];
    }
  }

  const std::string& Word() { return Vocabulary()[Below(Vocabulary().size())]; }

  /// One integer (a size, say) becomes another in the whole document: shapes stay consistent.
  Value ReplaceEverywhere(const Value& value) {
    std::vector<int64_t> integers;
    Collect(value, &integers);
    if (integers.empty()) return value;
    const int64_t from = integers[Below(integers.size())];
    const Value to = Below(6) == 0 ? Value("n") : Value(Integer(from));
    std::function<Value(const Value&)> replace = [&](const Value& item) -> Value {
      const int64_t* integer = item.As<int64_t>();
      if (integer != nullptr) return *integer == from ? to : item;
      return Rebuild(item, replace);
    };
    return replace(value);
  }

  static void Collect(const Value& value, std::vector<int64_t>* integers) {
    if (const int64_t* integer = value.As<int64_t>()) integers->push_back(*integer);
    if (const Array* array = value.As<Array>()) {
      for (const Value& item : *array) Collect(item, integers);
    } else if (const Object* object = value.As<Object>()) {
      for (const Member& member : *object) Collect(member.second, integers);
    }
  }

  Value FromDonor() {
    size_t index = Below(Count(*donor_));
    return At(*donor_, &index);
  }

  Value ChangeHere(const Value& value) {
    if (Below(8) == 0) return FromDonor();
    if (const int64_t* integer = value.As<int64_t>()) {
      if (Below(10) == 0) return Array{"*", "n", *integer};
      return Integer(*integer);
    }
    if (value.As<double>() != nullptr) {
      return Below(8) == 0 ? Value("inf") : Value(kNumbers[Below(std::size(kNumbers))]);
    }
    if (value.As<std::string>() != nullptr) return Word();
    if (const Array* array = value.As<Array>()) return ChangeList(*array, FromDonor());
    if (const Object* object = value.As<Object>()) {
      return ChangeList(*object, Member(Word(), FromDonor()));
    }
    return Value(static_cast<int64_t>(Below(3)));
  }

  /// An item less, one twice, two exchanged or a new one.
  template <typename List>
  List ChangeList(List list, typename List::value_type fresh) {
    const size_t at = Below(list.size());
    switch (list.empty() ? 3 : Below(4)) {
      case 0:
        list.erase(list.begin() + at);
        break;
      case 1:
        fresh = list[at];
        [[fallthrough]];
      case 3:
        list.insert(list.begin() + Below(list.size() + 1), std::move(fresh));
        break;
      default:
        std::swap(list[at], list[Below(list.size())]);
    }
    return list;
  }

  std::minstd_rand random_;
  const Value* donor_ = nullptr;
  size_t target_ = 0;
};

size_t Write(const Value& value, uint8_t* out, size_t max_size) {
  const std::string text = value.Dump();
  if (text.size() > max_size) return 0;
  std::memcpy(out, text.data(), text.size());
  return text.size();
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  Mutator mutator(seed);
  if (mutator.Below(16) == 0) return LLVMFuzzerMutate(data, size, max_size);
  try {
    Value value = json::Parse(fuzz::Text(data, size));
    for (size_t times = 1 + mutator.Below(3); times > 0; --times) {
      value = mutator.Change(value, value);
    }
    if (size_t written = Write(value, data, max_size)) return written;
  } catch (const Error&) {
    // not JSON
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data1, size_t size1,
                                            const uint8_t* data2, size_t size2, uint8_t* out,
                                            size_t max_out_size, unsigned seed) {
  try {
    const Value value = json::Parse(fuzz::Text(data1, size1));
    const Value donor = json::Parse(fuzz::Text(data2, size2));
    return Write(Mutator(seed).Change(value, donor), out, max_out_size);
  } catch (const Error&) {
    return 0;
  }
}
