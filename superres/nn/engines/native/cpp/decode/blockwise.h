// Decoding iterations: verify, accept, commit and propose.

#pragma once

#include <algorithm>
#include <cstdlib>

#include "decode/lookahead.h"

namespace {

// The pending block of row b, judged by p1's scores of the columns before each token.
struct Pending {
  const Session& s;
  const Loop& l;
  const int64_t b, start;  // start: the position of the block's first token
  int64_t column = -1, token = 0;  // the latest choice

  int32_t* q(int64_t at) const { return l.sampling->q + (b * l.room + at) * s.vocabulary; }
  int64_t& q_total(int64_t at) const { return l.sampling->q_total[b * l.room + at]; }

  Choice choice(int64_t at) const { return Choice(s, *l.sampling, b, start + at + 1, scores_at(s, l, b, at)); }

  // p1's choice at a column.
  int64_t chosen(int64_t at) {
    if (at == column) return token;
    column = at;
    token = l.sampling && !uses_int8(s, l) ? choice(at).token() : best_at(s, l, b, at);
    return token;
  }

  // Whether the proposal at a column is accepted, judged by the scores at the column before it.
  bool passes(int64_t at) {
    const int64_t proposal = l.tokens[b * s.width + at];
    if (is_speculative(l)) return choice(at - 1).accepts(proposal, q(at - 1), q_total(at - 1));
    if (!l.best) {
      const int64_t difference = std::llabs(proposal - chosen(at - 1));
      if (!difference || difference > l.bound || uses_int8(s, l)) return difference <= l.bound;
      return l.sampling ? choice(at - 1).is_possible(proposal) : is_scored(at);
    }
    if (l.sampling) return choice(at - 1).is_among_best(proposal, l.bound);
    return is_among_best(s, scores_at(s, l, b, at - 1), proposal, l.bound) && is_scored(at);
  }

  // Whether p1's score of the proposal at a column is above -inf, so that a minimum block may contain it.
  bool is_scored(int64_t at) const {
    return !is_limited(l) || scores_at(s, l, b, at - 1)[l.tokens[b * s.width + at]] > -INFINITY;
  }

  // The token after the accepted ones, scored at a column. In speculative sampling, forgets all distributions.
  int64_t next(int64_t at) {
    if (!is_speculative(l)) return chosen(at);
    const int64_t drawn = choice(at).commit(q(at), start < 0 ? 0 : q_total(at));
    std::memset(&q_total(0), 0, l.room * sizeof(int64_t));
    return drawn;
  }
};

// The block size of row b's pending proposals.
ALWAYS_INLINE int64_t block_size(const Loop& l, int64_t b) { return l.widths.costs ? l.widths.sizes[b] : l.block_size; }

// Writes the trace of one iteration of row b: position, accepted tokens, proposals. With `widths`, -1 follows the block.
ALWAYS_INLINE void note(const Loop& l, int64_t b, int64_t accepted, int64_t* record) {
  record[0] = l.position[b];
  record[1] = accepted;
  std::memcpy(record + 2, l.proposals + b * l.room, l.room * sizeof(int64_t));
  if (l.widths.costs) std::fill(record + 2 + l.widths.sizes[b], record + 2 + l.room, -1);
}

// Accepts and commits the longest passing prefix of row b's proposals and chooses p1's next token. Further
// proposals are made later, by `propose_next`.
void advance(const Session& s, const Loop& l, int64_t b, int64_t* record) {
  const int64_t start = l.position[b], room = start < 0 ? 1 : l.limit[b] - start;
  const int64_t* tokens = l.tokens + b * s.width;
  Pending block{s, l, b, start};
  const int64_t size = block_size(l, b), minimum = std::min(l.minimum, size);
  int64_t accepted = 1, required = 1;
  while (accepted < size && accepted < room && block.passes(accepted)) accepted++;
  while (required < minimum && block.is_scored(required)) required++;
  if (accepted < required) accepted = required;
  if (accepted > room) accepted = room;
  accepted = up_to_end(l, b, tokens, accepted);
  std::memcpy(l.store + b * l.stride + l.place[b], tokens, s.width * sizeof(int64_t));
  note(l, b, accepted, record);
  l.position[b] = start + accepted;
  l.index[b] = accepted > 0 ? accepted - 1 : 0;
  l.first[b] = block.next(l.index[b]);
  for (int64_t i = 0; i < s.width; i++) l.proposals[b * l.room + i] = l.first[b];
}

// The session and the loop for a step of `width` tokens of rows [begin, end): see `narrow` in model/step.h.
void narrow(Session& s, Loop& l, int64_t begin, int64_t end, int64_t width) {
  const int64_t skipped = begin * (s.width - width);
  narrow(s, begin, end, width);
  l.hidden += skipped * s.size_d;
  l.scores += skipped * s.vocabulary;
  l.tokens += skipped;
  l.best_tokens += skipped;
}

// One iteration of a team's rows, at most `more` proposals per row included.
void iteration(const Session& s, const Loop& l, Team& team, int64_t begin, int64_t end, int64_t more, int64_t* record) {
  read_proposals(s, l, begin, end);
  step(s, team, begin, end, l.tokens, l.place, l.hidden, l.scores, uses_int8(s, l) ? l.best_tokens : nullptr, l.sampling);
  if (is_limited(l))
    for (int64_t b = begin; b < end; b++) limit_step(s, l, b);
  for (int64_t b = begin; b < end; b++) advance(s, l, b, record + b * (2 + l.room));
  if (!more) return;
  BlockSize size(s, l, begin, end);
  const int64_t made = propose_next(s, l, team, begin, end, more, l.next, l.widths.costs ? &size : nullptr);
  for (int64_t b = begin; b < end; b++)
    std::memcpy(l.proposals + b * l.room + 1, l.next + b * more, made * sizeof(int64_t));
  if (l.widths.costs) size.settle();
}

// Iterations of a team's rows, which stop once all of these rows are complete: see `superres_iterate`.
void iterate(const Session& s, const Loop& l, Team& team, int64_t begin, int64_t end, int64_t count, int64_t following,
             int64_t* record) {
  for (int64_t n = 0; n < count; n++, record += s.batch * (2 + l.room)) {
    bool complete = true;
    for (int64_t b = begin; b < end; b++) complete = complete && l.position[b] >= l.limit[b];
    if (complete) {  // rows of other teams may not be complete yet
      for (int64_t b = begin; b < end; b++) note(l, b, 0, record + b * (2 + l.room));
    } else if (l.lookahead.size) {
      lookahead_iteration(s, l, team, begin, end, record);
    } else if (l.widths.costs) {
      Session own = s;
      Loop loop = l;
      narrow(own, loop, begin, end, *std::max_element(l.widths.sizes + begin, l.widths.sizes + end));
      iteration(own, loop, team, begin, end, l.widths.count - 1, record);
    } else {
      iteration(s, l, team, begin, end, (n + 1 < count ? l.block_size : following) - 1, record);
    }
  }
}

}  // namespace
