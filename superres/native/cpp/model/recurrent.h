// Proposals of recurrent heads, one after another: the computation of `advance` in superres/nn/heads.py.

#pragma once

#include "model/layer.h"
#include "model/screened_argmax.h"

namespace {

// The recurrent heads of a team's rows, and their memory.
struct Recurrence {
  Session& s;
  Team& team;
  int64_t begin, end;
  float *state, *read, *normed, *inner, *query, *attended, *projected, *scores;  // of the team's rows

  // Floats of memory per row.
  static int64_t memory_size(const Session& s) { return 6 * s.size.d + s.heads.size + s.size.stride + s.size.vocabulary; }

  Recurrence(Session& s, Team& team, int64_t begin, int64_t end, float* memory) : s(s), team(team), begin(begin), end(end) {
    const int64_t rows = end - begin, D = s.size.d;
    state = memory;
    read = state + rows * D;
    normed = read + rows * 2 * D;
    query = normed + rows * D;
    attended = query + rows * D;
    inner = attended + rows * D;
    projected = inner + rows * s.heads.size;
    scores = projected + rows * s.size.stride;
  }

  // Computes the state of the next head from the state of the last head and its tokens, tokens[r * apart].
  void advance(const int64_t* tokens, int64_t apart) const {
    const Heads& heads = s.heads;
    const int64_t D = s.size.d, rows = end - begin;
    for (int64_t r = 0; r < rows; r++) {
      normalise(state + r * D, D, heads.state_weight, heads.state_bias, read + 2 * r * D);
      std::memcpy(read + (2 * r + 1) * D, s.weights.token_table + tokens[r * apart] * D, D * sizeof(float));
    }
    apply(heads.expand, team, read, 2 * D, rows, inner, heads.size, RELU);
    apply(heads.contract[0], team, inner, heads.size, rows, state, D, ADD);
    for (int64_t r = 0; r < rows; r++) normalise(state + r * D, D, heads.attention_weight, heads.attention_bias, normed + r * D);
    apply(heads.cross_query, team, normed, D, rows, query, D, STORE);
    team.share(s.size.attention_heads, [me = *this](int64_t first, int64_t past) { me.attend_heads(first, past); });
    apply(heads.cross_output, team, attended, D, rows, state, D, ADD);
    for (int64_t r = 0; r < rows; r++) normalise(state + r * D, D, heads.norm_weight, heads.norm_bias, normed + r * D);
  }

  // Writes the choice of head p(h + 2) for each row to tokens[r * apart]; see `propose`.
  template <typename Choose>
  void choose(int64_t h, const Choose& choose, int64_t* tokens, int64_t apart) const {
    const int64_t rows = end - begin, listed = s.heads.shortlist.count, V = s.size.vocabulary;
    if (listed && choose.screens && choose.gumbel_at(begin, h).temperature == 0) {
      team.share(rows, [=, me = *this](int64_t first, int64_t past) {
        for (int64_t r = first; r < past; r++) tokens[r * apart] = me.likeliest(r);
      });
      for (int64_t r = 0; choose.judges && r < rows; r++)
        choose.judge(begin + r, h, projected + r * s.size.stride, listed, tokens[r * apart]);
      return;
    }
    if (s.weights.int8_filter.product.weight && choose.screens && !choose.judges) {
      const auto gumbel_at = [=, &choose, first = begin](int64_t r) { return choose.gumbel_at(first + r, h); };
      screened_argmax(s, team, normed, rows, projected, tokens, apart, gumbel_at);
      return;
    }
    project(s, team, normed, rows, projected);
    for (int64_t r = 0; r < rows; r++) {
      std::memcpy(scores, projected + r * s.size.stride, V * sizeof(float));
      choose.limit(begin + r, h, tokens + r * apart - h, scores);
      tokens[r * apart] = choose(begin + r, h, scores);
      if (choose.judges) choose.judge(begin + r, h, scores, V, tokens[r * apart]);
    }
  }

 private:
  void attend_heads(int64_t first, int64_t past) const {
    const int64_t D = s.size.d, slots = s.size.cross_slots, size = D / s.size.attention_heads, from = 0;
    const int64_t stride = std::max(s.size.slots, slots);
    for (int64_t b = begin; b < end; b++) {
      const int64_t last = source_length(s, b) - 1;
      for (int64_t h = first; h < past; h++) {
        const int64_t head = b * s.size.attention_heads + h, row = (b - begin) * D + h * size;
        attend_rows(1, query + row, D, head_of(s.heads.cross, head, slots, size), slots, size, &from, &last,
                    nullptr, s.scratch.weights + head * s.size.width * stride, stride, attended + row, D);
      }
    }
  }

  // The token of row r's shortlist with the largest int8 score. Proposals are verified, so the rounding costs no exactness.
  int64_t likeliest(int64_t r) const {
    const Shortlist& list = s.heads.shortlist;
    const int64_t D = s.size.d, start = (begin + r) * list.count;
    const Linear linear{D, list.count / PANEL, INT8, list.weight + start * D, list.bias + start, list.scale + start};
    float* own = projected + r * s.size.stride;
    apply_panels(linear, normed + r * D, D, 1, own, s.size.stride, STORE, 0, linear.panels);
    return list.tokens[start + largest_of(own, list.count)];
  }
};

}  // namespace
