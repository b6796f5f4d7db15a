/* SPDX-License-Identifier: Apache-2.0
   Convolutions and products of 8-bit integers, whose sums are exact on every CPU; scales, zero
   points, a bias and post-operations; the result in 8 bits, in 32, or in float32.

   The numbers are widened to 16 bits, where vpmaddwd, or vpdpwssd of VNNI, adds the products of two
   neighbours in 32 bits. (vpmaddubsw would take the bytes themselves, and saturates at 16 bits; so
   does no instruction that takes unsigned weights.) The weights are
   widened when they are packed, in panels as wide as two vectors. A thread widens the windows of a
   block of pixels, less the zero point, and multiplies a few of them at once by each panel. A
   depthwise convolution multiplies the even channels of a tap by weights between zeros, then the
   odd ones. Windows of 3 x 3 pixels may be computed in tiles (byoc_integer_winograd_body.h).

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_INTEGER_H_
#define BYOC_INTEGER_H_

#include "byoc_integer_plan.h"

/* A number of the data, or what stands for none. */
static inline float byoc_integer_scale(void* const* data, int64_t at) {
  return at < 0 ? 1.f : *(const float*)data[at];
}
static inline int32_t byoc_integer_zero(void* const* data, int64_t at) {
  return at < 0 ? 0 : *(const int32_t*)data[at];
}

#define BYOC_BODY "byoc_integer_product_body.h"
#include "byoc_each_isa.h"
#if BYOC_HAS_VNNI
#define BYOC_SIMD_VNNI
#define BYOC_BODY "byoc_integer_product_body.h"
#include "byoc_each_isa.h"
#undef BYOC_SIMD_VNNI
#endif
#define BYOC_BODY "byoc_integer.h"
#include "byoc_each_isa.h"

/* The kernel. data: source, packed weights, what the parameters name, the operands of the
   post-operations, result. */
BYOC_KERNEL_FOR_ISA(integer, byoc_integer_params, p->of.isa, p->of.threads)

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

/* BYOC_PANEL bytes, in 16 bits each. */
BYOC_INLINE BYOC_INTS BYOC_NAME(integer_load)(const uint8_t* p, const int is_signed) {
#ifdef BYOC_SIMD_AVX512
  const __m256i bytes = _mm256_loadu_si256((const __m256i*)p);
#else
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
#endif
  return is_signed ? BYOC_OP(cvtepi8_epi16)(bytes) : BYOC_OP(cvtepu8_epi16)(bytes);
}

/* `count` of them less `zero`; writes up to a vector more, and reads nothing from `end` on. */
BYOC_INLINE void BYOC_NAME(widen_all)(const uint8_t* from, const uint8_t* end, int64_t count,
                                      const int is_signed, BYOC_INTS zero, int16_t* to) {
  for (int64_t i = 0; i < count; i += BYOC_PANEL) {
    BYOC_INTS x;
    if (end - from - i >= BYOC_PANEL) {
      x = BYOC_NAME(integer_load)(from + i, is_signed);
    } else {
      uint8_t rest[BYOC_PANEL] = {0};
      memcpy(rest, from + i, (size_t)(count - i));
      x = BYOC_NAME(integer_load)(rest, is_signed);
    }
    BYOC_NAME(store_ints)(to + i, BYOC_OP(sub_epi16)(x, zero));
  }
}

#include "byoc_integer_finish_body.h"

/* By the instruction that adds them up as well, where there is one. */
BYOC_INLINE void BYOC_NAME(integer_product)(const byoc_integer_params* p, int64_t rows,
                                            const int16_t* a, const int16_t* b, int32_t* c) {
  const int64_t depth = byoc_integer_depth(p);
#if BYOC_HAS_VNNI
  if (p->has_vnni) {
    BYOC_NAME(integer_product_vnni)((int)rows, a, depth, b, depth / 2, c);
    return;
  }
#endif
  BYOC_NAME(integer_product_pairs)((int)rows, a, depth, b, depth / 2, c);
}

