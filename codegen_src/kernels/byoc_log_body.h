/* SPDX-License-Identifier: Apache-2.0
   The part of byoc_log.h that is compiled once per instruction set; no include guard. */

#include "byoc_vector.h"
#include "byoc_wide_body.h"

/* The logarithm of numbers above 0, in double: of 2^e m that of m, which is between the roots of
   1/2 and 2, and e ln 2. With f = (m - 1) / (m + 1), log m is 2 (f + f^3/3 + f^5/5 ...), |f| <
   0.18.
 */
BYOC_INLINE BYOC_WIDE BYOC_NAME(wide_log)(BYOC_WIDE x) {
  const BYOC_LONGS root = BYOC_NAME(set_longs)(0x3fe6a09e667f3bcd); /* the root of 1/2 */
  const BYOC_LONGS shifted = (BYOC_LONGS)x + (BYOC_NAME(set_longs)(0x3ff0000000000000) - root);
  /* the bits of 2^52 plus an integer are those of 2^52, plus it */
  const BYOC_LONGS exponent = BYOC_NAME(shift_right)(shifted, 52);
  const BYOC_WIDE e = (BYOC_WIDE)(exponent | BYOC_NAME(set_longs)(0x4330000000000000)) -
                      BYOC_NAME(set_wide)(4503599627370496. + 1023.);
  const BYOC_WIDE m = (BYOC_WIDE)((shifted & BYOC_NAME(set_longs)(0x000fffffffffffff)) + root);
  const BYOC_WIDE f = (m - 1.) / (m + 1.);
  const BYOC_WIDE s = f * f;
  BYOC_WIDE p = BYOC_NAME(set_wide)(2. / 17);
  p = p * s + 2. / 15;
  p = p * s + 2. / 13;
  p = p * s + 2. / 11;
  p = p * s + 2. / 9;
  p = p * s + 2. / 7;
  p = p * s + 2. / 5;
  p = p * s + 2. / 3;
  p = p * s + 2.;
  return e * 0.69314718055994530942 + p * f;
}

/* For 0 it is -infinity, below 0 NaN; infinity and NaN stay. */
BYOC_INLINE BYOC_VEC BYOC_NAME(log)(BYOC_VEC x) {
  const BYOC_VEC zero = BYOC_NAME(set)(0.f), infinity = BYOC_NAME(set)(__builtin_inff());
  BYOC_WIDE parts[2];
  BYOC_VEC y;
  BYOC_UNROLL
  for (int i = 0; i < 2; ++i) parts[i] = BYOC_NAME(wide_log)(BYOC_NAME(widen)(x, i));
  y = BYOC_NAME(narrow_wide)(parts[0], parts[1]);
  y = BYOC_NAME(pick)((x > zero) & (x < infinity), y, x);
  y = BYOC_NAME(pick)(x < zero, zero / zero, y);
  return BYOC_NAME(pick)(x == zero, -infinity, y);
}

BYOC_NO_INLINE void BYOC_NAME(log_part)(int64_t first, int64_t last, const float* from, float* to) {
  for (int64_t k = first; k < last; k += BYOC_LANES) {
    const int lanes = (int)byoc_min(BYOC_LANES, last - k);
    BYOC_NAME(store_some)(to + k, BYOC_NAME(log)(BYOC_NAME(load_some)(from + k, lanes)), lanes);
  }
}

#include "byoc_vector_end.h"
