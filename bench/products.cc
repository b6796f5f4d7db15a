// SPDX-License-Identifier: Apache-2.0
// Products with constant weights: oneDNN's matmul and inner_product, and the packed kernel, on two
// threads or OMP_NUM_THREADS. The three take turns; each time is the least of those in half a
// second. ONEDNN_MAX_CPU_ISA limits the instruction set. Last comes the bandwidth of reading.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/byoc_product.h"

namespace {

using dnnl::memory;
using Tag = memory::format_tag;
using Memory = std::unique_ptr<char, void (*)(void*)>;

constexpr auto kFloat = memory::data_type::f32;

struct Shape {
  int64_t rows, columns, depth;
};

// BERT, ViT, Whisper, convolutions 1x1 as products, fully connected layers, odd sizes.
constexpr Shape kShapes[] = {
    {128, 768, 768},  {128, 3072, 768}, {128, 768, 3072}, {197, 768, 768},   {197, 3072, 768},
    {197, 768, 3072}, {197, 576, 192},  {1500, 384, 384}, {1500, 1536, 384}, {64, 768, 768},
    {196, 1024, 256}, {49, 512, 2048},  {49, 2048, 512},  {784, 512, 128},   {3136, 64, 256},
    {3136, 256, 64},  {7, 1000, 512},   {33, 100, 333},   {1, 768, 768},     {1, 768, 3072},
    {2, 768, 3072},   {4, 768, 3072},   {8, 768, 3072},   {16, 768, 3072},   {1, 1000, 4096},
    {1, 4096, 4096},  {1, 4096, 25088}, {2, 4096, 4096},  {4, 4096, 4096},   {8, 4096, 4096},
    {16, 4096, 4096}, {64, 50257, 768},
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<float> Numbers(int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& x : numbers) x = static_cast<float>(std::rand()) / RAND_MAX - .5f;
  return numbers;
}

/// Weights as a primitive wants them.
memory Packed(const memory& from, const memory::desc& md, dnnl::stream* stream) {
  memory packed(md, from.get_engine());
  dnnl::reorder(from, packed).execute(*stream, const_cast<memory&>(from), packed);
  stream->wait();
  return packed;
}

void Measure(const Shape& s, int64_t isa, dnnl::stream* stream) {
  const dnnl::engine engine = stream->get_engine();
  const int64_t m = s.rows, n = s.columns, k = s.depth;
  std::vector<float> source = Numbers(m * k), weights = Numbers(k * n), result(Numbers(m * n));
  const memory::desc src_md({m, k}, kFloat, Tag::ab), dst_md({m, n}, kFloat, Tag::ab);
  memory src(src_md, engine, source.data()), dst(dst_md, engine, result.data());
  const dnnl::matmul::primitive_desc matmul_pd(engine, src_md,
                                               memory::desc({k, n}, kFloat, Tag::any), dst_md);
  const dnnl::inner_product_forward::primitive_desc inner_pd(
      engine, dnnl::prop_kind::forward_inference, src_md, memory::desc({n, k}, kFloat, Tag::any),
      dst_md);
  const dnnl::matmul matmul(matmul_pd);
  const dnnl::inner_product_forward inner(inner_pd);
  const memory by_rows({{k, n}, kFloat, Tag::ab}, engine, weights.data());
  const memory by_columns({{n, k}, kFloat, Tag::ba}, engine, weights.data());
  memory matmul_weights = Packed(by_rows, matmul_pd.weights_desc(), stream);
  memory inner_weights = Packed(by_columns, inner_pd.weights_desc(), stream);

  byoc_convolution p{};
  p.isa = isa;
  p.images = p.groups = p.height = p.out_height = 1;
  p.kernel_height = p.kernel_width = p.stride_y = p.stride_x = p.dilation_y = p.dilation_x = 1;
  p.width = p.out_width = m;
  p.outputs = p.dst.pixel = p.dst.lanes = p.weights.channel = n;
  p.channels = p.src.pixel = p.src.lanes = k;
  p.weights.output = 1;
  p.threads = omp_get_max_threads();
  int64_t params[sizeof(p) / sizeof(int64_t)];
  std::memcpy(params, &p, sizeof(p));
  const Memory packed(byoc_allocate(byoc_product_packed_bytes(&p)), byoc_free);
  const Memory scratch(byoc_allocate(byoc_product_scratch_bytes(&p)), byoc_free);
  void* const to_pack[] = {weights.data(), packed.get()};
  void* const data[] = {source.data(), packed.get(), result.data()};
  char error[BYOC_ERROR_BYTES];
  byoc_product_pack(params, to_pack, nullptr, omp_get_max_threads(), error);

  const std::array<std::function<void()>, 3> ways = {
      [&] {
        matmul.execute(
            *stream,
            {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, matmul_weights}, {DNNL_ARG_DST, dst}});
      },
      [&] {
        inner.execute(
            *stream, {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, inner_weights}, {DNNL_ARG_DST, dst}});
      },
      [&] { byoc_product(params, data, scratch.get(), omp_get_max_threads(), error); }};
  double best[3] = {1e9, 1e9, 1e9};
  const double end = Now() + .5;
  for (int round = 0; round < 2 || Now() < end; ++round) {
    for (size_t way = 0; way < ways.size(); ++way) {
      ways[way]();
      for (int i = 0; i < 3; ++i) {
        const double start = Now();
        ways[way]();
        best[way] = std::min(best[way], Now() - start);
      }
    }
  }
  const double work = 2e-9 * static_cast<double>(m * n * k);
  const double bytes = 4e-9 * static_cast<double>(n * k);
  std::printf("| %ld, %ld, %ld | %.0f | %.0f | %.0f | %.1f | %.2f |\n", static_cast<long>(m),
              static_cast<long>(n), static_cast<long>(k), work / best[0], work / best[1],
              work / best[2], bytes / best[2], best[0] / best[2]);
  std::fflush(stdout);
}

double ReadingBandwidth() {
  constexpr int64_t kCount = 64 << 20, kPiece = 4096;
  const Memory memory(byoc_allocate(4 * kCount), byoc_free);  // on pages like those of weights
  auto* numbers = reinterpret_cast<float*>(memory.get());
  std::fill_n(numbers, kCount, 1.f);
  double best = 1e9, sink = 0;
  for (int round = 0; round < 8; ++round) {
    const double start = Now();
    double total = 0;
#pragma omp parallel for reduction(+ : total)
    for (int64_t first = 0; first < kCount; first += kPiece) {
      float sums[32] = {};
      for (int64_t i = first; i < first + kPiece; i += 32) {
#pragma omp simd
        for (int64_t j = 0; j < 32; ++j) sums[j] += numbers[i + j];
      }
      for (float sum : sums) total += sum;
    }
    sink += total;
    best = std::min(best, Now() - start);
  }
  return sink > 0 ? 4e-9 * kCount / best : 0;
}

}  // namespace

int main() {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto wide = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  const bool is_wide = (isa & wide) == wide;
  std::printf("%s, %d threads\n\n", is_wide ? "AVX-512" : "AVX2", omp_get_max_threads());
  std::printf(
      "| rows, columns, depth | matmul, GFLOP/s | inner_product | kernel | kernel, GB/s of weights "
      "| matmul's time / kernel's |\n|---|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes) Measure(shape, is_wide ? BYOC_AVX512 : BYOC_AVX2, &stream);
  std::printf("\nReading memory: %.1f GB/s\n", ReadingBandwidth());
  return 0;
}
