// The argmax over a large vocabulary from int8 bounds on the scores, computing exact scores of few panels only.

#pragma once

#include "scores.h"

namespace {

// The nearest integer in [-127, 127]; -127 for NaN, whose scores are refused later.
ALWAYS_INLINE int rounded(float x) { return (int)std::nearbyint(x > 127 ? 127.0f : x >= -127 ? x : -127.0f); }

#ifdef __AVX512VNNI__
// States quantised to bytes.
struct Bytes {
  std::vector<uint32_t> words;  // [count, size / 4]: four inputs per word, each offset by 128
  std::vector<float> scale;     // [count]: the value that one unit stands for
  std::vector<float> norm;      // [count]: sum of |x| of the quantised state

  void read(const float* states, int64_t count, int64_t size) {
    words.resize(count * size / 4);
    scale.resize(count);
    norm.resize(count);
    uint8_t* out = (uint8_t*)words.data();
    for (int64_t r = 0; r < count; r++, states += size, out += size) {
      vec most{};
      for (int64_t i = 0; i < size; i += LANES) {
        const vec x = load(states + i);
        most = pick(x > most, x, most);
        most = pick(-x > most, -x, most);
      }
      scale[r] = largest(most) / 127;
      const float by = scale[r] > 0 ? 1 / scale[r] : 0;
      int64_t total = 0;
      for (int64_t i = 0; i < size; i++) {
        const int x = rounded(states[i] * by);
        out[i] = (uint8_t)(x + 128);
        total += x < 0 ? -x : x;
      }
      norm[r] = total * scale[r];
    }
  }
};

// Approximate scores y of R quantised states for one panel of outputs.
template <int R>
void int8_tile(const Int8Filter& int8_filter, int64_t steps, int64_t panel, const uint32_t* x, const float* scale, float* y,
                 int64_t ys) {
  __m512i total[R][2];
  for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm512_setzero_si512();
  const uint32_t* weight = int8_filter.weight + panel * steps * PANEL;
  for (int64_t i = 0; i < steps; i++, weight += PANEL) {
    const __m512i low = (__m512i)load(weight), high = (__m512i)load(weight + LANES);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const __m512i value = _mm512_set1_epi32((int)x[r * steps + i]);
      total[r][0] = _mm512_dpbusd_epi32(total[r][0], value, low);
      total[r][1] = _mm512_dpbusd_epi32(total[r][1], value, high);
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < 2; p++) {
      const int64_t at = panel * PANEL + p * LANES;
      ivec offset;
      std::memcpy(&offset, int8_filter.sum + at, sizeof offset);
      const vec sum = __builtin_convertvector((ivec)total[r][p] - offset, vec);
      store(y + r * ys + at, load(int8_filter.bias + at) + sum * (load(int8_filter.scale + at) * scale[r]));
    }
}

// The argmax of the exact scores of a state, given its approximate scores `rough`. A panel is computed exactly only if
// one of its scores may exceed the largest lower bound.
int64_t argmax_near(const Session& s, const float* state, float scale, float norm, const float* rough) {
  const Int8Filter& int8_filter = s.int8_filter;
  const int64_t bytes = s.project.inputs * PANEL * (s.project.half ? 2 : 4);
  const auto error = [&](int64_t v) {
    return load(int8_filter.norm + v) * (int8_filter.rounding * scale) + load(int8_filter.scale + v) * (0.51f * norm);
  };
  vec least = fill(-INFINITY);
  for (int64_t v = 0; v < s.project.panels * PANEL; v += LANES) {
    const vec score = load(rough + v) - error(v);
    least = pick(score > least, score, least);
  }
  const float bar = largest(least);
  float top = -INFINITY, scores[PANEL];
  int64_t found = 0;
  for (int64_t p = 0; p < s.project.panels; p++) {
    const int64_t v = p * PANEL;
    const ivec low = load(rough + v) + error(v) >= bar, high = load(rough + v + LANES) + error(v + LANES) >= bar;
    if (!_mm512_test_epi32_mask((__m512i)(low | high), (__m512i)(low | high))) continue;
    Linear one = s.project;
    one.panels = 1;
    one.weight = (const char*)one.weight + p * bytes;
    one.bias += v;
    Team alone;
    apply(one, alone, state, s.size_d, 1, scores, PANEL, STORE);
    for (int64_t i = 0; i < PANEL && v + i < s.vocabulary; i++)
      if (scores[i] > top) top = scores[i], found = v + i;
  }
  refuse_unless(s, std::isfinite(top));
  return found;
}

// Writes the argmax of the output projection of each of `count` states to tokens[r * apart]; of equal scores, the first.
// The result is the argmax of `project`, exactly: int8 products give every score within a known error bound, and all
// panels that may hold the largest score are then computed in full.
void screened_argmax(const Session& s, Team& team, const float* states, int64_t count, float* rough, int64_t* tokens,
             int64_t apart) {
  static thread_local Bytes own;
  const Bytes& bytes = own;  // the calling thread's copy, which the helper threads read
  own.read(states, count, s.size_d);
  team.share(s.project.panels, [=, &s, &bytes](int64_t begin, int64_t end) {
    const int64_t steps = s.size_d / 4;
    for (int64_t p = begin; p < end; p++)
      for (int64_t done = 0; done < count;) {
        const int64_t take = count - done < MAX_ROWS ? count - done : MAX_ROWS;
        const uint32_t* x = bytes.words.data() + done * steps;
        const float* scale = bytes.scale.data() + done;
        float* y = rough + done * s.stride;
        switch (take) {
#define CASE(R) case R: int8_tile<R>(s.int8_filter, steps, p, x, scale, y, s.stride); break;
          CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
        }
        done += take;
      }
  });
  team.share(count, [=, &s, &bytes](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++)
      tokens[r * apart] = argmax_near(s, states + r * s.size_d, bytes.scale[r], bytes.norm[r], rough + r * s.stride);
  });
}
#else
void screened_argmax(const Session&, Team&, const float*, int64_t, float*, int64_t*, int64_t) {}
#endif

}  // namespace