/* The windows of `rows` pixels from `row` on, less the zero point: what lies outside is zero. */
BYOC_INLINE void BYOC_NAME(integer_gather)(const byoc_integer_params* p, const uint8_t* src,
                                           const int is_signed, int32_t zero, int64_t row,
                                           int64_t rows, int16_t* to) {
  const BYOC_INTS zeros = BYOC_OP(set1_epi16)((int16_t)zero);
  const int64_t wide = p->of.kernel_width * p->of.channels, depth = byoc_integer_depth(p);
  const int is_run = p->of.dilation_x == 1 && p->of.src.pixel == p->of.channels;
  const int is_flat = is_run && wide == depth && p->of.kernel_height * p->of.kernel_width == 1 &&
                      p->of.stride_y * p->of.stride_x == 1 && p->of.height == p->of.out_height &&
                      p->of.width == p->of.out_width;
  const uint8_t* end = src + byoc_integer_extent(p);
  const int64_t whole = byoc_round_up(wide, BYOC_PANEL),
                next_line = p->of.dilation_y * p->of.src.row;
  const int64_t reach =
      (p->of.kernel_height - 1) * p->of.dilation_y; /* from the first line to the last */
  int64_t x = row % p->of.out_width, y = row / p->of.out_width % p->of.out_height;
  int64_t image = row / p->of.out_width / p->of.out_height;
  if (is_flat) {
    BYOC_NAME(widen_all)(src + row * depth, end, rows * depth, is_signed, zeros, to);
    return;
  }
  for (int64_t m = 0; m < rows; ++m, to += depth) {
    const int64_t left = x * p->of.stride_x - p->of.pad_left,
                  top = y * p->of.stride_y - p->of.pad_top;
    const int64_t corner = image * p->of.src.image + top * p->of.src.row + left * p->of.channels;
    const int is_inside = is_run && left >= 0 && left + p->of.kernel_width <= p->of.width &&
                          top >= 0 && top + reach < p->of.height &&
                          corner + reach * p->of.src.row + whole <= byoc_integer_extent(p);
    for (int64_t ky = 0; is_inside && ky < p->of.kernel_height; ++ky) {
      for (int64_t i = 0; i < wide; i += BYOC_PANEL) {
        const BYOC_INTS numbers =
            BYOC_NAME(integer_load)(src + corner + ky * next_line + i, is_signed);
        BYOC_NAME(store_ints)(to + ky * wide + i, BYOC_OP(sub_epi16)(numbers, zeros));
      }
    }
    for (int64_t ky = 0; !is_inside && ky < p->of.kernel_height; ++ky) {
      const int64_t at_y = top + ky * p->of.dilation_y;
      int16_t* part = to + ky * wide;
      if (at_y < 0 || at_y >= p->of.height) {
        memset(part, 0, (size_t)wide * 2);
        continue;
      }
      const uint8_t* line = src + image * p->of.src.image + at_y * p->of.src.row;
      if (is_run) {
        const int64_t first = byoc_min(byoc_max(0, -left), p->of.kernel_width);
        const int64_t last = byoc_max(first, byoc_min(p->of.kernel_width, p->of.width - left));
        BYOC_NAME(widen_all)(line + (left + first) * p->of.channels, end,
                             (last - first) * p->of.channels, is_signed, zeros,
                             part + first * p->of.channels);
        if (last - first == p->of.kernel_width) continue;
        memset(part, 0, (size_t)(first * p->of.channels) * 2);
        memset(part + last * p->of.channels, 0,
               (size_t)((p->of.kernel_width - last) * p->of.channels) * 2);
        continue;
      }
      for (int64_t kx = 0; kx < p->of.kernel_width; ++kx, part += p->of.channels) {
        const int64_t at_x = left + kx * p->of.dilation_x;
        if (at_x < 0 || at_x >= p->of.width) {
          memset(part, 0, (size_t)p->of.channels * 2);
        } else {
          BYOC_NAME(widen_all)(line + at_x * p->of.src.pixel, end, p->of.channels, is_signed, zeros,
                               part);
        }
      }
    }
    if (p->of.kernel_height * wide < depth) to[depth - 1] = 0;
    if (++x < p->of.out_width) continue;
    x = 0;
    if (++y < p->of.out_height) continue;
    y = 0;
    ++image;
  }
}

/* The sum of `depth` numbers. */
BYOC_INLINE int32_t BYOC_NAME(sum_numbers)(const int16_t* numbers, int64_t depth) {
  BYOC_INTS sums = BYOC_OP(set1_epi32)(0);
  int32_t lanes[BYOC_LANES], sum = 0;
  int64_t k = 0;
  for (; k + BYOC_PANEL <= depth; k += BYOC_PANEL) {
    const BYOC_INTS pairs =
        BYOC_OP(madd_epi16)(BYOC_NAME(load_ints)(numbers + k), BYOC_OP(set1_epi16)(1));
    sums = BYOC_OP(add_epi32)(sums, pairs);
  }
  BYOC_NAME(store_ints)(lanes, sums);
  for (int i = 0; i < BYOC_LANES; ++i) sum += lanes[i];
  for (; k < depth; ++k) sum += numbers[k];
  return sum;
}

