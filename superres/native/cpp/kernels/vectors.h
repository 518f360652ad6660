// Vectors of 16 floats or integers, and operations on them.
//
// The sixteen lanes are logical: one register of AVX-512, two of AVX2, four of SSE, NEON or WebAssembly. Every operation rounds each lane
// once, and every sum over lanes has one order, so that all processors compute the same bits.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm__)
#include <wasm_simd128.h>
#endif

#include "abi.h"

namespace {

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

// The constraint of asm for an operand in a vector register.
#if defined(__aarch64__)
#define IN_REGISTER "+w"
#elif defined(__wasm__)
#define IN_REGISTER "+r"
#else
#define IN_REGISTER "+v"
#endif

#if defined(__AVX512F__)
constexpr int REGISTER = 64;  // bytes
#elif defined(__AVX2__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif
constexpr int REGISTERS = 4 * LANES / REGISTER;  // per vector
constexpr float EPSILON = 1e-5f;                 // of layer norm, as in torch

template <typename T>
struct Register {
  typedef T type __attribute__((vector_size(REGISTER)));
};

// The result of a comparison. Of comparisons and what is made of them, Clang would make the minimum or maximum of relaxed SIMD,
// which may treat NaN in another way.
template <typename Part>
ALWAYS_INLINE Part opaque(Part mask) {
#if defined(__wasm_relaxed_simd__)
  asm("" : IN_REGISTER(mask));
#endif
  return mask;
}

// 64 bytes in registers, with the operators of numbers, lane by lane. A number stands for a vector of equal lanes.
template <typename T>
struct Vector {
  typedef typename Register<T>::type Part;
  typedef Vector<int32_t> Mask;
  Part part[REGISTERS];

  Vector() = default;
  ALWAYS_INLINE Vector(T x) {
    UNROLL for (int i = 0; i < REGISTERS; i++) part[i] = x - Part{};
  }
  ALWAYS_INLINE T operator[](int lane) const {
    T lanes[REGISTER / sizeof(T) * REGISTERS];
    std::memcpy(lanes, part, sizeof lanes);
    return lanes[lane];
  }

#define LANEWISE(OP)                                                                        \
  friend ALWAYS_INLINE Vector operator OP(Vector a, Vector b) {                             \
    UNROLL for (int i = 0; i < REGISTERS; i++) a.part[i] = a.part[i] OP b.part[i];          \
    return a;                                                                               \
  }                                                                                         \
  ALWAYS_INLINE Vector& operator OP##=(Vector b) { return *this = *this OP b; }
  LANEWISE(+) LANEWISE(-) LANEWISE(*) LANEWISE(/) LANEWISE(&) LANEWISE(|) LANEWISE(^)
#undef LANEWISE

#define COMPARISON(OP)                                                                      \
  friend ALWAYS_INLINE Mask operator OP(Vector a, Vector b) {                               \
    Mask mask;                                                                              \
    UNROLL for (int i = 0; i < REGISTERS; i++) mask.part[i] = opaque((typename Mask::Part)(a.part[i] OP b.part[i])); \
    return mask;                                                                            \
  }
  COMPARISON(<) COMPARISON(>) COMPARISON(<=) COMPARISON(>=)
#undef COMPARISON

