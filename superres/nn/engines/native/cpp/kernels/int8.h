// Bytes as numbers: quantised rows, and exact sums of their products with stored bytes. Integer sums do not depend on
// their order, so that a column's result never depends on the other columns, and is the same on every processor.

#pragma once

#include "kernels/vectors.h"

namespace {

// Adds, in each lane, the products of four stored bytes (unsigned) and the four bytes of `four` (signed).
ALWAYS_INLINE ivec dot4(ivec total, uvec stored, int32_t four) {
#if defined(__AVX512VNNI__)
  return (ivec)_mm512_dpbusd_epi32((__m512i)total, (__m512i)stored, _mm512_set1_epi32(four));
#elif defined(__AVX2__)
  __m256i sums[2], bytes[2];
  std::memcpy(sums, &total, sizeof total), std::memcpy(bytes, &stored, sizeof stored);
#if defined(__AVXVNNI__)
  for (int i = 0; i < 2; i++) sums[i] = _mm256_dpbusd_avx_epi32(sums[i], bytes[i], _mm256_set1_epi32(four));
#else
  // Pairs of 16-bit numbers: bytes 0 and 2, bytes 1 and 3.
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(_mm256_set1_epi32(four), 8), 8);
  const __m256i odd = _mm256_srai_epi16(_mm256_set1_epi32(four), 8), low = _mm256_set1_epi16(255);
  for (int i = 0; i < 2; i++) {
    const __m256i first = _mm256_madd_epi16(_mm256_and_si256(bytes[i], low), even);
    const __m256i second = _mm256_madd_epi16(_mm256_srli_epi16(bytes[i], 8), odd);
    sums[i] = _mm256_add_epi32(sums[i], _mm256_add_epi32(first, second));
  }
#endif
  std::memcpy(&total, sums, sizeof total);
  return total;
#else
  for (int byte = 0; byte < 4; byte++)
    total += (ivec)(stored >> (8 * byte) & 255u) * (int32_t)(int8_t)(four >> (8 * byte));
  return total;
#endif
}

// The integers nearest to x, at equal distance the even ones, for |x| < 2^22.
ALWAYS_INLINE ivec nearest(vec x) { return (ivec)(x + 12582912.0f) - 0x4B400000; }

ALWAYS_INLINE void store_bytes(void* out, ivec x) {
  typedef int8_t bytes __attribute__((vector_size(LANES)));
  const bytes narrow = __builtin_convertvector(x, bytes);
  std::memcpy(out, &narrow, sizeof narrow);
}

ALWAYS_INLINE ivec load_bytes(const int8_t* p) {
  typedef int8_t bytes __attribute__((vector_size(LANES)));
  bytes narrow;
  std::memcpy(&narrow, p, sizeof narrow);
  return __builtin_convertvector(narrow, ivec);
}

// What a quantised row stands for.
struct ByteRow {
  float scale;     // the value that one unit stands for
  int32_t offset;  // 128 * the sum of its bytes: the excess of its product with stored bytes
};

// Quantises a row of `size` values, a multiple of LANES, to [-127, 127] by a scale of its own. The bytes of NaN are
// arbitrary.
ALWAYS_INLINE ByteRow quantise(const float* x, int64_t size, int8_t* bytes) {
  vec most{};
  for (int64_t i = 0; i < size; i += LANES) {
    const vec v = load(x + i);
    most = larger(larger(v, -v), most);
  }
  const float top = largest(most), by = top > 0 && top < INFINITY ? 127.0f / top : 0;
  ivec total{};
  for (int64_t i = 0; i < size; i += LANES) {
    const ivec v = nearest(load(x + i) * by);
    total += v;
    store_bytes(bytes + i, v);
  }
  return {top / 127.0f, 128 * sum(total)};
}

}  // namespace
