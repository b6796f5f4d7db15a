// SPDX-License-Identifier: Apache-2.0
#include "common/known_times.h"

#include <utility>

#include "common/json_fields.h"

namespace tvm_byoc_dnnl {

KnownTimes ReadKnownTimes(const json::Value& document) {
  const json::Object& root = AsObject(document, "times");
  AllowOnly(root, "setting workloads", "times");
  KnownTimes times;
  times.setting = AsString(Field(root, "setting", "times"), "times: setting");
  for (const auto& [workload, candidates] :
       AsObject(Field(root, "workloads", "times"), "times: workloads")) {
    const std::string where = Cat("times: \"", workload, "\"");
    for (const auto& [name, value] : AsObject(candidates, where)) {
      const json::Array& pair = AsArray(value, where);
      if (pair.size() != 2) {
        Fail(ErrorKind::kGraph, where, ": got ", pair.size(),
             " numbers, expected [seconds, model]");
      }
      const KnownTimes::Time time{AsNumber(pair[0], where), AsNumber(pair[1], where)};
      if (!(time.seconds > 0 && time.model > 0)) {
        Fail(ErrorKind::kGraph, where, ": got ", time.seconds, " and ", time.model,
             ", expected numbers above 0");
      }
      times.workloads[workload][name] = time;
    }
  }
  return times;
}

json::Object WriteKnownTimes(const KnownTimes& times) {
  json::Object workloads;
  for (const auto& [workload, candidates] : times.workloads) {
    json::Object object;
    for (const auto& [name, time] : candidates) {
      object.emplace_back(name, json::Array{time.seconds, time.model});
    }
    workloads.emplace_back(workload, std::move(object));
  }
  json::Object root;
  root.emplace_back("setting", times.setting);
  root.emplace_back("workloads", std::move(workloads));
  return root;
}

}  // namespace tvm_byoc_dnnl