  friend ALWAYS_INLINE Vector operator-(Vector a) {
    UNROLL for (int i = 0; i < REGISTERS; i++) a.part[i] = -a.part[i];
    return a;
  }
  friend ALWAYS_INLINE Vector operator~(Vector a) {
    UNROLL for (int i = 0; i < REGISTERS; i++) a.part[i] = ~a.part[i];
    return a;
  }
  friend ALWAYS_INLINE Vector operator<<(Vector a, int bits) {
    UNROLL for (int i = 0; i < REGISTERS; i++) a.part[i] = a.part[i] << bits;
    return a;
  }
  friend ALWAYS_INLINE Vector operator>>(Vector a, int bits) {
    UNROLL for (int i = 0; i < REGISTERS; i++) a.part[i] = a.part[i] >> bits;
    return a;
  }
};

typedef Vector<float> vec;
typedef Vector<int32_t> ivec;
typedef Vector<uint32_t> uvec;

// The same 64 bytes as lanes of another type.
template <typename To, typename From>
ALWAYS_INLINE To as(From v) {
  To out;
  UNROLL for (int i = 0; i < REGISTERS; i++) out.part[i] = (typename To::Part)v.part[i];
  return out;
}

// The number in each lane as a number of another type.
template <typename To, typename From>
ALWAYS_INLINE To converted(From v) {
  To out;
  UNROLL for (int i = 0; i < REGISTERS; i++) out.part[i] = __builtin_convertvector(v.part[i], typename To::Part);
  return out;
}

// p + n, or null for null.
template <typename T>
ALWAYS_INLINE T* past(T* p, int64_t n) { return p ? p + n : p; }

template <typename T>
ALWAYS_INLINE Vector<T> load(const T* p) {
  Vector<T> v;
  UNROLL for (int i = 0; i < REGISTERS; i++) std::memcpy(&v.part[i], p + i * (LANES / REGISTERS), REGISTER);
  return v;
}
template <typename T>
ALWAYS_INLINE void store(T* p, Vector<T> v) {
  UNROLL for (int i = 0; i < REGISTERS; i++) std::memcpy(p + i * (LANES / REGISTERS), &v.part[i], REGISTER);
}
ALWAYS_INLINE vec fill(float x) { return vec(x); }

// Keeps a vector in registers: where it is used twice, GCC would rather read it from memory twice.
template <typename T>
ALWAYS_INLINE void keep(Vector<T>& v) {
  UNROLL for (int i = 0; i < REGISTERS; i++) {
    typename Vector<T>::Part part = v.part[i];  // GCC would leave an array that has operands of asm in memory
    asm("" : IN_REGISTER(part));
    v.part[i] = part;
  }
}

// `yes` in the lanes whose mask is set (all bits), `no` in those where it is 0.
template <typename T>
ALWAYS_INLINE Vector<T> pick(ivec mask, Vector<T> yes, Vector<T> no) {
  UNROLL for (int i = 0; i < REGISTERS; i++) {
#if defined(__wasm__)
    yes.part[i] = (typename Vector<T>::Part)wasm_v128_bitselect((v128_t)yes.part[i], (v128_t)no.part[i], (v128_t)mask.part[i]);
#else
    yes.part[i] = mask.part[i] ? yes.part[i] : no.part[i];
#endif
  }
  return yes;
}

// The lanes' numbers 0, 1, ...
ALWAYS_INLINE ivec numbers() {
  static constexpr int32_t lane[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(lane);
}

#if !defined(__FMA__) && !defined(__aarch64__) && !defined(__wasm_relaxed_simd__)
typedef double Doubles __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
typedef int64_t Bits __attribute__((vector_size(16)));

#if defined(__wasm__)
ALWAYS_INLINE Doubles lower_half(Floats x) { return (Doubles)wasm_f64x2_promote_low_f32x4((v128_t)x); }
ALWAYS_INLINE Doubles upper_half(Floats x) { return lower_half((Floats)wasm_i64x2_shuffle((v128_t)x, (v128_t)x, 1, 1)); }
ALWAYS_INLINE Floats joined(Doubles low, Doubles high) {
  return (Floats)wasm_i64x2_shuffle(wasm_f32x4_demote_f64x2_zero((v128_t)low), wasm_f32x4_demote_f64x2_zero((v128_t)high), 0, 2);
}
#else
ALWAYS_INLINE Doubles lower_half(Floats x) { return (Doubles)_mm_cvtps_pd((__m128)x); }
ALWAYS_INLINE Doubles upper_half(Floats x) { return lower_half((Floats)_mm_movehl_ps((__m128)x, (__m128)x)); }
ALWAYS_INLINE Floats joined(Doubles low, Doubles high) {
  return (Floats)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)low), _mm_cvtpd_ps((__m128d)high));
}
#endif