/* Stores the results of `rows` pixels from `row` on, as many at once as lie equally far apart;
   `start`: of the first pixel of all, `column`: of the bias. */
BYOC_INLINE void BYOC_NAME(finish_windows)(const byoc_integer_params* p, int32_t* sums,
                                           const int32_t* row_sums, int64_t row, int64_t rows,
                                           int64_t start, int64_t column, int64_t columns,
                                           void* const* data) {
  if (p->of.dst.row == p->of.out_width * p->of.dst.pixel) {
    BYOC_NAME(integer_finish)(p, sums, row_sums, start + row * p->of.dst.pixel, rows, column,
                              columns, data);
    return;
  }
  int64_t line = row / p->of.out_width, x = row % p->of.out_width, count;
  for (int64_t m = 0; m < rows; m += count, x = 0, ++line) {
    count = byoc_min(rows - m, p->of.out_width - x);
    BYOC_NAME(integer_finish)(p, sums + m * BYOC_PANEL, row_sums + m,
                              start + line * p->of.dst.row + x * p->of.dst.pixel, count, column,
                              columns, data);
  }
}

BYOC_INLINE void BYOC_NAME(integer_windows)(const byoc_integer_params* p, int64_t thread,
                                            int64_t team, void* const* data, char* memory) {
  const int64_t pixels = p->of.images * p->of.out_height * p->of.out_width;
  const byoc_share share = byoc_divide(pixels, BYOC_ROWS, p->of.outputs, BYOC_PANEL, thread, team);
  const int64_t depth = byoc_integer_depth(p),
                panels = (p->of.outputs + BYOC_PANEL - 1) / BYOC_PANEL;
  const int64_t all = share.last_row - share.first_row, blocks = (all + p->rows - 1) / p->rows;
  const int32_t zero = byoc_integer_zero(data, p->at.src_zero);
  int16_t* numbers = (int16_t*)memory;
  int32_t* row_sums = (int32_t*)(memory + byoc_integer_numbers_bytes(p));
  int32_t* sums = row_sums + byoc_round_up(p->rows, 16);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = share.first_row + all * block / blocks;
    const int64_t rows = share.first_row + all * (block + 1) / blocks - first;
    const byoc_passes passes = byoc_in_passes(rows, BYOC_ROWS);
    for (int64_t group = 0; group < p->of.groups; ++group) {
      const uint8_t* src = (const uint8_t*)data[0] + group * p->src_group;
      const int64_t start = group / p->across * p->dst_down + group % p->across * p->dst_group;
      if (group > 0 && p->src_group == 0) {
        /* all groups have the same windows */
      } else if (p->src_dtype == BYOC_S8) {
        BYOC_NAME(integer_gather)(p, src, 1, zero, first, rows, numbers);
      } else {
        BYOC_NAME(integer_gather)(p, src, 0, zero, first, rows, numbers);
      }
      for (int64_t m = 0; p->at.weights_zero >= 0 && m < rows; ++m) {
        row_sums[m] = BYOC_NAME(sum_numbers)(numbers + m * depth, depth);
      }
      for (int64_t panel = share.first_panel; panel < share.last_panel; ++panel) {
        const int16_t* b = (const int16_t*)data[1] + (group * panels + panel) * depth * BYOC_PANEL;
        const int64_t column = panel * BYOC_PANEL;
        for (int64_t pass = 0, top = 0; pass < passes.count; ++pass) {
          const int64_t present = byoc_pass_rows(&passes, pass);
          BYOC_NAME(integer_product)
          (p, present, numbers + top * depth, b, sums + top * BYOC_PANEL);
          top += present;
        }
        BYOC_NAME(finish_windows)(p, sums, row_sums, first, rows, start + column,
                                  group * p->next_column + column,
                                  byoc_min(p->of.outputs - column, BYOC_PANEL), data);
      }
    }
  }
}

