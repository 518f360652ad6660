// Bytes as numbers: quantised rows, and exact sums of their products with stored bytes. Integer sums do not depend on
// their order, so that a column's result never depends on the other columns, and is the same on every processor.
//
// Stored bytes are 128 larger than they count, which the instructions of AVX-512 VNNI need.

#pragma once

#include "kernels/vectors.h"

namespace {

// `Stored` holds four stored bytes per lane, and `Quad` the four bytes of a row that they are multiplied by.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__aarch64__)

#if defined(__aarch64__)
constexpr int32_t EXCESS = 0;  // what the product with the stored bytes exceeds that with the numbers by, per unit of the row
constexpr uint32_t FLIPPED = 0x80808080u;
#else
constexpr int32_t EXCESS = 128;
constexpr uint32_t FLIPPED = 0;
#endif
typedef int32_t Quad;
struct Stored {
  uvec bytes;
  explicit ALWAYS_INLINE Stored(uvec v) : bytes(v ^ uvec(FLIPPED)) {}
};

#if defined(__aarch64__)
// Adds, in each lane, the products of four numbers of -128..127 and four of -127..127.
ALWAYS_INLINE ivec::Part signed_products(ivec::Part total, uvec::Part a, int32_t b) {
  const int8x16_t x = (int8x16_t)a, y = vreinterpretq_s8_s32(vdupq_n_s32(b));
#if defined(__ARM_FEATURE_DOTPROD)
  return (ivec::Part)vdotq_s32((int32x4_t)total, x, y);
#else
  // The sums of two products fit 16 bits.
  const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y));
  return (ivec::Part)vpadalq_s16((int32x4_t)total, pairs);
#endif
}
#endif

ALWAYS_INLINE ivec dot4(ivec total, const Stored& stored, Quad four) {
  UNROLL for (int i = 0; i < REGISTERS; i++) {
#if defined(__AVX512VNNI__)
    total.part[i] = (ivec::Part)_mm512_dpbusd_epi32((__m512i)total.part[i], (__m512i)stored.bytes.part[i], _mm512_set1_epi32(four));
#elif defined(__AVXVNNI__)
    total.part[i] = (ivec::Part)_mm256_dpbusd_avx_epi32((__m256i)total.part[i], (__m256i)stored.bytes.part[i], _mm256_set1_epi32(four));
#else
    total.part[i] = signed_products(total.part[i], stored.bytes.part[i], four);
#endif
  }
  return total;
}

// Writes the quads of `size` bytes, a multiple of LANES.
ALWAYS_INLINE void to_quads(const int8_t* bytes, int64_t size, Quad* quads) { std::memcpy(quads, bytes, size); }

#else

// Without such an instruction, pairs of 16-bit numbers are multiplied: bytes 0 and 2, bytes 1 and 3.
constexpr int32_t EXCESS = 128;
struct Quad {
  int32_t even, odd;
};
struct Stored {
  uvec even, odd;
  explicit ALWAYS_INLINE Stored(uvec v) : even(v & uvec(0x00FF00FFu)) {
    typedef Register<uint16_t>::type Pairs;
    UNROLL for (int i = 0; i < REGISTERS; i++) odd.part[i] = (uvec::Part)((Pairs)v.part[i] >> 8);
  }
};

// The sums of the products of pairs of 16-bit numbers, in each lane of a register.
ALWAYS_INLINE ivec::Part pair_products(uvec::Part a, int32_t b) {
#if defined(__AVX512BW__)
  return (ivec::Part)_mm512_madd_epi16((__m512i)a, _mm512_set1_epi32(b));
#elif defined(__AVX2__)
  return (ivec::Part)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi32(b));
#elif defined(__wasm__)
  return (ivec::Part)wasm_i32x4_dot_i16x8((v128_t)a, wasm_i32x4_splat(b));
#else
  return (ivec::Part)_mm_madd_epi16((__m128i)a, _mm_set1_epi32(b));
#endif
}

// Adds, in each lane, the products of four stored bytes and the four bytes of a row.
ALWAYS_INLINE ivec dot4(ivec total, const Stored& stored, const Quad& four) {
  UNROLL for (int i = 0; i < REGISTERS; i++)
    total.part[i] += pair_products(stored.even.part[i], four.even) + pair_products(stored.odd.part[i], four.odd);
  return total;
}

