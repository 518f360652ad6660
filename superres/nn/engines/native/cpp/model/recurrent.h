// Proposals of recurrent heads, one after another: the computation of `advance` in superres/nn/recurrent.py.

#pragma once

#include "decode/confidence.h"
#include "model/layer.h"
#include "model/screened_argmax.h"

namespace {

// The recurrent heads of a team's rows, and their scratch.
struct Recurrence {
  const Session& s;
  Team& team;
  int64_t begin, end;
  float *state, *read, *normed, *inner, *query, *attended, *projected, *scores;  // scratch of the team's rows

  // Floats of scratch per row.
  static int64_t room(const Session& s) { return 6 * s.size_d + s.heads.size + s.stride + s.vocabulary; }

  Recurrence(const Session& s, Team& team, int64_t begin, int64_t end, float* scratch)
      : s(s), team(team), begin(begin), end(end) {
    const int64_t rows = end - begin;
    state = scratch;
    read = state + rows * s.size_d;
    normed = read + rows * 2 * s.size_d;
    query = normed + rows * s.size_d;
    attended = query + rows * s.size_d;
    inner = attended + rows * s.size_d;
    projected = inner + rows * s.heads.size;
    scores = projected + rows * s.stride;
  }

  void attend() const {
    team.share(s.attention_heads, [me = *this](int64_t first, int64_t past) { me.attend_heads(first, past); });
  }

  void attend_heads(int64_t first, int64_t past) const {
    const int64_t D = s.size_d, size = D / s.attention_heads, from = 0, last = s.cross_slots - 1;
    const int64_t stride = s.slots > s.cross_slots ? s.slots : s.cross_slots;
    for (int64_t b = begin; b < end; b++)
      for (int64_t h = first; h < past; h++) {
        const int64_t head = b * s.attention_heads + h, row = (b - begin) * D + h * size;
        attend_rows(1, query + row, D, head_of(s.heads.cross, head, s.cross_slots, size), s.cross_slots, size, &from, &last,
                    s.cross_mask + b * s.cross_slots, s.weights + head * s.width * stride, stride, attended + row, D);
      }
  }

  // Computes the state of the next head from the state of the last head and its tokens, tokens[r * apart].
  void advance(const int64_t* tokens, int64_t apart) const {
    const Heads& heads = s.heads;
    const int64_t D = s.size_d, rows = end - begin;
    for (int64_t r = 0; r < rows; r++) {
      normalise(state + r * D, D, nullptr, nullptr, read + 2 * r * D);
      std::memcpy(read + (2 * r + 1) * D, s.token_table + tokens[r * apart] * D, D * sizeof(float));
    }
    apply(heads.expand, team, read, 2 * D, rows, inner, heads.size, RELU);
    apply(heads.contract[0], team, inner, heads.size, rows, state, D, ADD);
    for (int64_t r = 0; r < rows; r++) normalise(state + r * D, D, nullptr, nullptr, normed + r * D);
    apply(heads.cross_query, team, normed, D, rows, query, D, STORE);
    attend();
    apply(heads.cross_output, team, attended, D, rows, state, D, ADD);
    for (int64_t r = 0; r < rows; r++)
      normalise(state + r * D, D, heads.norm_weight, heads.norm_bias, normed + r * D);
  }

  // The token of row r's shortlist with the largest int8 score. Proposals are verified, so the rounding costs no exactness.
  int64_t likeliest(int64_t r) const {
    const Shortlist& list = s.heads.shortlist;
    const int64_t b = begin + r, start = b * list.count;
    const Linear linear{s.size_d, list.count / PANEL, INT8, list.weight + start * s.size_d, list.bias + start,
                        list.scale + start};
    float* own = projected + r * s.stride;
    apply_panels(linear, normed + r * s.size_d, s.size_d, 1, own, s.stride, STORE, 0, linear.panels);
    return list.tokens[start + largest_of(own, list.count)];
  }

  // Writes the choice of head p(h + 2) for each row to tokens[r * apart], and shows it to `size` if not null; see `propose`.
  template <typename Choose>
  void choose(int64_t h, const Choose& choose, int64_t* tokens, int64_t apart, BlockSize* size) const {
    const int64_t rows = end - begin;
    if (s.heads.shortlist.count && choose.screens && choose.gumbel_at(begin, h).temperature == 0) {
      team.share(rows, [=, me = *this](int64_t first, int64_t past) {
        for (int64_t r = first; r < past; r++) tokens[r * apart] = me.likeliest(r);
      });
      for (int64_t r = 0; size && r < rows; r++)
        size->judge(begin + r, h, projected + r * s.stride, s.heads.shortlist.count, tokens[r * apart]);
      return;
    }
    if (s.int8_filter.product.weight && choose.screens && !size) {
      const auto gumbel_at = [=, &choose, first = begin](int64_t r) { return choose.gumbel_at(first + r, h); };
      screened_argmax(s, team, normed, rows, projected, tokens, apart, gumbel_at);
      return;
    }
    project(s, team, normed, rows, projected);
    for (int64_t r = 0; r < rows; r++) {
      std::memcpy(scores, projected + r * s.stride, s.vocabulary * sizeof(float));
      choose.limit(begin + r, h, tokens + r * apart - h, scores);
      tokens[r * apart] = choose(begin + r, h, scores);
      if (size) size->judge(begin + r, h, scores, s.vocabulary, tokens[r * apart]);
    }
  }
};

}  // namespace
