// SPDX-License-Identifier: Apache-2.0
#include "dnnl/rates.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <numeric>
#include <utility>

#include "common/graph.h"
#include "common/support/json.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr char kCompiledIn[] =
#include "machines.inc"
    ;
constexpr const char* kDTypes[] = {"float32", "bfloat16", "int8"};
/// Numbers of a machine that its description or its base has, in the order of the alphabet.
constexpr const char* kLimits =
    "block_kb "         // of tiles of Winograd's algorithm, where the second-level cache is smaller
    "byte_ps "          // to read one of the weights, where a batch is computed in parts
    "excess "           // the part that a plan may cost more whose weights are packed already
    "groups_channels "  // for which the kernel of groups is offered
    "late_source "      // vectors that take as long as reading one of a source that is in no cache
    "late_weights "     // and as transforming one of weights in a call
    "long_row "         // pixels of the rows that the direct convolution makes of an image
    "narrow_outputs "   // of a group, fewer of which oneDNN computes more slowly
    "packing_rows "     // of a product for which packing the weights in each call does not pay
    "picture_channels "   // the most that a picture has
    "picture_taps "       // weights of an output, more of which take as long as those of any image
    "plan_us "            // to make a plan, for each node
    "reference "          // times that oneDNN's reference implementations take
    "repacked "           // times by which weights in another form must be faster
    "shuffled_channels "  // of a group, fewer of which pay where a shuffle is spared
    "start_us "           // to run a plan, for each node
    "thin_channels "      // of a group, fewer of which are no product of matrices
    "wait_kb "            // read while threads wait for a source that they transformed together
    "wide_channels";      // of a group, fewer of which the direct convolution computes in time

/// ["float32", products, vectors, ...] without zeros at the end, or why there is none.
Family ReadFamily(const json::Value& value, const std::string& where) {
  Family family;
  if (const auto* why = value.As<std::string>()) {
    family.why_none = *why;
    return family;
  }
  const json::Array& row = AsArray(value, where);
  double* costs[] = {&family.products,    &family.vectors, &family.weights,
                     &family.far_weights, &family.bytes,   &family.start};
  if (row.empty() || row.size() > std::size(costs) + 1)
    Fail(ErrorKind::kGraph, where, ": got ", row.size(), " values, expected a dtype and 6 costs");
  family.dtype = AsString(row[0], where);
  for (size_t i = 1; i < row.size(); ++i) {
    *costs[i - 1] = AsNumber(row[i], where);
    if (!(*costs[i - 1] >= 0))
      Fail(ErrorKind::kGraph, where, ": got ", *costs[i - 1], ", expected 0 or more");
  }
  return family;
}

/// The seconds of one of `name`, of which a machine does so many in a second.
double Inverse(const json::Object& object, const std::string& name, double unit,
               const std::string& where) {
  const double number = AsNumber(Field(object, name.c_str(), where), where + ": " + name);
  if (!(number > 0))
    Fail(ErrorKind::kGraph, where, ": ", name, " is ", number, ", expected above 0");
  return 1 / (number * unit);
}

Speed ReadSpeed(const json::Object& object, double lanes, const std::string& where) {
  AllowOnly(object,
            "float32_gflops bfloat16_gflops int8_gflops weights_gbytes memory_gbytes moved_gbytes "
            "wake_us families",
            where);
  constexpr double kGiga = 1e9;
  Speed speed;
  for (const char* dtype : kDTypes)
    speed.products[dtype] = Inverse(object, Cat(dtype, "_gflops"), kGiga / 2, where);
  speed.vectors = lanes * speed.products["float32"];
  speed.weights = Inverse(object, "weights_gbytes", kGiga, where);
  speed.far_weights = Inverse(object, "memory_gbytes", kGiga, where);
  speed.moved = Inverse(object, "moved_gbytes", kGiga, where);
  speed.wake = 1e-6 * AsNumber(Field(object, "wake_us", where), where + ": wake_us");
  for (const auto& [name, value] : AsObject(Field(object, "families", where), where)) {
    const Family family = ReadFamily(value, Cat(where, ": ", name));
    if (family.why_none.empty() && speed.products.count(family.dtype) == 0)
      Fail(ErrorKind::kGraph, where, ": ", name, ": got the dtype ", family.dtype, ", expected ",
           Join(kDTypes));
    speed.families.emplace(name, family);
  }
  return speed;
}

}  // namespace