ALWAYS_INLINE void to_quads(const int8_t* bytes, int64_t size, Quad* quads) {
  typedef int16_t pairs __attribute__((vector_size(16)));
  typedef int32_t words __attribute__((vector_size(16)));
  for (int64_t i = 0; i < size; i += 16, quads += 4) {
    pairs b;
    std::memcpy(&b, bytes + i, sizeof b);
    const words even = (words)((b << 8) >> 8), odd = (words)(b >> 8);
    const words both[2] = {{even[0], odd[0], even[1], odd[1]}, {even[2], odd[2], even[3], odd[3]}};
    std::memcpy((void*)quads, both, sizeof both);
  }
}

#endif

// `Signed` holds four stored bytes per lane as what they count, and `Levels` four numbers of 0..127 by which they are multiplied.
#if defined(__wasm__) && !defined(__wasm_relaxed_simd__)

typedef Quad Levels;
struct Signed {
  uvec even, odd;
  explicit ALWAYS_INLINE Signed(uvec v) {
    typedef Register<int16_t>::type Pairs;
    UNROLL for (int i = 0; i < REGISTERS; i++) {
      const Pairs pairs = (Pairs)(v.part[i] ^ 0x80808080u);
      even.part[i] = (uvec::Part)((pairs << 8) >> 8), odd.part[i] = (uvec::Part)(pairs >> 8);
    }
  }
};

ALWAYS_INLINE ivec dot4(ivec total, const Signed& values, const Levels& four) {
  UNROLL for (int i = 0; i < REGISTERS; i++)
    total.part[i] += pair_products(values.even.part[i], four.even) + pair_products(values.odd.part[i], four.odd);
  return total;
}

#else

typedef int32_t Levels;
struct Signed {
  uvec bytes;
  explicit ALWAYS_INLINE Signed(uvec v) : bytes(v ^ uvec(0x80808080u)) {}
};

// Adds, in each lane, the products of four numbers and four levels. The sums of two products fit 16 bits.
ALWAYS_INLINE ivec dot4(ivec total, const Signed& values, Levels four) {
  UNROLL for (int i = 0; i < REGISTERS; i++) {
#if defined(__AVX512VNNI__)
    total.part[i] = (ivec::Part)_mm512_dpbusd_epi32((__m512i)total.part[i], _mm512_set1_epi32(four), (__m512i)values.bytes.part[i]);
#elif defined(__AVXVNNI__)
    total.part[i] = (ivec::Part)_mm256_dpbusd_avx_epi32((__m256i)total.part[i], _mm256_set1_epi32(four), (__m256i)values.bytes.part[i]);
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(four), (__m256i)values.bytes.part[i]);
    total.part[i] += (ivec::Part)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__aarch64__)
    total.part[i] = signed_products(total.part[i], values.bytes.part[i], four);
#elif defined(__wasm__)
    total.part[i] = (ivec::Part)wasm_i32x4_relaxed_dot_i8x16_i7x16_add((v128_t)values.bytes.part[i], wasm_i32x4_splat(four), (v128_t)total.part[i]);
#else
    const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi32(four), (__m128i)values.bytes.part[i]);
    total.part[i] += (ivec::Part)_mm_madd_epi16(pairs, _mm_set1_epi16(1));
#endif
  }
  return total;
}

#endif

// Integers whose lowest bytes are those of the integers nearest to x * by, at equal distance the even ones, for |x * by| < 2^22.
ALWAYS_INLINE ivec nearest_bytes(vec x, float by) { return as<ivec>(fused(x, fill(by), fill(12582912.0f))); }
ALWAYS_INLINE ivec nearest(vec x, float by) { return nearest_bytes(x, by) - 0x4B400000; }

// Writes the lowest bytes of the lanes.
ALWAYS_INLINE void store_bytes(void* out, ivec x) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8((__m512i)x.part[0]));
#elif defined(__AVX2__)
  // The lower bytes of each lane to the front of each half, and the halves together.
  const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                         -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i low = _mm256_shuffle_epi8((__m256i)x.part[0], order), high = _mm256_shuffle_epi8((__m256i)x.part[1], order);
  const __m128i a = _mm_or_si128(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  const __m128i b = _mm_or_si128(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128((__m128i*)out, _mm_unpacklo_epi64(a, b));
#elif defined(__aarch64__)
  const int16x8_t low = vuzp1q_s16((int16x8_t)x.part[0], (int16x8_t)x.part[1]);
  const int16x8_t high = vuzp1q_s16((int16x8_t)x.part[2], (int16x8_t)x.part[3]);
  vst1q_s8((int8_t*)out, vuzp1q_s8((int8x16_t)low, (int8x16_t)high));
#else
  x = x & ivec(255);
#if defined(__wasm__)
  const v128_t low = wasm_u16x8_narrow_i32x4((v128_t)x.part[0], (v128_t)x.part[1]);
  wasm_v128_store(out, wasm_u8x16_narrow_i16x8(low, wasm_u16x8_narrow_i32x4((v128_t)x.part[2], (v128_t)x.part[3])));
#else
  const __m128i low = _mm_packs_epi32((__m128i)x.part[0], (__m128i)x.part[1]);
  _mm_storeu_si128((__m128i*)out, _mm_packus_epi16(low, _mm_packs_epi32((__m128i)x.part[2], (__m128i)x.part[3])));
#endif
#endif
}

// Writes the quads of LANES bytes.
ALWAYS_INLINE void store_quads(Quad* quads, ivec x) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__aarch64__)
  store_bytes(quads, x);
