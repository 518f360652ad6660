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

// Reports that scores are not finite, unless they are. Any thread may call it.
ALWAYS_INLINE void refuse_unless(const Report& report, bool finite) {
  if (!finite) __atomic_store_n(report.not_finite, 1, __ATOMIC_RELAXED);
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
ALWAYS_INLINE float sharpness_of(const Sizes& size, const Ordinal& ordinal, const float* projected) {
  return bounded(projected[size.outputs - 1] + ordinal.initial_sharpness);
}

// Writes the scores [V] of intensities: the ordinal term, plus the free scores if the model has them. With z = |v - mu| / s, the
// term is -z, or d - sqrt(d^2 + z^2) if it has a third parameter, log d.
ALWAYS_INLINE void scores_around(const Sizes& size, const Ordinal& ordinal, float mu, const float* projected, float* scores) {
  const bool free_scores = size.outputs > ordinal.parameters;
  const float slope = exponential(sharpness_of(size, ordinal, projected));
  // Few instruction sets convert vectors of 64-bit integers.
  for (int32_t v = 0; v < (int32_t)size.vocabulary; v++) scores[v] = -slope * std::fabs((float)v - mu);
  if (ordinal.parameters > 2) {
    const float d = exponential(bounded(projected[size.outputs - 3])), square = d * d;
    for (int64_t v = 0; v < size.vocabulary; v++) scores[v] = d - std::sqrt(square + scores[v] * scores[v]);
  }
  if (free_scores)
    for (int64_t v = 0; v < size.vocabulary; v++) scores[v] += projected[v];
}

// Writes p1's scores [V] of the target position `target` of row b, from the projected state and the neighbour features.
ALWAYS_INLINE void p1_scores(const Session& s, int64_t b, int64_t target, const float* projected, const float* features,
                             float* scores) {
  const Neighbourhood& near = s.neighbourhood;
  if (s.ordinal.parameters) {
    float mu = s.ordinal.estimate[b * s.size.length + target] + projected[s.size.outputs - 2] * s.ordinal.residual_scale;
    if (near.features)
      mu += dot(features, near.direct + target % s.size.channels * near.features, near.features) * s.ordinal.residual_scale;
    scores_around(s.size, s.ordinal, mu, projected, scores);
  } else {
    std::memcpy(scores, projected, s.size.vocabulary * sizeof(float));
  }
  refuse_unless(s.report, all_finite(scores, s.size.vocabulary));
}

// A position clamped to the last target position.
ALWAYS_INLINE int64_t within(const Sizes& size, int64_t position) { return position < size.length ? position : size.length - 1; }

// The place in row b at which heads propose: p1's target position and its neighbour features.
struct ProposingPlace {
  const Session& s;
  int64_t b, place;
  const float* features;

  // Writes the scores [V] of head p(h + 2), and returns the centre of an ordinal head. A sequential head reads p1's token `first`
  // and the `tokens` of heads p2..p(h + 1).
  float score(int64_t h, const float* projected, const float* linear, int64_t first, const int64_t* tokens,
              float* scores) const {
    if (!s.ordinal.parameters) {
      std::memcpy(scores, projected, s.size.vocabulary * sizeof(float));
      return 0;
    }
    const Heads& heads = s.heads;
    const int64_t count = s.neighbourhood.features;
    const float *estimate = s.ordinal.estimate + b * s.size.length, scale = s.ordinal.residual_scale;
    float mu = estimate[within(s.size, place + h + 1)] + projected[s.size.outputs - 2] * scale;
    if (count) {
      float deviation = dot(features, heads.direct + (place % s.size.channels * heads.count + h) * count, count);
      if (heads.earlier) deviation += dot(features, linear, count);
      mu += deviation * scale;
    }
    for (int64_t e = 0; e <= h && e < heads.earlier; e++)
      mu += linear[count + e] * ((e ? tokens[e - 1] : first) - estimate[within(s.size, place + e)]);
    scores_around(s.size, s.ordinal, mu, projected, scores);
    return mu;
  }
};

// The output projection of `count` states. The team shares it if the vocabulary is large; for a few hundred outputs,
// distributing the work would take longer than the product.
void project(const Session& s, Team& team, const float* states, int64_t count, float* projected) {
  Team alone;
  const Linear& linear = s.weights.project;
  apply(linear, linear.panels < 64 ? alone : team, states, s.size.d, count, projected, s.size.stride, STORE);
}

}  // namespace
