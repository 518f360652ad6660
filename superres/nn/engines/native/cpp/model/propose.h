// Proposals of the prediction heads.

#pragma once

#include "model/recurrent.h"

namespace {

// argmax(scores / temperature + noise), with arguments of `superres_propose`.
struct NoisyChoice {
  const Session& s;
  int64_t count;
  const float *temperature, *noise;
  const bool screens = !noise;

  void limit(int64_t, int64_t, const int64_t*, float*) const {}

  GumbelAt gumbel_at(int64_t, int64_t) const { return GumbelAt(nullptr, 0, 0); }

  int64_t operator()(int64_t b, int64_t h, float* scores) const {
    const int64_t r = b * count + h;
    if (noise)
      for (int64_t v = 0; v < s.vocabulary; v++) scores[v] = scores[v] / temperature[r] + noise[r * s.vocabulary + v];
    return largest_of(scores, s.vocabulary);
  }
};

// Proposals of recurrent heads: arguments and result as for `propose`.
template <typename Choose>
int64_t recur(const Session& s, Team& team, int64_t begin, int64_t end, const int64_t* index, const int64_t* first,
           int64_t count, const float* hidden, const Choose& choose, float* scratch, int64_t* tokens, BlockSize* size) {
  const Recurrence heads{s, team, begin, end, scratch + begin * Recurrence::room(s)};
  for (int64_t b = begin; b < end; b++)
    std::memcpy(heads.state + (b - begin) * s.size_d, hidden + (b * s.width + index[b]) * s.size_d, s.size_d * sizeof(float));
  if (size && !size->more(1)) return 0;
  for (int64_t h = 0; h < count; h++) {
    int64_t* own_tokens = tokens + begin * count + h;
    if (h) heads.advance(own_tokens - 1, count);
    else heads.advance(first + begin, 1);
    heads.choose(h, choose, own_tokens, count, size);
    if (size && !size->more(h + 2)) return h + 1;
  }
  return count;
}

// Floats of scratch per row that `propose` needs.
int64_t propose_room(const Session& s, int64_t count) {
  const Heads& heads = s.heads;
  if (heads.recurrent) return Recurrence::room(s);
  const int64_t adapted = heads.adapt.panels * PANEL;
  return s.size_d + heads.count * heads.size + count * (s.size_d + adapted + s.stride) + s.vocabulary;
}

// Proposals for a team's rows: see `superres_propose`. choose(b, h, scores) returns the token of row b and head p(h + 2),
// after choose.limit(b, h, tokens of the heads before, scores); `choose.screens` says whether it is an argmax, with noise from choose.gumbel_at(b, h) or without. Returns how many each row
// has: `count`, or fewer if `size` is not null and no more pay.
template <typename Choose>
int64_t propose(const Session& s, Team& team, int64_t begin, int64_t end, const int64_t* position, const int64_t* index,
                const int64_t* first, int64_t count, const float* hidden, const Choose& choose, float* scratch,
                int64_t* tokens, BlockSize* size = nullptr) {
  const Heads& heads = s.heads;
  if (heads.recurrent) {
    return recur(s, team, begin, end, index, first, count, hidden, choose, scratch, tokens, size);
  }
  const int64_t D = s.size_d, wide = heads.count * heads.size, adapted = heads.adapt.panels * PANEL;
  const int64_t room = propose_room(s, count);
  const int64_t rows = end - begin;
  float *here = scratch + begin * room, *inner = here + rows * D, *states = inner + rows * wide;
  float *linear = states + rows * count * D, *projected = linear + rows * count * adapted, *scores = projected + rows * count * s.stride;
  for (int64_t b = begin; b < end; b++)
    std::memcpy(here + (b - begin) * D, hidden + (b * s.width + index[b]) * D, D * sizeof(float));
  if (size && !size->more(1)) return 0;
  if (heads.dense) {
    team.share(wide / PANEL, [=, &s](int64_t least, int64_t past) {
      apply_panels(s.heads.expand, here, s.size_d, rows, inner, wide, RELU, least, past);
    });
  }
  const int64_t together = size ? team.size : count;  // heads
  for (int64_t from = 0; from < count; from += together) {
    const int64_t to = from + together < count ? from + together : count;
    team.share(to - from, [=, &s](int64_t least, int64_t past) {
      const Heads& heads = s.heads;
      const int64_t D = s.size_d, panels = heads.size / PANEL, own_units = heads.dense ? 0 : heads.size;
      Team alone;
      if (!heads.dense)
        apply_panels(heads.expand, here, D, rows, inner, wide, RELU, (from + least) * panels, (from + past) * panels);
      for (int64_t h = from + least; h < from + past; h++) {
        for (int64_t r = 0; r < rows; r++) std::memcpy(states + (r * count + h) * D, heads.bias + h * D, D * sizeof(float));
        apply(heads.contract[h], alone, inner + h * own_units, wide, rows, states + h * D, count * D, ADD);
        for (int64_t b = begin; b < end; b++) {
          float* state = states + ((b - begin) * count + h) * D;
          const float* vectors = heads.conditioning;
          const int64_t target = within(s, position[b] + index[b] + h + 1);
          if (vectors) vectors += ((s.conditioned ? b * s.length : 0) + target) * D;
          for (int64_t i = 0; i < D; i += LANES) {
            const vec v = load(state + i) + load(here + (b - begin) * D + i);
            store(state + i, vectors ? v + load(vectors + i) : v);
          }
          normalise(state, D, heads.norm_weight, heads.norm_bias, state);
        }
      }
    });
    if (s.int8_filter.product.weight && choose.screens) {
      const auto gumbel_at = [=, &choose](int64_t r) { return choose.gumbel_at(begin + r / count, r % count); };
      screened_argmax(s, team, states, rows * count, projected, tokens + begin * count, 1, gumbel_at);
      return count;
    }
    // The states of all heads are consecutive; those of some heads are consecutive within a row only.
    const int64_t parts = to - from == count ? 1 : rows, states_each = rows * (to - from) / parts;
    Team alone;
    for (int64_t part = 0; part < parts; part++) {
      const int64_t r = part * count + from;
      project(s, team, states + r * D, states_each, projected + r * s.stride);
      if (heads.earlier) apply(heads.adapt, alone, states + r * D, D, states_each, linear + r * adapted, adapted, STORE);
    }
    for (int64_t h = from; h < to; h++) {
      for (int64_t b = begin; b < end; b++) {
        const Row row{s, b, within(s, position[b] + index[b]), s.gathered + (b * s.width + index[b]) * s.features};
        const int64_t r = (b - begin) * count + h;
        const float* own = projected + r * s.stride;
        const float centre = row.score(h, own, linear + r * adapted, first[b], tokens + b * count, scores);
        choose.limit(b, h, tokens + b * count, scores);
        tokens[b * count + h] = choose(b, h, scores);
        if (size) size->judge(b, h, centre, sharpness_of(s, own), tokens[b * count + h]);
      }
      if (size && !size->more(h + 2)) return h + 1;
    }
  }
  return count;
}

}  // namespace