#elif defined(__AVX2__)
  // Pairs of 16-bit numbers: lanes 0 and 2, 1 and 3, ...
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)x.part[0], (__m256i)x.part[1]), 0xD8);
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,
                                         0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  _mm256_storeu_si256((__m256i*)quads, _mm256_shuffle_epi8(packed, order));
#else
  UNROLL for (int i = 0; i < REGISTERS; i += 2) {
#if defined(__wasm__)
    const v128_t packed = wasm_i16x8_narrow_i32x4((v128_t)x.part[i], (v128_t)x.part[i + 1]);
    wasm_v128_store(quads + i, wasm_i16x8_shuffle(packed, packed, 0, 2, 1, 3, 4, 6, 5, 7));
#else
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m128i packed = _mm_packs_epi32((__m128i)x.part[i], (__m128i)x.part[i + 1]);
    _mm_storeu_si128((__m128i*)(quads + i), _mm_shuffle_epi8(packed, order));
#endif
  }
#endif
}

// Writes LANES levels, in quads. Only the lowest byte of each lane counts.
ALWAYS_INLINE void store_levels(Levels* quads, ivec x) {
#if defined(__wasm__) && !defined(__wasm_relaxed_simd__)
  store_quads(quads, x & ivec(255));
#else
  store_bytes(quads, x);
#endif
}

ALWAYS_INLINE ivec load_bytes(const int8_t* p) {
#if defined(__AVX512F__)
  ivec out;
  out.part[0] = (ivec::Part)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
  return out;
#elif defined(__AVX2__)
  ivec out;
  out.part[0] = (ivec::Part)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
  out.part[1] = (ivec::Part)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)));
  return out;
#else
  typedef int8_t Bytes __attribute__((vector_size(4)));
  ivec out;
  UNROLL for (int i = 0; i < REGISTERS; i++) {
    Bytes four;
    std::memcpy(&four, p + 4 * i, sizeof four);
    out.part[i] = __builtin_convertvector(four, ivec::Part);
  }
  return out;
#endif
}

// Units per value of numbers up to `top`, for bytes up to 127; 0 where the units would overflow or be of no use.
ALWAYS_INLINE float units_per_value(float top) { return top >= 0x1p-119f && top < INFINITY ? 127.0f / top : 0; }

// What a quantised row stands for.
struct ByteRow {
  float scale;     // the value that one unit stands for
  int32_t offset;  // EXCESS * the sum of its bytes: the excess of its product with stored bytes
};

// Quantises a row of `size` values, a multiple of LANES, to [-127, 127] by a scale of its own: calls write(i, levels) for LANES
// values from i on. The levels of NaN are arbitrary.
template <typename Write>
ALWAYS_INLINE ByteRow quantise(const float* x, int64_t size, const Write& write) {
  vec most{};
  for (int64_t i = 0; i < size; i += LANES) {
    const vec v = load(x + i);
    most = larger(larger(v, -v), most);
  }
  const float top = largest(most), by = units_per_value(top);
  ivec total{};
  for (int64_t i = 0; i < size; i += LANES) {
    const ivec v = nearest(load(x + i), by);
    total += v;
    write(i, v);
  }
  return {top / 127.0f, EXCESS * sum(total)};
}
ALWAYS_INLINE ByteRow quantise(const float* x, int64_t size, int8_t* bytes) {
  return quantise(x, size, [=](int64_t i, ivec levels) { store_bytes(bytes + i, levels); });
}
ALWAYS_INLINE ByteRow quantise(const float* x, int64_t size, Quad* quads) {
  return quantise(x, size, [=](int64_t i, ivec levels) { store_quads(quads + i / 4, levels); });
}

// An upper bound on the sum of |x| of a row that is quantised, whose unit is `scale`: a rounded value exceeds it by half a unit.
inline float norm_bound(const float* x, int64_t size, float scale) {
  vec total{};
  for (int64_t i = 0; i < size; i += LANES) {
    const vec v = load(x + i);
    total += larger(v, -v);
  }
  return sum(total) + 0.51f * scale * size;
}

}  // namespace
