// SPDX-License-Identifier: Apache-2.0
// What work costs on a machine. The numbers stand in machines.json, or in a file of the same form
// that was measured on this machine.
#ifndef TVM_BYOC_DNNL_DNNL_RATES_H_
#define TVM_BYOC_DNNL_DNNL_RATES_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/support/json.h"

namespace tvm_byoc_dnnl {

/// The amounts of work that cost time. Lowering counts the bytes.
struct Work {
  double products = 0;    // multiplications and additions, those of padding included
  double vectors = 0;     // that a kernel transforms before and after its products
  double weights = 0;     // bytes of constant operands, as packed
  double bytes = 0;       // of all other operands and of the result
  double reordered = 0;   // bytes of the operands that need another layout first
  double normalized = 0;  // bytes of those that a batch normalisation makes first
};

/// A kind of candidates that make the same use of a machine. Its costs are times of what the
/// machine needs at least for a product of two numbers, of two vectors of float32, for a byte of
/// weights that a cache has, and that none has, for a byte that is moved, and to wake the threads.
struct Family {
  std::string dtype;  // whose products it computes
  double products = 0, vectors = 0, weights = 0, far_weights = 0, bytes = 0, start = 0;
  std::string why_none;  // if there is no such candidate on the machine
};

/// A machine with a number of threads: seconds of each.
struct Speed {
  std::map<std::string, double> products;  // by dtype
  double vectors = 0, weights = 0, far_weights = 0, moved = 0, wake = 0;
  std::map<std::string, Family> families;
};

/// How fast a machine is, with each number of threads that was measured. What it does not say of a
/// family, its base does.
class Rates {
 public:
  explicit Rates(const json::Object& document);  // throws Error(kGraph)

  /// Those that were compiled in under a name; nothing if there are none.
  static std::shared_ptr<const Rates> CompiledIn(const std::string& name);
  static const char* AllCompiledIn();

  /// Seconds of a family of candidates, `times` as slow as it is but for the changes of layout. A
  /// family of which nothing is said costs what the nameless one does, which is that of primitives
  /// that only move or change numbers.
  double Seconds(const std::string& family, const Work& work, int threads, double times = 1) const;

  /// The part of it that is the changes of layout.
  double ReorderSeconds(const Work& work, int threads) const;

  /// Bytes, more of which stay in no cache from one call to the next.
  double ManyWeights() const { return many_weights_; }

  /// A number of this description or its base that bounds what is tried, or says what it is worth.
  double Limit(const std::string& name) const;

  /// In the order of Family's costs: the amounts of work, and the seconds of a family for each.
  std::vector<double> Amounts(const Work& work) const;
  std::vector<double> SecondsOfEach(const Family& family, int threads) const;

  /// Of this description or its base; nullptr if nothing is said of it.
  const Family* Find(const std::string& family, int threads) const;

  /// All of which anything is said.
  std::vector<std::string> Families() const;

 private:
  const Speed& At(int threads) const;

  std::shared_ptr<const Rates> base_;
  double many_weights_ = 0;
  std::map<std::string, double> limits_;
  std::map<int, Speed> speeds_;
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_RATES_H_