Rates::Rates(const json::Object& document) {
  AllowOnly(document, "about machine base lanes cache_mb limits threads", "rates");
  const auto number = [&](const char* name) {
    return AsNumber(Field(document, name, "rates"), name);
  };
  if (const json::Value* base = json::Find(document, "base")) {
    base_ = CompiledIn(AsString(*base, "rates: base"));
    if (!base_) Fail(ErrorKind::kGraph, "rates: unknown base ", AsString(*base, "rates: base"));
  }
  if (const json::Value* limits = json::Find(document, "limits")) {
    const json::Object& object = AsObject(*limits, "rates: limits");
    AllowOnly(object, kLimits, "rates: limits");
    for (const auto& [name, value] : object) limits_[name] = AsNumber(value, name);
  }
  for (const std::string& name : Words(kLimits)) Limit(name);  // each is there
  constexpr int kMega = 1 << 20;
  many_weights_ = kMega * number("cache_mb");
  for (const auto& [threads, value] :
       AsObject(Field(document, "threads", "rates"), "rates: threads")) {
    const std::string where = Cat("rates: threads: ", threads);
    speeds_[std::atoi(threads.c_str())] = ReadSpeed(AsObject(value, where), number("lanes"), where);
  }
  if (speeds_.empty() || speeds_.begin()->first < 1)
    Fail(ErrorKind::kGraph, "rates: threads: expected numbers of threads, 1 or more");
}

const char* Rates::AllCompiledIn() { return kCompiledIn; }

std::shared_ptr<const Rates> Rates::CompiledIn(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Rates>> known;
  static const json::Value document = json::Parse(kCompiledIn);
  const json::Value* found = json::Find(*document.As<json::Object>(), name);
  if (found == nullptr) return nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (auto at = known.find(name); at != known.end()) return at->second;
  }
  auto made = std::make_shared<const Rates>(*found->As<json::Object>());  // may ask for its base
  const std::lock_guard<std::mutex> lock(mutex);
  return known.emplace(name, std::move(made)).first->second;
}

/// With the most threads that are no more than these, else with the fewest.
const Speed& Rates::At(int threads) const {
  auto next = speeds_.upper_bound(threads);
  return next == speeds_.begin() ? next->second : std::prev(next)->second;
}

const Family* Rates::Find(const std::string& family, int threads) const {
  const auto& families = At(threads).families;
  const auto found = families.find(family);
  if (found != families.end()) return &found->second;
  return base_ ? base_->Find(family, threads) : nullptr;
}

double Rates::Limit(const std::string& name) const {
  const auto found = limits_.find(name);
  if (found != limits_.end()) return found->second;
  if (!base_) Fail(ErrorKind::kGraph, "rates: limits: there is no ", name);
  return base_->Limit(name);
}

std::vector<double> Rates::Amounts(const Work& work) const {
  const double far_weights = work.weights > many_weights_ ? work.weights : 0;
  return {work.products, work.vectors, work.weights, far_weights, work.bytes, 1};
}

std::vector<double> Rates::SecondsOfEach(const Family& family, int threads) const {
  const Speed& speed = At(threads);
  return {family.products * speed.products.at(family.dtype),
          family.vectors * speed.vectors,
          family.weights * speed.weights,
          family.far_weights * speed.far_weights,
          family.bytes * speed.moved,
          family.start * speed.wake};
}

double Rates::Seconds(const std::string& name, const Work& work, int threads, double times) const {
  const Family* found = Find(name, threads);
  const Family& family = found && found->why_none.empty() ? *found : *Find("", threads);
  const std::vector<double> amounts = Amounts(work), seconds = SecondsOfEach(family, threads);
  const double start = seconds.back();
  const double working =
      std::inner_product(amounts.begin(), amounts.end() - 1, seconds.begin(), 0.0);
  return times * working + start + ReorderSeconds(work, threads);
}

double Rates::ReorderSeconds(const Work& work, int threads) const {
  const double moved = work.reordered + Find("batch_norm", threads)->bytes * work.normalized;
  return moved * At(threads).moved;
}

std::vector<std::string> Rates::Families() const {
  std::vector<std::string> families = base_ ? base_->Families() : std::vector<std::string>();
  for (const auto& [threads, speed] : speeds_) {
    for (const auto& [name, family] : speed.families) {
      if (std::find(families.begin(), families.end(), name) == families.end())
        families.push_back(name);
    }
  }
  return families;
}

}  // namespace tvm_byoc_dnnl
