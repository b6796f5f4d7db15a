// SPDX-License-Identifier: Apache-2.0
// What each instruction set has, and what the descriptions of machines say of it.
#include <cmath>
#include <iterator>
#include <string>

#include "check.h"
#include "machines.h"

using namespace tvm_byoc_dnnl;  // NOLINT: for tests only
using Set = dnnl::cpu_isa;

TEST(EachFamilyHasRatesOnEachInstructionSetOrAReason) {
  const char* sets[] = {"avx2", "avx512_core", "avx512_core_bf16", "avx512_core_amx"};
  for (const char* one : sets) {
    for (const std::string& family : Rates::CompiledIn(one)->Families()) {
      const check::Scope scope(family);
      int present = 0;
      for (const char* set : sets) {
        const Family* found = Rates::CompiledIn(set)->Find(family, 2);
        CHECK(found != nullptr);
        present += found != nullptr && found->why_none.empty();
      }
      CHECK(present > 0);
    }
  }
  CHECK(Rates::CompiledIn("avx2")->Find("no family", 2) == nullptr);
  CHECK(Rates::CompiledIn("no machine") == nullptr);
}

TEST(TheSecondsOfAFamily) {
  const Work work = {3e8, 7e4, 20e6, 5e5, 9e5, 4e5};
  const auto check = [&](const char* family, Set set, double seconds, double times = 1) {
    const double got = Machine(Isa(set)).Seconds(family, work, times);
    CHECK(std::abs(got - (seconds + (9e5 + 0.35 * 4e5) * 1e-10)) < 1e-12 * got);
  };
  check("convolution", Set::avx2, 3e8 * 13.5e-12 + 20e6 * 9.5e-12);
  check("winograd", Set::avx512_core, 3e8 * 8.0e-12 + 7e4 * 3.0e-9 + 20e6 * (36e-12 + 27e-12));
  if (Isa(Set::avx512_core_amx).HasTiles())
    check("split", Set::avx512_core_amx,
          3e8 * 0.42e-12 + 7e4 * 4.5e-9 + 20e6 * (24e-12 + 27e-12) + 5e-6);
  check("no family", Set::sse41, 100 * (3e8 * 20e-12 + 5e5 * 1e-10), 100);
}

TEST(WhatEachInstructionSetHas) {
  struct Has {
    Set set;
    const char* name;
    int lanes;  // 0: there are no kernels of ours
    bool tiles, exact_integer_products, bfloat16, float16;
  };
  const Has all[] = {
      {Set::sse41, "sse41", 0, false, false, false, false},
      {Set::avx, "avx", 0, false, false, false, false},
      {Set::avx2, "avx2", 8, false, false, false, false},
      {Set::avx2_vnni, "avx2_vnni", 8, false, true, false, false},
      {Set::avx2_vnni_2, "avx2_vnni_2", 8, false, true, true, true},
      {Set::avx512_core, "avx512_core", 16, false, false, false, false},
      {Set::avx512_core_vnni, "avx512_core_vnni", 16, false, true, false, false},
      {Set::avx512_core_bf16, "avx512_core_bf16", 16, false, true, true, false},
      {Set::avx512_core_fp16, "avx512_core_fp16", 16, false, true, true, true},
      {Set::avx512_core_amx, "avx512_core_amx", 16, true, true, true, true},
      {Set::avx512_core_amx_fp16, "avx512_core_amx_fp16", 16, true, true, true, true},
  };
  CHECK_EQUAL(std::size(all), std::size(machines::kAll));
  for (const Has& has : all) {
    const check::Scope scope(has.name);
    const Isa isa(has.set);
    CHECK_EQUAL(std::string(isa.Name()), has.name);
    CHECK_EQUAL(isa.Vectors() ? byoc_lanes(*isa.Vectors()) : 0, has.lanes);
    CHECK_EQUAL(isa.HasTiles(), has.tiles && BYOC_HAS_AMX);
    CHECK_EQUAL(isa.HasExactIntegerProducts(), has.exact_integer_products);
    CHECK_EQUAL(isa.ComputedIn(DType::kBFloat16) == DType::kBFloat16, has.bfloat16);
    CHECK_EQUAL(isa.ComputedIn(DType::kFloat16) == DType::kFloat16, has.float16);
    CHECK(isa.ComputedIn(DType::kFloat32) == DType::kFloat32);
  }
}
