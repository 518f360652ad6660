// The argmax over a large vocabulary from int8 bounds on the scores, computing exact scores of few panels only.

#pragma once

#include "scores.h"

namespace {

// The sum of |x| of a quantised row.
float norm_of(const int8_t* bytes, int64_t size, float scale) {
  int64_t total = 0;
  for (int64_t i = 0; i < size; i++) total += bytes[i] < 0 ? -bytes[i] : bytes[i];
  return total * scale;
}

// The argmax of the exact scores of a state, given its approximate scores `rough`. A panel is computed exactly only if
// one of its scores may exceed the largest lower bound.
int64_t argmax_near(const Session& s, const float* state, float scale, float norm, const float* rough) {
  const Int8Filter& int8_filter = s.int8_filter;
  const int64_t bytes = s.project.inputs * PANEL * (s.project.format == BFLOAT16 ? 2 : 4);
  const auto error = [&](int64_t v) {
    return load(int8_filter.norm + v) * (int8_filter.rounding * scale) + load(int8_filter.product.scale + v) * (0.51f * norm);
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
    if (!any(low | high)) continue;
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
  static thread_local ByteRows own;
  const ByteRows& bytes = own;  // the calling thread's copy, which the helper threads read
  own.read(states, s.size_d, count, s.size_d);
  team.share(s.project.panels, [=, &s, &bytes](int64_t begin, int64_t end) {
    const Slice slice{s.int8_filter.product, begin, end, 0, s.size_d};
    apply_bytes(slice, bytes.words.data(), bytes.rows.data(), count, rough + begin * PANEL, s.stride, STORE, slice.bias());
  });
  team.share(count, [=, &s, &bytes](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      const float scale = bytes.rows[r].scale, norm = norm_of((const int8_t*)(bytes.words.data() + r * s.size_d / 4), s.size_d, scale);
      tokens[r * apart] = argmax_near(s, states + r * s.size_d, scale, norm, rough + r * s.stride);
    }
  });
}

}  // namespace
