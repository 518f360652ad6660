// Vectors of 16 floats or integers, and operations on them.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#define ALWAYS_INLINE inline __attribute__((always_inline))

constexpr int LANES = 16;
constexpr int PANEL = 2 * LANES;  // outputs that are adjacent in a packed weight
constexpr int MAX_ROWS = 12;      // rows per register tile: 12 x 2 accumulators fill the registers
constexpr float EPSILON = 1e-5f;  // of layer norm, as in torch

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));

// p + n, or null for null.
template <typename T>
ALWAYS_INLINE T* past(T* p, int64_t n) { return p ? p + n : p; }

ALWAYS_INLINE vec load(const float* p) { vec v; std::memcpy(&v, p, sizeof v); return v; }
ALWAYS_INLINE uvec load(const uint32_t* p) { uvec v; std::memcpy(&v, p, sizeof v); return v; }
ALWAYS_INLINE void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }
ALWAYS_INLINE vec fill(float x) { return x - vec{}; }
ALWAYS_INLINE void store(uint32_t* p, uvec v) { std::memcpy(p, &v, sizeof v); }
ALWAYS_INLINE vec pick(ivec mask, vec yes, vec no) { return mask ? yes : no; }

// x * y + total, rounded once. The compiler itself may not fuse operations (-ffp-contract=off), so that the code gives the
// same bits on every processor.
ALWAYS_INLINE vec fused(vec x, vec y, vec total) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)total);
#elif defined(__FMA__)
  __m256 a[2], b[2], c[2];
  std::memcpy(a, &x, sizeof x), std::memcpy(b, &y, sizeof y), std::memcpy(c, &total, sizeof total);
  for (int i = 0; i < 2; i++) c[i] = _mm256_fmadd_ps(a[i], b[i], c[i]);
  std::memcpy(&total, c, sizeof total);
  return total;
#else
  for (int i = 0; i < LANES; i++) total[i] = std::fmaf(x[i], y[i], total[i]);
  return total;
#endif
}

// The vector rotated by HALF lanes, which moves the upper half of the first 2 * HALF lanes to the front.
template <int HALF, typename V>
ALWAYS_INLINE V upper(V v) {
  ivec from;
  for (int i = 0; i < LANES; i++) from[i] = (i + HALF) % LANES;
#ifdef __clang__
  V out;
  for (int i = 0; i < LANES; i++) out[i] = v[from[i]];
  return out;
#else
  return __builtin_shuffle(v, from);
#endif
}

ALWAYS_INLINE vec larger(vec a, vec b) { return pick(a > b, a, b); }

// The sum of all lanes, as a tree: the upper half is added to the lower half until one lane is left.
template <typename V>
ALWAYS_INLINE auto sum(V v) {
  v += upper<8>(v);
  v += upper<4>(v);
  v += upper<2>(v);
  v += upper<1>(v);
  return v[0];
}
ALWAYS_INLINE float largest(vec v) {
  v = larger(v, upper<8>(v));
  v = larger(v, upper<4>(v));
  v = larger(v, upper<2>(v));
  v = larger(v, upper<1>(v));
  return v[0];
}

ALWAYS_INLINE bool any(ivec mask) {
#ifdef __AVX512F__
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#else
  int32_t bits = 0;
  for (int i = 0; i < LANES; i++) bits |= mask[i];
  return bits;
#endif
}

// exp(x) for x < 80 to within 2e-7 relative: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes expf).
ALWAYS_INLINE vec exponential(vec x) {
  x = pick(x < -87.0f, fill(-87.0f), x);
  const vec shifted = fused(x, fill(1.44269504088896341f), fill(12582912.0f));  // rounds to an integer in the low bits
  const vec n = shifted - 12582912.0f;
  vec r = fused(n, fill(-0.693359375f), x);
  r = fused(n, fill(2.12194440e-4f), r);
  vec p = fill(1.9875691500e-4f);
  p = fused(p, r, fill(1.3981999507e-3f));
  p = fused(p, r, fill(8.3334519073e-3f));
  p = fused(p, r, fill(4.1665795894e-2f));
  p = fused(p, r, fill(1.6666665459e-1f));
  p = fused(p, r, fill(5.0000001201e-1f));
  p = fused(p, r * r, r + 1.0f);
  return p * (vec)(((ivec)shifted << 23) + 0x3f800000);
}

// 2^x for x <= 0 to within 3e-7 relative; 2^-90 for smaller x, which no further product makes a slow denormal.
ALWAYS_INLINE vec power_of_two(vec x) {
  x = larger(x, fill(-90.0f));
  const vec shifted = x + 12582912.0f;  // rounds to an integer in the low bits
  const vec r = x - (shifted - 12582912.0f);
  vec p = fill(1.3333558e-3f);
  p = fused(p, r, fill(9.6181291e-3f));
  p = fused(p, r, fill(5.5504109e-2f));
  p = fused(p, r, fill(2.4022651e-1f));
  p = fused(p, r, fill(6.9314718e-1f));
  p = fused(p, r, fill(1.0f));
  return (vec)((ivec)p + ((ivec)shifted << 23));
}

// The argmax; of equal scores, the first.
ALWAYS_INLINE int64_t largest_of(const float* scores, int64_t count) {
  vec most = fill(-INFINITY);
  ivec place, where{};
  for (int i = 0; i < LANES; i++) place[i] = i;
  int64_t v = 0;
  for (; v + LANES <= count; v += LANES, place += LANES) {
    const vec score = load(scores + v);
    const ivec better = score > most;
    most = pick(better, score, most);
    where = better ? place : where;
  }
  float top = -INFINITY;
  int64_t argmax = 0;
  for (int i = 0; i < LANES; i++)
    if (most[i] > top || (most[i] == top && where[i] < argmax)) top = most[i], argmax = where[i];
  for (; v < count; v++)
    if (scores[v] > top) top = scores[v], argmax = v;
  return argmax;
}

}  // namespace
