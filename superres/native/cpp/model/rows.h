// The rows of one team, or columns of them, and their input.

#pragma once

#include "model/linear.h"

namespace {

// Batch rows [begin, end) of a session, each with W columns, which start at column `first` of the whole step.
struct Rows {
  Session& s;
  Team& team;
  int64_t begin, end, first;
  const int64_t *tokens, *position;  // [B, W], [B]

  int64_t count() const { return (end - begin) * s.size.width; }
  float* of(float* memory, int64_t stride) const { return memory + begin * s.size.width * stride; }
  int64_t place(int64_t b, int64_t w) const { return position[b] + first + (s.tree.longest ? s.tree.depth[w] : w); }
  int64_t inside(int64_t b, int64_t w) const { return place(b, w) < s.size.length ? place(b, w) : s.size.length - 1; }

  void normalise_all(const float* x, const float* weight, const float* bias, float* out) const {
    const int64_t D = s.size.d;
    for (int64_t r = 0; r < count(); r++) normalise(x + r * D, D, weight, bias, out + r * D);
  }
};

// The number of positions of row b's source: those of padding, which attention does not see, are the last.
int64_t source_length(const Session& s, int64_t b) {
  const float* mask = s.input.cross_mask + b * s.size.cross_slots;
  int64_t length = s.size.cross_slots;
  while (length > 1 && mask[length - 1] == -INFINITY) length--;
  return length;
}

// Writes the deviation from its estimate of a token of row b; tokens outside the target have none.
void write_deviation(const Session& s, int64_t b, int64_t position, float deviation) {
  if (position >= 0 && position < s.size.length) s.neighbourhood.deviation[b * (s.size.length + 2) + position] = deviation;
}

// Writes the deviations of the tokens read from their estimates.
void write_deviations(const Rows& rows) {
  const Session& s = rows.s;
  const int64_t T = s.size.length;
  for (int64_t b = rows.begin; b < rows.end; b++)
    for (int64_t w = 0; w < s.size.width; w++) {
      const int64_t before = rows.place(b, w) - 1, r = b * s.size.width + w;
      if (before < 0 || before >= T) continue;
      const float deviation = (rows.tokens[r] - s.ordinal.estimate[b * T + before]) / s.ordinal.residual_scale;
      if (s.tree.longest) s.neighbourhood.column_deviation[r] = deviation;
      else write_deviation(s, b, before, deviation);
    }
}

// Writes the decoder's input to x.
void embed(const Rows& rows, float* x) {
  const Session& s = rows.s;
  const int64_t D = s.size.d, T = s.size.length, start = s.size.vocabulary * s.size.channels;
  for (int64_t b = rows.begin; b < rows.end; b++)
    for (int64_t w = 0; w < s.size.width; w++, x += D) {
      const int64_t before = rows.place(b, w) - 1, token = rows.tokens[b * s.size.width + w];
      const int64_t entry = before < 0 ? start : token + before % s.size.channels * s.size.vocabulary;
      const float* embedding = s.weights.token_table + entry * D;
      const float* table = s.input.position_table + ((s.input.conditioned ? b * T : 0) + rows.inside(b, w)) * D;
      for (int64_t i = 0; i < D; i += LANES) store(x + i, load(embedding + i) + load(table + i));
    }
}

// Writes the neighbour features of a target: deviations of its neighbours, then one entry per possible number of pixels left
// in its cell. The entry of the actual number holds their mean residual; the others are 0.
void gather(const Neighbourhood& near, const float* deviation, const float* residual_sum, int64_t place, float* features) {
  for (int64_t i = 0; i < near.near; i++) features[i] = deviation[near.near_table[place * near.near + i]];
  if (!near.cell_size) return;
  float spent = 0;
  int64_t left = near.cell_size;
  for (int64_t i = 0; i < near.cell_size; i++) {
    const int64_t pixel = near.cell_positions[place * near.cell_size + i];
    if (pixel < place) spent += deviation[pixel], left--;
    features[near.near + i] = 0;
  }
  features[near.near + left - 1] = (residual_sum[near.cell[place]] - spent) / left;
}

// Writes the neighbour features [rows, N] of all columns. Over a tree, the deviations of the tokens on a column's path are
// written in turn, at their positions: a target's features read earlier positions only, all of which lie on the path or are
// committed. `keep_columns` writes those of the path that remains.
void gather_all(const Rows& rows, float* features) {
  const Session& s = rows.s;
  const Neighbourhood& near = s.neighbourhood;
  for (int64_t b = rows.begin; b < rows.end; b++)
    for (int64_t w = 0; w < s.size.width; w++, features += near.features) {
      const int64_t* path = s.tree.ancestors + w * s.tree.longest;
      for (int64_t i = 0; i < s.tree.longest && path[i] >= 0; i++)
        write_deviation(s, b, rows.place(b, path[i]) - 1, near.column_deviation[b * s.size.width + path[i]]);
      gather(near, near.deviation + b * (s.size.length + 2), near.residual_sum + b * near.source_length, rows.inside(b, w),
             features);
    }
}

}  // namespace
