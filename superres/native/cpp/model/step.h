// A decoding step of the rows of one team.

#pragma once

#include "model/layer.h"
#include "model/screened_argmax.h"

namespace {

// Changes the session to one for a step of `width` tokens of rows [begin, end). Its scratch is within that of full steps of the
// same rows, because other teams use the scratch before and after it.
void narrow(Session& s, int64_t begin, int64_t end, int64_t width) {
  Scratch& scratch = s.scratch;
  const int64_t full = begin * s.size.width, skipped = begin * width, D = s.size.d;
  const int64_t weights = s.size.attention_heads * std::max(s.size.slots, s.size.cross_slots);
  const auto move = [=](float*& memory, int64_t size, int64_t stride) { memory += full * size - skipped * stride; };
  s.size.width = width;
  s.size.batch = end - begin;  // the parts of a sub-layer are the parts of these rows
  move(scratch.x, 2 * D, D);
  move(scratch.parts, 2 * s.size.groups * D, D);
  move(scratch.attended, D, D);
  move(scratch.wide, s.size.filter, s.size.filter);
  move(scratch.weights, weights, weights);
  move(scratch.gathered, s.neighbourhood.features, s.neighbourhood.features);
  move(scratch.projected, s.size.stride, s.size.stride);
}

// The results of a step: see `superres_step`. If `best_tokens` [B, W] is not null, the step writes the argmax of each column
// there, with Gumbel noise if `sampling` is not null, and no scores. Over a tree, only the scored columns have results.
struct StepOutput {
  float *hidden, *scores;
  int64_t* best_tokens = nullptr;
  const Sampling* sampling = nullptr;
};

// Writes the scores, or the best tokens, of all columns from their states [rows, W, D].
void score_columns(const Rows& rows, const float* states, float* projected, const StepOutput& output) {
  const Session& s = rows.s;
  const int64_t W = s.size.width, begin = rows.begin;
  if (output.best_tokens) {
    const auto gumbel_at = [=, sampling = output.sampling, position = rows.position](int64_t r) {
      const int64_t b = begin + r / W;
      return GumbelAt(sampling, b, position[b] + r % W);
    };
    screened_argmax(s, rows.team, states, rows.count(), projected, output.best_tokens + begin * W, 1, gumbel_at);
    return;
  }
  project(s, rows.team, states, rows.count(), projected);
  const float* features = rows.of(s.scratch.gathered, s.neighbourhood.features);
  float* scores = rows.of(output.scores, s.size.vocabulary);
  for (int64_t b = begin; b < rows.end; b++)
    for (int64_t w = 0; w < W; w++) {
      p1_scores(s, b, rows.inside(b, w), projected, features, scores);
      projected += s.size.stride, features += s.neighbourhood.features, scores += s.size.vocabulary;
    }
}

// As `score_columns`, of the scored columns of a tree.
void score_tree(const Rows& rows, const float* states, float* projected, const StepOutput& output) {
  const Session& s = rows.s;
  const int64_t scored = s.tree.scored, V = s.size.vocabulary, N = s.neighbourhood.features;
  for (int64_t b = rows.begin; b < rows.end; b++, states += s.size.width * s.size.d) {
    if (output.best_tokens) {
      screened_argmax(s, rows.team, states, scored, projected, output.best_tokens + b * scored, 1,
                      [](int64_t) { return GumbelAt(nullptr, 0, 0); });
      continue;
    }
    project(s, rows.team, states, scored, projected);
    for (int64_t w = 0; w < scored; w++)
      p1_scores(s, b, rows.inside(b, w), projected + w * s.size.stride, s.scratch.gathered + (b * s.size.width + w) * N,
                output.scores + (b * scored + w) * V);
  }
}

// A step of a team's rows: see `superres_step`.
void step(Session& s, Team& team, int64_t begin, int64_t end, const int64_t* tokens, const int64_t* position,
          const StepOutput& output) {
  const Rows rows{s, team, begin, end, tokens, position};
  const Layers layers(rows);
  Clock clock(begin ? nullptr : s.report.seconds);
  Residual residual = layers.residual();
  embed(rows, rows.of(s.scratch.x, s.size.d));
  if (s.neighbourhood.features) layers.neighbourhood(residual);
  clock.lap(INPUT);
  for (int64_t l = 0; l < s.size.layers; l++) layers.run(l, residual, clock);
  float *states = rows.of(output.hidden, s.size.d), *projected = rows.of(s.scratch.projected, s.size.stride);
  layers.settle(residual, states);
  if (s.weights.final_weight) rows.normalise_all(states, s.weights.final_weight, s.weights.final_bias, states);
  if (s.tree.longest) score_tree(rows, states, projected, output);
  else score_columns(rows, states, projected, output);
  clock.lap(SCORES);
}

}  // namespace
