// Vectors of 16 floats or integers, and operations on them.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

#define ALWAYS_INLINE inline __attribute__((always_inline))

constexpr int LANES = 16;
constexpr int PANEL = 2 * LANES;  // outputs that are adjacent in a packed weight
constexpr int MAX_ROWS = 12;      // rows per register tile: 12 x 2 accumulators fill the registers
constexpr float EPSILON = 1e-5f;  // of layer norm, as in torch

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));

ALWAYS_INLINE vec load(const float* p) { vec v; std::memcpy(&v, p, sizeof v); return v; }
ALWAYS_INLINE uvec load(const uint32_t* p) { uvec v; std::memcpy(&v, p, sizeof v); return v; }
ALWAYS_INLINE void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }
ALWAYS_INLINE vec fill(float x) { return x - vec{}; }
ALWAYS_INLINE vec pick(ivec mask, vec yes, vec no) { return mask ? yes : no; }

// The vector rotated by HALF lanes, which moves the upper half of the first 2 * HALF lanes to the front.
template <int HALF>
ALWAYS_INLINE vec upper(vec v) {
  ivec from;
  for (int i = 0; i < LANES; i++) from[i] = (i + HALF) % LANES;
#ifdef __clang__
  vec out;
  for (int i = 0; i < LANES; i++) out[i] = v[from[i]];
  return out;
#else
  return __builtin_shuffle(v, from);
#endif
}

ALWAYS_INLINE vec larger(vec a, vec b) { return pick(a > b, a, b); }

// The sum of all lanes, as a tree: the upper half is added to the lower half until one lane is left.
ALWAYS_INLINE float sum(vec v) {
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

// exp(x) for x <= 0 to within 2e-7 relative: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes expf).
ALWAYS_INLINE vec exponential(vec x) {
  x = pick(x < -87.0f, fill(-87.0f), x);
  const vec shifted = x * 1.44269504088896341f + 12582912.0f;  // rounds to an integer in the low bits
  const vec n = shifted - 12582912.0f;
  vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vec p = fill(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const ivec bits = (__builtin_convertvector(n, ivec) + 127) << 23;
  return p * (vec)bits;
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
