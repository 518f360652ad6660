// From hidden states to scores.

#pragma once

#include "model/linear.h"

namespace {

ALWAYS_INLINE float dot(const float* a, const float* b, int64_t count) {
  vec totals{};
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) totals = fused(load(a + i), load(b + i), totals);
  float total = sum(totals);
  for (; i < count; i++) total += a[i] * b[i];
  return total;
}

// Sets the session's flag unless the scores are finite. Any thread may call it.
ALWAYS_INLINE void refuse_unless(const Session& s, bool finite) {
  if (!finite) __atomic_store_n(s.not_finite, 1, __ATOMIC_RELAXED);
}

ALWAYS_INLINE bool all_finite(const float* scores, int64_t count) {
  vec zero{};
  int64_t v = 0;
  for (; v + LANES <= count; v += LANES) zero += load(scores + v) - load(scores + v);
  float rest = sum(zero);
  for (; v < count; v++) rest += scores[v] - scores[v];
  return rest == 0;
}

// A logarithm within its bounds.
ALWAYS_INLINE float bounded(float x) { return x < -7.0f ? -7.0f : x > 3.0f ? 3.0f : x; }

// log(1 / s) of the ordinal term.
ALWAYS_INLINE float sharpness_of(const Session& s, const float* projected) {
  return bounded(projected[s.outputs - 1] + s.initial_sharpness);
}

// The scores [V] of intensities: the ordinal term, plus the free scores if the model has them. With z = |v - mu| / s, the
// term is -z, or d - sqrt(d^2 + z^2) if it has a third parameter, log d.
ALWAYS_INLINE void scores_around(const Session& s, float mu, const float* projected, float* scores) {
  const bool free_scores = s.outputs > s.ordinal;
  const float slope = exponential(sharpness_of(s, projected));
  for (int64_t v = 0; v < s.vocabulary; v++) scores[v] = -slope * std::fabs((float)v - mu);
  if (s.ordinal > 2) {
    const float d = exponential(bounded(projected[s.outputs - 3])), square = d * d;
    for (int64_t v = 0; v < s.vocabulary; v++) scores[v] = d - std::sqrt(square + scores[v] * scores[v]);
  }
  if (free_scores)
    for (int64_t v = 0; v < s.vocabulary; v++) scores[v] += projected[v];
}

// A position clamped to the last target position.
ALWAYS_INLINE int64_t within(const Session& s, int64_t position) { return position < s.length ? position : s.length - 1; }

// The place in row b at which heads propose: p1's target position and its neighbour features.
struct Row {
  const Session& s;
  int64_t b, place;
  const float* features;

  // Writes the scores [V] of head p(h + 2), and returns the centre of an ordinal head. A sequential head reads p1's token `first` and the `tokens` of heads p2..p(h + 1).
  float score(int64_t h, const float* projected, const float* linear, int64_t first, const int64_t* tokens,
             float* scores) const {
    if (!s.ordinal) {
      std::memcpy(scores, projected, s.vocabulary * sizeof(float));
      return 0;
    }
    const Heads& heads = s.heads;
    const float* estimate = s.estimate + b * s.length;
    float mu = estimate[within(s, place + h + 1)] + projected[s.outputs - 2] * s.residual_scale;
    if (s.features) {
      float deviation = dot(features, heads.direct + (place % s.channels * heads.count + h) * s.features, s.features);
      if (heads.earlier) deviation += dot(features, linear, s.features);
      mu += deviation * s.residual_scale;
    }
    for (int64_t e = 0; e <= h && e < heads.earlier; e++)
      mu += linear[s.features + e] * ((e ? tokens[e - 1] : first) - estimate[within(s, place + e)]);
    scores_around(s, mu, projected, scores);
    return mu;
  }
};

// The output projection of `count` states. The team shares it if the vocabulary is large; for a few hundred outputs,
// distributing the work would take longer than the product.
void project(const Session& s, Team& team, const float* states, int64_t count, float* projected) {
  Team alone;
  apply(s.project, s.project.panels < 64 ? alone : team, states, s.size_d, count, projected, s.stride, STORE);
}

}  // namespace
