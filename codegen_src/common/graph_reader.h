// SPDX-License-Identifier: Apache-2.0
// What documents have in common whose values are tensors with symbolic dims: portable graphs, and
// programs that call them.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "common/graph.h"
#include "common/support/json.h"

namespace tvm_byoc_dnnl {

/// Fills a graph, and refuses a tensor that is defined twice or not at all.
class GraphReader {
 protected:
  /// A tensor id in range.
  int Id(const json::Value& value, const std::string& where) const;
  int DefinedId(const json::Value& value, const std::string& where) const;
  void Define(int id, const std::string& where);
  /// A position in a list that is read later: a number out of range stays out of range.
  static int Position(const json::Value& value, const std::string& where);

  std::vector<Dim> ReadShape(const json::Value& value, const std::string& where);
  void ReadName(const json::Object& root);
  void ReadTensors(const json::Array& tensors);
  void ReadInputs(const json::Array& inputs);
  void ReadOutputs(const json::Array& outputs);
  void CheckSymbolsBound() const;
  void CheckAllDefined() const;

  Graph graph_;

 private:
  Dim ReadDim(const json::Value& value, const std::string& where);

  std::vector<bool> defined_;
  std::unordered_map<std::string, size_t> symbol_ids_;
};

}  // namespace tvm_byoc_dnnl
