// SPDX-License-Identifier: Apache-2.0
// The vocabulary of the portable graph as tables: dtypes, kinds, their attributes and algorithms.
#ifndef TVM_BYOC_DNNL_COMMON_GRAPH_TABLES_H_
#define TVM_BYOC_DNNL_COMMON_GRAPH_TABLES_H_

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/graph.h"

namespace tvm_byoc_dnnl {

struct KindSpec {
  const char* name;
  int min_inputs, max_inputs;
  const char* attrs;  // exactly these, separated by spaces; `?` behind one that may be left out
  const char* algs;   // allowed values of `alg`
};

const KindSpec& SpecOf(Kind kind);
std::optional<Kind> FindKind(std::string_view name);
std::optional<DType> FindDType(std::string_view name);

/// Whether this is DLPack's type of such a code and width.
bool IsStoredAs(DType dtype, int dlpack_code, int bits);

/// The member that holds an attribute.
using AttrField = std::variant<Dims Attrs::*, int64_t Attrs::*, double Attrs::*,
                               std::vector<double> Attrs::*, std::vector<std::string> Attrs::*>;

/// The attribute must be one that the table of kinds names (other than `alg`).
const AttrField& FieldOf(const std::string& attr);

/// The words of a list that is separated by spaces.
std::vector<std::string> Words(const char* text);
bool HasWord(std::string_view text, std::string_view word);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_GRAPH_TABLES_H_