// x * y + total of two floats per double, rounded once. The product is exact in double. The sum is rounded to odd (the last
// bit is set if it was inexact), so that rounding it again, to float, gives what a single rounding gives
// (Boldo and Melquiond 2008, "Emulation of a FMA and Correctly Rounded Sums").
ALWAYS_INLINE Doubles fused_to_odd(Doubles x, Doubles y, Doubles total) {
  const Doubles product = x * y, sum = product + total, shifted = sum - product;
  const Doubles error = (product - (sum - shifted)) + (total - shifted);
  const Bits inexact = (Bits)(error < 0.0) | (Bits)(error > 0.0), bits = (Bits)sum, even = (Bits)((bits & 1) == 0);
  // Towards the error: one unit away from zero if sum and error have the same sign, else one unit towards zero.
  const Bits up = (Bits)((bits ^ (Bits)error) < 0) | 1;  // -1 or 1
  return (Doubles)(bits + (inexact & even & up));
}

// A function of its own: in every place where it is used, it would take minutes to compile.
__attribute__((noinline)) Floats fused_register(Floats x, Floats y, Floats total) {
  return joined(fused_to_odd(lower_half(x), lower_half(y), lower_half(total)),
                fused_to_odd(upper_half(x), upper_half(y), upper_half(total)));
}
#endif

// x * y + total, rounded once. The compiler itself may not fuse operations (-ffp-contract=off), so that the code gives the
// same bits on every processor.
ALWAYS_INLINE vec fused(vec x, vec y, vec total) {
  UNROLL for (int i = 0; i < REGISTERS; i++) {
#if defined(__AVX512F__)
    total.part[i] = (vec::Part)_mm512_fmadd_ps((__m512)x.part[i], (__m512)y.part[i], (__m512)total.part[i]);
#elif defined(__AVX2__) && defined(__FMA__)
    total.part[i] = (vec::Part)_mm256_fmadd_ps((__m256)x.part[i], (__m256)y.part[i], (__m256)total.part[i]);
#elif defined(__aarch64__)
    total.part[i] = (vec::Part)vfmaq_f32((float32x4_t)total.part[i], (float32x4_t)x.part[i], (float32x4_t)y.part[i]);
#elif defined(__wasm_relaxed_simd__)
    // Rounds once or twice, as the engine chooses: the self-test tells which.
    total.part[i] = (vec::Part)wasm_f32x4_relaxed_madd((v128_t)x.part[i], (v128_t)y.part[i], (v128_t)total.part[i]);
#else
    total.part[i] = (vec::Part)fused_register((Floats)x.part[i], (Floats)y.part[i], (Floats)total.part[i]);
#endif
  }
  return total;
}

// a > b ? a : b in each lane.
template <typename Part>
ALWAYS_INLINE Part larger_lanes(Part a, Part b) {
#if defined(__wasm__)
  return (Part)wasm_f32x4_pmax((v128_t)b, (v128_t)a);
#else
  return a > b ? a : b;
#endif
}
ALWAYS_INLINE vec larger(vec a, vec b) {
  UNROLL for (int i = 0; i < REGISTERS; i++) {
#if defined(__AVX512F__)
    a.part[i] = (vec::Part)_mm512_max_ps((__m512)a.part[i], (__m512)b.part[i]);
#elif defined(__AVX2__)
    a.part[i] = (vec::Part)_mm256_max_ps((__m256)a.part[i], (__m256)b.part[i]);
#elif defined(__x86_64__)
    a.part[i] = (vec::Part)_mm_max_ps((__m128)a.part[i], (__m128)b.part[i]);
#else
    a.part[i] = larger_lanes(a.part[i], b.part[i]);
#endif
  }
  return a;
}

// Four lanes of a vector.
template <typename T>
struct Four {
  typedef T type __attribute__((vector_size(16)));
};
#if defined(__x86_64__)
ALWAYS_INLINE Four<float>::type lanes_of(__m128 v) { return (Four<float>::type)v; }
ALWAYS_INLINE Four<int32_t>::type lanes_of(__m128i v) { return (Four<int32_t>::type)v; }
#endif

// The lanes [4 * quarter, 4 * quarter + 4).
template <int QUARTER, typename T>
ALWAYS_INLINE typename Four<T>::type quarter(Vector<T> v) {
  typedef typename Four<T>::type four;
#if defined(__AVX512F__)
  return (four)_mm512_extracti32x4_epi32((__m512i)v.part[0], QUARTER);
#elif defined(__AVX2__)
  return (four)_mm256_extracti128_si256((__m256i)v.part[QUARTER / 2], QUARTER % 2);
#else
  return v.part[QUARTER];
#endif
}

