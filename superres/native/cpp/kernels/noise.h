// Random numbers, and the functions that sampling applies to scores: the same bits as superres/decoding/noise.py. They
// consist of elementary operations in a fixed order, which -ffp-contract=off keeps apart.

#pragma once

#include "kernels/vectors.h"

namespace {

constexpr int64_t GROUP = 4 * LANES;  // tokens that LANES counters give noise to
constexpr float LEAST_GUMBEL = -2.9f, MOST_GUMBEL = 22.9f;

// The seed and the key of a row's noise.
struct Stream {
  uint32_t seed[2], key[2];

  Stream(int64_t seed, int64_t key)
      : seed{(uint32_t)seed, (uint32_t)(seed >> 32)}, key{(uint32_t)key, (uint32_t)(key >> 32)} {}
};

typedef Vector<uint64_t> wide;

// The lower 32 bits of each 64-bit lane times `by`.
ALWAYS_INLINE wide lower_product(wide x, uint32_t by) {
  UNROLL for (int i = 0; i < REGISTERS; i++) {
#if defined(__AVX512F__)
    x.part[i] = (wide::Part)_mm512_mul_epu32((__m512i)x.part[i], _mm512_set1_epi32((int)by));
#elif defined(__AVX2__)
    x.part[i] = (wide::Part)_mm256_mul_epu32((__m256i)x.part[i], _mm256_set1_epi32((int)by));
#elif defined(__aarch64__)
    x.part[i] = (wide::Part)vmull_n_u32(vmovn_u64((uint64x2_t)x.part[i]), by);
#elif defined(__wasm__)
    const v128_t lower = wasm_i32x4_shuffle((v128_t)x.part[i], (v128_t)x.part[i], 0, 2, 0, 2);
    x.part[i] = (wide::Part)wasm_u64x2_extmul_low_u32x4(lower, wasm_u32x4_splat(by));
#else
    x.part[i] = (wide::Part)_mm_mul_epu32((__m128i)x.part[i], _mm_set1_epi32((int)by));
#endif
  }
  return x;
}

// The 64 bits of x * by.
ALWAYS_INLINE void multiply(uvec x, uint32_t by, uvec& high, uvec& low) {
  const wide lower(0xFFFFFFFF), even = lower_product(as<wide>(x), by), odd = lower_product(as<wide>(x) >> 32, by);
  high = as<uvec>(even >> 32 | (odd & ~lower));
  low = as<uvec>((even & lower) | odd << 32);
}

// The four words of LANES counters of a row and position, by Philox4x32-10 (Salmon et al. 2011).
ALWAYS_INLINE void philox(const Stream& stream, uvec block, int64_t position, uvec* x) {
  x[0] = block;
  x[1] = uvec{} + (uint32_t)position;
  x[2] = uvec{} + stream.key[0];
  x[3] = uvec{} + stream.key[1];
  uint32_t key[2] = {stream.seed[0], stream.seed[1]};
  for (int round = 0; round < 10; round++, key[0] += 0x9E3779B9, key[1] += 0xBB67AE85) {
    uvec high[2], low[2];
    multiply(x[0], 0xD2511F53, high[0], low[0]);
    multiply(x[2], 0xCD9E8D57, high[1], low[1]);
    x[0] = high[1] ^ x[1] ^ key[0];
    x[1] = low[1];
    x[2] = high[0] ^ x[3] ^ key[1];
    x[3] = low[0];
  }
}

// The random words of GROUP tokens from `first` on, LANES tokens per vector.
ALWAYS_INLINE void group_words(const Stream& stream, int64_t position, int64_t first, uvec* words) {
  philox(stream, as<uvec>(numbers() + (int32_t)(first / GROUP * LANES)), position, words);
}

// A uniform number in (0, 1) of a row and position: one of four, which each `number` gives other values.
inline double uniform(const Stream& stream, int64_t position, int64_t number, int which) {
  uvec x[4];
  philox(stream, uvec{} + (uint32_t)number, position, x);
  return (x[which][0] + 0.5) * 0x1p-32;
}

// log(x) of normal x > 0.
ALWAYS_INLINE vec logarithm(vec x) {
  const ivec bits = as<ivec>(x);
  const vec half = as<vec>((bits & ivec(0x7FFFFF)) | ivec(0x3F000000));
  const ivec small = half < 0.70703125f;
  const vec exponent = converted<vec>((bits >> 23) - 126 + small);  // a true lane is -1
  const vec m = pick(small, half + half, half) - 1.0f;
  const vec square = m * m;
  vec y = m * 7.0376836292e-2f - 1.1514610310e-1f;
  y = y * m + 1.1676998740e-1f;
  y = y * m - 1.2420140846e-1f;
  y = y * m + 1.4249322787e-1f;
  y = y * m - 1.6668057665e-1f;
  y = y * m + 2.0000714765e-1f;
  y = y * m - 2.4999993993e-1f;
  y = y * m + 3.3333331174e-1f;
  y = y * m * square;
  y = y + exponent * -2.12194440e-4f;
  y = y - square * 0.5f;
  return m + y + exponent * 0.693359375f;
}

// Uniform numbers in (0, 1) of random words, with all bits of small numbers.
ALWAYS_INLINE vec uniform_of(uvec bits) {
  const vec high = converted<vec>(as<ivec>(bits >> 16)), low = converted<vec>(as<ivec>(bits & uvec(0xFFFF)));
  const vec v = (high * 65536.0f + low + 0.5f) * 0x1p-32f;
  return pick(v > 1 - 0x1p-24f, fill(1 - 0x1p-24f), v);
}

// Gumbel noise of uniform numbers.
ALWAYS_INLINE vec gumbel(vec v) {
  const vec rest = 1.0f - v;
  return -logarithm(((rest - 1.0f) + v) / rest - logarithm(rest));
}

// An upper bound of `gumbel`, from the exponents of the uniform numbers.
ALWAYS_INLINE vec gumbel_bound(vec v) {
  return 0.01f - converted<vec>((as<ivec>(v) >> 23) - 127) * 0.6931472f;
}

// Whole numbers proportional to exp(x), for x <= 0: 2^24 at 0.
ALWAYS_INLINE ivec weights_of(vec x) {
  x = pick(x < -87.0f, fill(-87.0f), x);
  const vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // the nearest integer
  vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const ivec power = (converted<ivec>(n) + (127 + 24)) << 23;
  return converted<ivec>(p * as<vec>(power));
}

}  // namespace