/* A panel of channels of a pixel, of which the first `channels` exist. */
BYOC_INLINE BYOC_INTS BYOC_NAME(load_tap)(const uint8_t* from, const int is_whole, int64_t channels,
                                          const int is_signed) {
  uint8_t part[BYOC_PANEL] = {0};
  if (is_whole) return BYOC_NAME(integer_load)(from, is_signed);
  memcpy(part, from, (size_t)channels);
  return BYOC_NAME(integer_load)(part, is_signed);
}

/* A panel of channels of `pixels` pixels; taps[i * BYOC_INTEGER_TAPS + t]: where tap t of pixel i
   begins. `zero`: its negative in 16 bits, which is multiplied by the sums of the weights. */
BYOC_INLINE void BYOC_NAME(depthwise_pixels)(const int pixels, const uint8_t* const* taps,
                                             int64_t num_taps, int64_t channel, const int is_whole,
                                             int64_t channels, const int is_signed, BYOC_INTS zero,
                                             const int16_t* weights, int32_t* sums) {
  BYOC_INTS even[BYOC_INTEGER_PIXELS], odd[BYOC_INTEGER_PIXELS];
  BYOC_UNROLL
  for (int i = 0; i < pixels; ++i) {
    even[i] = BYOC_OP(madd_epi16)(zero, BYOC_NAME(load_ints)(weights));
    odd[i] = BYOC_OP(madd_epi16)(zero, BYOC_NAME(load_ints)(weights + BYOC_PANEL));
  }
  for (int64_t t = 0; t < num_taps; ++t) {
    weights += 2 * BYOC_PANEL;
    const BYOC_INTS w = BYOC_NAME(load_ints)(weights);
    const BYOC_INTS v = BYOC_NAME(load_ints)(weights + BYOC_PANEL);
    BYOC_UNROLL
    for (int i = 0; i < pixels; ++i) {
      const BYOC_INTS x = BYOC_NAME(load_tap)(taps[i * BYOC_INTEGER_TAPS + t] + channel, is_whole,
                                              channels, is_signed);
      BYOC_NAME(add_products_pairs)(&even[i], x, w);
      BYOC_NAME(add_products_pairs)(&odd[i], x, v);
    }
  }
  BYOC_UNROLL
  for (int i = 0; i < pixels; ++i) {
    int32_t halves[2][BYOC_LANES];
    BYOC_NAME(store_ints)(halves[0], BYOC_CONVERT(unpacklo_epi32, even[i], odd[i]));
    BYOC_NAME(store_ints)(halves[1], BYOC_CONVERT(unpackhi_epi32, even[i], odd[i]));
    BYOC_UNROLL
    for (int j = 0; j < BYOC_LANES / 4; ++j) {
      memcpy(sums + i * BYOC_PANEL + j * 8, halves[0] + j * 4, 16);
      memcpy(sums + i * BYOC_PANEL + j * 8 + 4, halves[1] + j * 4, 16);
    }
  }
}

/* The same for any number of pixels. */
BYOC_INLINE void BYOC_NAME(depthwise_run)(const uint8_t* const* taps, int64_t num_taps,
                                          int64_t count, int64_t channel, const int is_whole,
                                          int64_t channels, const int is_signed, BYOC_INTS zero,
                                          const int16_t* weights, int32_t* sums) {
#define BYOC_PIXELS(pixels)                                                                      \
  BYOC_NAME(depthwise_pixels)(pixels, taps + i * BYOC_INTEGER_TAPS, num_taps, channel, is_whole, \
                              channels, is_signed, zero, weights, sums + i * BYOC_PANEL)
  int64_t i = 0;
  for (; i + BYOC_INTEGER_PIXELS <= count; i += BYOC_INTEGER_PIXELS)
    BYOC_PIXELS(BYOC_INTEGER_PIXELS);
  for (; i < count; ++i) BYOC_PIXELS(1);
#undef BYOC_PIXELS
}

