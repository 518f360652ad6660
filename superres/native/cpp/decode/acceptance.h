// Which pending tokens pass verification: superres/decoding/acceptance.py.

#pragma once

#include <cstdlib>

#include "decode/limits.h"
#include "decode/sampling.h"

namespace {

// Whether fewer than `bound` tokens have a larger score than the proposal.
ALWAYS_INLINE bool is_among_best(const float* scores, int64_t vocabulary, int64_t proposal, int64_t bound) {
  int64_t better = 0;
  for (int64_t v = 0; v < vocabulary; v++) better += scores[v] > scores[proposal];
  return better < bound;
}

// p1's latest choice for a row, and its column; -1 before the first choice. `survival` is that of `SpeculativeSampler` after the
// accepted tokens.
struct Chosen {
  int64_t column, token;
  double survival = 1;
};

// Judges the pending tokens of rows from `begin` on by p1's scores of the column before each.
struct Verifier {
  const Session& s;
  const LoopState& l;
  int64_t begin;
  Chosen* latest;  // of each row

  int32_t* q(int64_t b, int64_t at) const { return l.sampling->q + (b * l.capacity + at) * s.size.vocabulary; }
  int64_t& q_total(int64_t b, int64_t at) const { return l.sampling->q_total[b * l.capacity + at]; }

  Choice choice(int64_t b, int64_t at) const {
    return Choice(s.size.vocabulary, *l.sampling, b, l.place[b] + at, scores_at(s, l, b, at));
  }

  // p1's choice at a column.
  int64_t chosen(int64_t b, int64_t at) const {
    Chosen& known = latest[b - begin];
    if (known.column != at) known = {at, l.sampling && !uses_int8(s, l) ? choice(b, at).token() : best_at(s, l, b, at)};
    return known.token;
  }

  // Whether the token at a column is accepted.
  bool accepts(int64_t b, int64_t at) const {
    const int64_t proposal = l.tokens[b * s.size.width + at];
    if (l.rule == DISTANCE) {
      const int64_t difference = std::llabs(proposal - chosen(b, at - 1));
      if (!difference || difference > l.bound || uses_int8(s, l)) return difference <= l.bound;
      return is_possible(b, at);
    }
    if (l.sampling) return choice(b, at - 1).is_among_best(proposal, l.bound);
    return is_among_best(scores_at(s, l, b, at - 1), s.size.vocabulary, proposal, l.bound) && is_possible(b, at);
  }

  // How many of row b's tokens are accepted by block verification, which does not look beyond its first `most` tokens.
  int64_t accepted_block(int64_t b, int64_t most) const {
    const Stream stream(l.sampling->seed, l.sampling->keys[b]);
    const int64_t k = block_size(l, b), last = std::min(k, most) - 1;
    int64_t accepted = 1;
    double survival = 1, &kept = latest[b - begin].survival;
    kept = 1;
    const auto end_after = [&](int64_t count, double rest) {  // `count` proposals
      if (uniform(stream, l.place[b] + count - 1, count, VERDICT) * (rest + (1 - survival)) < rest)
        accepted = count + 1, kept = count < k - 1 ? survival : 1;
    };
    for (int64_t at = 0; at < last; at++) {
      Choice next = choice(b, at);
      if (at) end_after(at, next.rest(q(b, at), q_total(b, at), survival));
      survival = std::min(survival * next.ratio(l.tokens[b * s.size.width + at + 1], q(b, at), q_total(b, at)), 1.0);
    }
    if (last > 0) end_after(last, survival);  // no proposal follows: q is 0
    return accepted;
  }

  // Whether p1 gives the token at a column a positive probability, so that a minimum block may contain it.
  bool is_possible(int64_t b, int64_t at) const {
    const int64_t proposal = l.tokens[b * s.size.width + at];
    if (uses_int8(s, l)) return true;  // there are neither limits nor filters
    if (l.sampling) return choice(b, at - 1).is_possible(proposal);
    return scores_at(s, l, b, at - 1)[proposal] > -INFINITY;
  }

  // The token after the accepted ones, scored at a column. In speculative sampling, forgets all distributions.
  int64_t first(int64_t b, int64_t at) const {
    if (!is_speculative(l)) return chosen(b, at);
    const int64_t drawn = choice(b, at).commit(q(b, at), l.place[b] ? q_total(b, at) : 0, latest[b - begin].survival);
    std::memset(&q_total(b, 0), 0, l.capacity * sizeof(int64_t));
    return drawn;
  }
};

}  // namespace
