// SPDX-License-Identifier: Apache-2.0
// The file of a model: the record at its end (native/library_record.h), and what was saved in it.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "common/support/error.h"
#include "native/library_record.h"
#include "native/model.h"

namespace tvm_byoc_dnnl {
ModelFile ReadModelFile(const std::string& path) {
  ModelFile file;
  file.mapped = MapFile(path);
  std::string_view data(file.mapped->data(), file.mapped->bytes());
  const std::vector<ByteRange> weights = WeightsIn(&data, path);
  SavedIn found;
  uint64_t start = 0;
  auto search = [&](uint64_t end) {
    const SavedIn part = FindSaved(data.substr(start, end - start));
    for (auto list : {&SavedIn::programs, &SavedIn::regions, &SavedIn::weights, &SavedIn::blobs})
      (found.*list).insert((found.*list).end(), (part.*list).begin(), (part.*list).end());
  };
  for (const auto& [first, end] : weights) {
    search(first);
    start = end;
  }
  search(data.size());
  if (found.programs.size() != 1 || found.weights.size() > 1) {
    Fail(ErrorKind::kUnsupported, "it cannot run without TVM: ",
         found.programs.empty() ? "its file does not say how its regions are called"
                                : "it is made of several models");
  }
  file.program = LoadProgram(found.programs[0]);
  for (std::string_view region : found.regions) file.regions.push_back(Load(region));
  if (found.weights.empty()) return file;
  file.table = LoadWeightsTable(found.weights[0]);
  const auto home = std::find_if(weights.begin(), weights.end(), [&](const ByteRange& range) {
    return range.second - range.first == file.table.total_bytes;
  });
  if (home == weights.end()) RefuseDamaged(path);
  file.weights = home->first;
  return file;
}

}  // namespace tvm_byoc_dnnl