/* Where the taps of a pixel begin; outside of the image at `outside`. */
BYOC_INLINE void BYOC_NAME(find_taps)(const byoc_integer_params* p, const uint8_t* src, int64_t y,
                                      int64_t x, const int64_t* offsets, const uint8_t* outside,
                                      const uint8_t** taps) {
  const int64_t num_taps = p->of.kernel_height * p->of.kernel_width;
  const int is_inside = y >= 0 && x >= 0 &&
                        y + (p->of.kernel_height - 1) * p->of.dilation_y < p->of.height &&
                        x + (p->of.kernel_width - 1) * p->of.dilation_x < p->of.width;
  const uint8_t* corner = src + y * p->of.src.row + x * p->of.src.pixel;
  for (int64_t t = 0; t < num_taps; ++t) {
    const int64_t at_y = y + t / p->of.kernel_width * p->of.dilation_y;
    const int64_t at_x = x + t % p->of.kernel_width * p->of.dilation_x;
    taps[t] = is_inside || (at_y >= 0 && at_y < p->of.height && at_x >= 0 && at_x < p->of.width)
                  ? corner + offsets[t]
                  : outside;
  }
}

BYOC_INLINE void BYOC_NAME(integer_depthwise)(const byoc_integer_params* p, int64_t thread,
                                              int64_t team, void* const* data, char* memory) {
  const int64_t lines = p->of.images * p->of.out_height,
                num_taps = p->of.kernel_height * p->of.kernel_width;
  const int32_t zero = byoc_integer_zero(data, p->at.src_zero);
  const BYOC_INTS negative = BYOC_OP(set1_epi16)((int16_t)-zero);
  const int is_signed = p->src_dtype == BYOC_S8;
  const uint8_t* taps[BYOC_INTEGER_RUN * BYOC_INTEGER_TAPS];
  int64_t offsets[BYOC_INTEGER_TAPS];
  int32_t* sums = (int32_t*)(memory + byoc_integer_numbers_bytes(p)) + byoc_round_up(p->rows, 16);
  memset(memory, (uint8_t)zero, (size_t)byoc_round_up(p->of.groups, 64));
  for (int64_t t = 0; t < num_taps; ++t) {
    offsets[t] = t / p->of.kernel_width * p->of.dilation_y * p->of.src.row +
                 t % p->of.kernel_width * p->of.dilation_x * p->of.src.pixel;
  }
  for (int64_t line = lines * thread / team; line < lines * (thread + 1) / team; ++line) {
    const int64_t y = line % p->of.out_height * p->of.stride_y - p->of.pad_top;
    const uint8_t* src = (const uint8_t*)data[0] + line / p->of.out_height * p->of.src.image;
    for (int64_t x = 0; x < p->of.out_width; x += BYOC_INTEGER_RUN) {
      const int64_t count = byoc_min(BYOC_INTEGER_RUN, p->of.out_width - x);
      for (int64_t i = 0; i < count; ++i) {
        BYOC_NAME(find_taps)(p, src, y, (x + i) * p->of.stride_x - p->of.pad_left, offsets,
                             (const uint8_t*)memory, taps + i * BYOC_INTEGER_TAPS);
      }
      for (int64_t channel = 0; channel < p->of.groups; channel += BYOC_PANEL) {
        const int64_t channels = byoc_min(BYOC_PANEL, p->of.groups - channel);
        const int16_t* weights =
            (const int16_t*)data[1] + channel * byoc_integer_tap_numbers(num_taps);
        if (channels < BYOC_PANEL) {
          BYOC_NAME(depthwise_run)(taps, num_taps, count, channel, 0, channels, is_signed, negative,
                                   weights, sums);
        } else if (is_signed) {
          BYOC_NAME(depthwise_run)(taps, num_taps, count, channel, 1, channels, 1, negative,
                                   weights, sums);
        } else {
          BYOC_NAME(depthwise_run)(taps, num_taps, count, channel, 1, channels, 0, negative,
                                   weights, sums);
        }
        BYOC_NAME(integer_finish)(p, sums, NULL,
                                  (line * p->of.out_width + x) * p->of.dst.pixel + channel, count,
                                  channel, channels, data);
      }
    }
  }
}

#include "byoc_integer_winograd_body.h"

BYOC_NO_INLINE void BYOC_NAME(integer_part)(const byoc_integer_params* p, void* const* data,
                                            void* scratch, int64_t thread, int64_t team) {
  char* memory = (char*)scratch + thread * byoc_integer_thread_bytes(p);
  if (byoc_is_depthwise(&p->of)) {
    BYOC_NAME(integer_depthwise)(p, thread, team, data, memory);
  } else if (p->is_winograd) {
    BYOC_NAME(integer_winograd)(p, thread, team, data, memory);
  } else {
    BYOC_NAME(integer_windows)(p, thread, team, data, memory);
  }
}

#endif /* BYOC_INTEGER_H_ */
