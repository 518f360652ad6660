// A decoding step of the rows of one team.

#pragma once

#include <new>

#include "model/layer.h"
#include "model/screened_argmax.h"

namespace {

// The session for a step of `width` tokens of rows [begin, end), or for that many columns of one row, from column `first`. Its
// scratch is within that of full steps of the same rows, because other teams use the scratch before and after it.
Session narrowed(Session s, int64_t begin, int64_t end, int64_t width, int64_t first = 0) {
  Scratch& scratch = s.scratch;
  const int64_t full = begin * s.size.width + first, skipped = begin * width, D = s.size.d;
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
  return s;
}

// The results of a step: see `superres_step`. If `best_tokens` [B, W] is not null, the step writes the argmax of each column
// there, with Gumbel noise if `sampling` is not null, and no scores. Over a tree, only the scored columns have results.
struct StepOutput {
  float *hidden, *scores;
  int64_t* best_tokens = nullptr;
  const Sampling* sampling = nullptr;

  StepOutput from(int64_t column, const Sizes& size) const {
    return {hidden + column * size.d, past(scores, column * size.vocabulary), past(best_tokens, column), sampling};
  }
};

// Writes the scores, or the best tokens, of all columns from their states [rows, W, D].
void score_columns(const Rows& rows, const float* states, float* projected, const StepOutput& output) {
  const Session& s = rows.s;
  const int64_t W = s.size.width, begin = rows.begin;
  if (output.best_tokens) {
    const auto gumbel_at = [=, &rows, sampling = output.sampling](int64_t r) {
      const int64_t b = begin + r / W;
      return GumbelAt(sampling, b, rows.place(b, r % W));
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

// A step of a team's rows, or of some columns of a row, as jobs 0..layers. The deviations of all columns have been written.
// Before a job, all columns must have done the job before.
struct StepJobs {
  const Layers layers;
  const StepOutput output;
  Residual residual = layers.residual();
  Clock clock{layers.begin || layers.first ? nullptr : layers.s.report.seconds};

  StepJobs(const Rows& rows, bool whole, const StepOutput& output) : layers(rows, whole), output(output) {}

  void run(int64_t number) {
    if (number) layers.end_layer(number - 1, residual, clock);
    else read();
    if (number < layers.s.size.layers) layers.begin_layer(number, residual);
    else score();
  }

 private:
  void read() {
    const Session& s = layers.s;
    embed(layers, layers.of(s.scratch.x, s.size.d));
    if (s.neighbourhood.features) layers.neighbourhood(residual);
    clock.lap(INPUT);
  }

  void score() {
    const Session& s = layers.s;
    float *states = layers.of(output.hidden, s.size.d), *projected = layers.of(s.scratch.projected, s.size.stride);
    layers.settle(residual, states);
    if (s.weights.final_weight) layers.normalise_all(states, s.weights.final_weight, s.weights.final_bias, states);
    if (s.tree.longest) score_tree(layers, states, projected, output);
    else score_columns(layers, states, projected, output);
    clock.lap(SCORES);
  }
};

// A step of columns [first, past) of row b: one thread does each of its jobs, not always the same one.
struct alignas(64) Columns {
  Session s;
  Team alone;
  StepJobs jobs;

  Columns(const Session& all, int64_t b, int64_t first, int64_t past, const int64_t* tokens, const int64_t* position,
          const StepOutput& output)
      : Columns(all, b, first, past - first, b * (all.size.width - (past - first)) + first, tokens, position, output) {}

 private:
  // In memory of a step of `width` tokens per row, row b starts `skipped` columns earlier than these columns are.
  Columns(const Session& all, int64_t b, int64_t first, int64_t width, int64_t skipped, const int64_t* tokens,
          const int64_t* position, const StepOutput& whole)
      : s(narrowed(all, b, b + 1, width, first)), jobs({s, alone, b, b + 1, first, tokens + skipped, position}, false,
                                                       whole.from(skipped, all.size)) {}
};

// In how many parts the threads of a team share the columns of each of `rows` rows; 0 if they do not. They share no narrow step,
// since a thread reads the weights for few columns in the time of one; and no tree, whose columns take turns in the cache.
int64_t column_parts(const Session& s, const Team& team, int64_t rows) {
  const int64_t width = s.size.width, least = s.threads.least_columns;
  if (team.size == 1 || s.tree.longest || width < least) return 0;
  const int64_t parts = std::max((int64_t)1, std::min(team.size / rows, width / least));
  return rows * parts > 1 ? parts : 0;
}

// A step whose columns the threads share, in `parts` parts per row.
void share_columns(const Rows& rows, int64_t parts, const StepOutput& output) {
  const int64_t count = (rows.end - rows.begin) * parts;
  Columns* columns = scratch<COLUMNS, Columns>(count);
  rows.team.share(count, [=, all = &rows, output = &output](int64_t begin, int64_t end) {
    const int64_t W = all->s.size.width;
    for (int64_t i = begin; i < end; i++) {
      const int64_t b = all->begin + i / parts, first = W * (i % parts) / parts, past = W * (i % parts + 1) / parts;
      (new (columns + i) Columns(all->s, b, first, past, all->tokens, all->position, *output))->jobs.run(0);
    }
  });
  for (int64_t number = 1; number <= rows.s.size.layers; number++)
    rows.team.share(count, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) columns[i].jobs.run(number);
    });
}

// A step of a team's rows: see `superres_step`. If it is wide, the threads share its columns, and wait for one another once per
// layer. Otherwise they share the groups of each sub-layer.
void step(Session& s, Team& team, int64_t begin, int64_t end, const int64_t* tokens, const int64_t* position,
          const StepOutput& output) {
  const Rows rows{s, team, begin, end, 0, tokens, position};
  if (s.neighbourhood.features) write_deviations(rows);
  if (const int64_t parts = column_parts(s, team, end - begin)) {
    share_columns(rows, parts, output);
  } else {
    StepJobs jobs(rows, true, output);
    for (int64_t number = 0; number <= s.size.layers; number++) jobs.run(number);
  }
}

}  // namespace
