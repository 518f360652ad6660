// A decoding step of the rows of one team.

#pragma once

#include "model/layer.h"
#include "model/screened_argmax.h"

namespace {

// The session for a step of `width` tokens of rows [begin, end). Its scratch is within that of full steps of the same rows,
// because other teams use the scratch before and after it.
void narrow(Session& s, int64_t begin, int64_t end, int64_t width) {
  const int64_t full = begin * s.width, skipped = begin * width, slots = s.slots > s.cross_slots ? s.slots : s.cross_slots;
  const auto move = [=](float*& scratch, int64_t size, int64_t stride) { scratch += full * size - skipped * stride; };
  s.width = width;
  s.batch = end - begin;  // the parts of a sub-layer are the parts of these rows
  move(s.x, 2 * s.size_d, s.size_d);
  move(s.parts, 2 * s.groups * s.size_d, s.size_d);
  move(s.attended, s.size_d, s.size_d);
  move(s.wide, s.filter, s.filter);
  move(s.weights, s.attention_heads * slots, s.attention_heads * slots);
  move(s.gathered, s.features, s.features);
  move(s.projected, s.stride, s.stride);
}

// A step of a team's rows: see `superres_step`. If `best_tokens` [B, W] is not null, writes the argmax of each column there
// and no scores.
void step(const Session& s, Team& team, int64_t begin, int64_t end, const int64_t* tokens, const int64_t* position,
          float* hidden, float* scores, int64_t* best_tokens, const Sampling* sampling = nullptr) {
  const Rows rows{s, team, begin, end, tokens, position};
  Clock clock(begin ? nullptr : s.seconds);
  Residual residual = rows.residual();
  rows.embed(rows.of(s.x, s.size_d));
  if (s.features) rows.neighbourhood(residual);
  clock.lap(INPUT);
  for (int64_t l = 0; l < s.layers; l++) rows.run(s.layer[l], residual, clock);
  float* states = rows.of(hidden, s.size_d);
  rows.settle(residual, states);
  if (s.final_weight) rows.normalise_all(states, s.final_weight, s.final_bias, states);
  float* projected = rows.of(s.projected, s.stride);
  if (best_tokens && s.tree.longest) {
    for (int64_t b = begin; b < end; b++)
      screened_argmax(s, team, states + (b - begin) * s.width * s.size_d, s.tree.scored, projected,
                      best_tokens + b * s.tree.scored, 1, [](int64_t) { return GumbelAt(nullptr, 0, 0); });
    clock.lap(SCORES);
    return;
  }
  if (best_tokens) {
    const auto gumbel_at = [=, &s](int64_t r) {
      const int64_t b = begin + r / s.width;
      return GumbelAt(sampling, b, position[b] + r % s.width);
    };
    screened_argmax(s, team, states, rows.count(), projected, best_tokens + begin * s.width, 1, gumbel_at);
    clock.lap(SCORES);
    return;
  }
  if (s.tree.longest) {
    for (int64_t b = begin; b < end; b++) {
      project(s, team, states + (b - begin) * s.width * s.size_d, s.tree.scored, projected);
      for (int64_t w = 0; w < s.tree.scored; w++) {
        float* out = scores + (b * s.tree.scored + w) * s.vocabulary;
        std::memcpy(out, projected + w * s.stride, s.vocabulary * sizeof(float));
        refuse_unless(s, all_finite(out, s.vocabulary));
      }
    }
    clock.lap(SCORES);
    return;
  }
  project(s, team, states, rows.count(), projected);
  for (int64_t b = begin, r = begin * s.width; b < end; b++)
    for (int64_t w = 0; w < s.width; w++, r++) {
      const float* out = projected + (r - begin * s.width) * s.stride;
      if (!s.ordinal) {
        std::memcpy(scores + r * s.vocabulary, out, s.vocabulary * sizeof(float));
        refuse_unless(s, all_finite(out, s.vocabulary));
        continue;
      }
      const int64_t target = rows.inside(b, w);
      float mu = s.estimate[b * s.length + target] + out[s.outputs - 2] * s.residual_scale;
      if (s.features)
        mu += dot(s.gathered + r * s.features, s.direct + target % s.channels * s.features, s.features) * s.residual_scale;
      scores_around(s, mu, out, scores + r * s.vocabulary);
      refuse_unless(s, all_finite(scores + r * s.vocabulary, s.vocabulary));
    }
  clock.lap(SCORES);
}

}  // namespace