// All lanes, combined as a tree: the upper half is combined with the lower half until one lane is left.
template <typename T, typename Combine>
ALWAYS_INLINE T folded(Vector<T> v, const Combine& combine) {
  const auto four = combine(combine(quarter<0>(v), quarter<2>(v)), combine(quarter<1>(v), quarter<3>(v)));
  typedef typename Four<T>::type type;
  const type two = combine(four, (type){four[2], four[3], four[2], four[3]});
  return combine(two, (type){two[1], two[1], two[1], two[1]})[0];
}
template <typename T>
ALWAYS_INLINE T sum(Vector<T> v) {
  return folded(v, [](auto a, auto b) { return a + b; });
}
ALWAYS_INLINE float largest(vec v) {
  return folded(v, [](auto a, auto b) { return larger_lanes(a, b); });
}

ALWAYS_INLINE bool any(ivec mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask.part[0], (__m512i)mask.part[0]);
#elif defined(__AVX2__)
  const __m256i either = (__m256i)(mask.part[0] | mask.part[1]);
  return !_mm256_testz_si256(either, either);
#elif defined(__aarch64__)
  return vmaxvq_u32((uint32x4_t)((mask.part[0] | mask.part[1]) | (mask.part[2] | mask.part[3])));
#elif defined(__wasm__)
  return wasm_v128_any_true((v128_t)((mask.part[0] | mask.part[1]) | (mask.part[2] | mask.part[3])));
#else
  return _mm_movemask_epi8((__m128i)((mask.part[0] | mask.part[1]) | (mask.part[2] | mask.part[3])));
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
  return p * as<vec>((as<ivec>(shifted) << 23) + 0x3f800000);
}

// exp(x); unlike std::exp, the same on every processor.
ALWAYS_INLINE float exponential(float x) { return exponential(fill(x))[0]; }

// 2^x for x < 127, to within 2e-7 relative, or 8e-5 if `coarse`; 0 for x < -126.5.
template <bool COARSE = false>
ALWAYS_INLINE vec power_of_two(vec x) {
  x = larger(x, fill(-127.0f));
  const vec shifted = x + 12583039.0f;  // rounds to an integer, and writes it plus 127 to the low bits
  const vec r = x - (shifted - 12583039.0f);
  // Minimax polynomials of 2^r on [-1/2, 1/2].
  vec p;
  if (COARSE) {
    p = fused(fill(0.0551716685f), r, fill(0.242611125f));
    p = fused(p, r, fill(0.693260968f));
    p = fused(p, r, fill(0.999928057f));
  } else {
    p = fused(fill(1.32764725e-3f), r, fill(9.67554096e-3f));
    p = fused(p, r, fill(5.55071309e-2f));
    p = fused(p, r, fill(2.40221202e-1f));
    p = fused(p, r, fill(6.93146944e-1f));
    p = fused(p, r, fill(1.0f));
  }
  return p * as<vec>(as<ivec>(shifted) << 23);
}

// The place of the largest number, given that of each lane; of equal ones, the first place.
ALWAYS_INLINE int64_t largest_place(vec most, ivec where) {
  float tops[LANES];
  int32_t places[LANES];
  store(tops, most);
  store(places, where);
  int best = 0;
  for (int i = 1; i < LANES; i++)
    if (tops[i] > tops[best] || (tops[i] == tops[best] && places[i] < places[best])) best = i;
  return places[best];
}

// The argmax; of equal scores, the first.
ALWAYS_INLINE int64_t largest_of(const float* scores, int64_t count) {
  vec most = fill(-INFINITY);
  ivec place = numbers(), where{};
  int64_t v = 0;
  for (; v + LANES <= count; v += LANES, place += LANES) {
    const vec score = load(scores + v);
    const ivec better = score > most;
    most = pick(better, score, most);
    where = pick(better, place, where);
  }
  int64_t argmax = largest_place(most, where);
  float top = largest(most);
  for (; v < count; v++)
    if (scores[v] > top) top = scores[v], argmax = v;
  return argmax;
}

}  // namespace
