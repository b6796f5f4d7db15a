// SPDX-License-Identifier: Apache-2.0
// What work costs on a machine: the only file of numbers that the cost model is fitted by.
#ifndef TVM_BYOC_DNNL_DNNL_RATES_H_
#define TVM_BYOC_DNNL_DNNL_RATES_H_

#include <string>
#include <vector>

#include "dnnl/machine.h"

namespace tvm_byoc_dnnl {

/// The amounts of work that cost time. Lowering counts the bytes.
struct Work {
  double products = 0;   // multiplications and additions, those of padding included
  double vectors = 0;    // that a kernel transforms before and after its products
  double weights = 0;    // bytes of constant operands, as packed
  double bytes = 0;      // of all other operands and of the result
  double reordered = 0;  // bytes of the operands that need another layout first
};

/// Seconds of a family of candidates on an instruction set, `times` as slow as it is but for the
/// changes of layout. A family that has no rates there costs what the nameless one does.
double Seconds(const std::string& family, const Isa& isa, const Work& work, double times = 1);

/// The part of it that is the changes of layout.
double ReorderSeconds(const std::string& family, const Isa& isa, const Work& work);

/// All that have rates on some instruction set; the nameless one is that of primitives which only
/// move or change numbers.
std::vector<std::string> Families();

/// Why a family has no rates on an instruction set: it is never a candidate there. "unknown" is no
/// reason; nothing if it has rates.
std::string WhyNoRates(const std::string& family, const Isa& isa);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_RATES_H_
