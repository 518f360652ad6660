// Iterations of greedy decoding: verify, accept, commit and propose.

#pragma once

#include <algorithm>
#include <cstdlib>

#include "propose.h"
#include "step.h"

namespace {

// Whether an iteration needs only the argmax of each column, not the scores.
ALWAYS_INLINE bool uses_int8(const Session& s, const Loop& l) { return s.int8_filter.weight && !l.best; }

// The greedy token of row b at a column.
ALWAYS_INLINE int64_t chosen(const Session& s, const Loop& l, int64_t b, int64_t column) {
  const int64_t r = b * s.width + column;
  return uses_int8(s, l) ? l.best_tokens[r] : largest_of(l.scores + r * s.vocabulary, s.vocabulary);
}

// Whether the proposal at a column is accepted, judged by the scores at the column before it.
ALWAYS_INLINE bool passes(const Session& s, const Loop& l, int64_t b, int64_t column) {
  const int64_t token = l.tokens[b * s.width + column];
  if (!l.best) return std::llabs(token - chosen(s, l, b, column - 1)) <= l.bound;
  const float* scores = l.scores + (b * s.width + column - 1) * s.vocabulary;
  int64_t better = 0;
  for (int64_t v = 0; v < s.vocabulary; v++) better += scores[v] > scores[token];
  return better < l.bound;
}

// The block size of row b's pending proposals.
ALWAYS_INLINE int64_t block_size(const Loop& l, int64_t b) { return l.widths.costs ? l.widths.sizes[b] : l.block_size; }

// Writes the trace of one iteration of row b: position, accepted tokens, proposals. With `widths`, -1 follows the block.
ALWAYS_INLINE void note(const Loop& l, int64_t b, int64_t accepted, int64_t* record) {
  record[0] = l.position[b];
  record[1] = accepted;
  std::memcpy(record + 2, l.proposals + b * l.room, l.room * sizeof(int64_t));
  if (l.widths.costs) std::fill(record + 2 + l.widths.sizes[b], record + 2 + l.room, -1);
}

// Accepts and commits the longest passing prefix of row b's proposals and chooses p1's next token. The proposals of the
// other heads are computed later, by `propose`.
void advance(const Session& s, const Loop& l, int64_t b, int64_t* record) {
  const int64_t start = l.position[b], room = start < 0 ? 1 : l.limit[b] - start;
  const int64_t* tokens = l.tokens + b * s.width;
  int64_t accepted = 1;
  while (accepted < block_size(l, b) && accepted < room && passes(s, l, b, accepted)) accepted++;
  if (accepted < l.minimum) accepted = l.minimum;
  if (accepted > room) accepted = room;
  for (int64_t i = 0; i < accepted; i++)
    if (tokens[i] == l.end_token) {
      accepted = i + 1;
      l.limit[b] = start + accepted;
    }
  std::memcpy(l.store + b * l.stride + l.place[b], tokens, s.width * sizeof(int64_t));
  note(l, b, accepted, record);
  l.position[b] = start + accepted;
  l.index[b] = accepted > 0 ? accepted - 1 : 0;
  l.first[b] = chosen(s, l, b, l.index[b]);
  for (int64_t i = 0; i < s.width; i++) l.proposals[b * l.room + i] = l.first[b];
}

// The session and the loop for a step of `width` tokens of the rows from `begin` on. Their scratch starts where that of
// full steps does, because other teams use the scratch before and after it.
void narrow(Session& s, Loop& l, int64_t begin, int64_t width) {
  const int64_t unused = begin * (s.width - width), slots = s.slots > s.cross_slots ? s.slots : s.cross_slots;
  s.width = width;
  s.x += unused * s.size_d;
  s.wide += unused * s.filter;
  s.attended += unused * s.size_d;
  s.weights += unused * s.attention_heads * slots;
  s.gathered += unused * s.features;
  s.projected += unused * s.stride;
  l.tokens += unused;
  l.best_tokens += unused;
  l.hidden += unused * s.size_d;
  l.scores += unused * s.vocabulary;
}

// One iteration of a team's rows, at most `more` proposals per row included.
void iteration(const Session& s, const Loop& l, Team& team, int64_t begin, int64_t end, int64_t more, int64_t* record) {
  for (int64_t b = begin; b < end; b++) {
    l.place[b] = l.position[b] + 1;
    std::memcpy(l.tokens + b * s.width, l.proposals + b * l.room, s.width * sizeof(int64_t));
  }
  step(s, team, begin, end, l.tokens, l.place, l.hidden, l.scores, uses_int8(s, l) ? l.best_tokens : nullptr);
  for (int64_t b = begin; b < end; b++) advance(s, l, b, record + b * (2 + l.room));
  if (!more) return;
  BlockSize size(s, l, begin, end);
  const int64_t made = propose(s, team, begin, end, l.place, l.index, l.first, more, l.hidden, nullptr, nullptr, l.scratch,
                               l.next, l.widths.costs ? &size : nullptr);
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
    } else if (l.widths.costs) {
      Session own = s;
      Loop loop = l;
      narrow(own, loop, begin, *std::max_element(l.widths.sizes + begin, l.widths.sizes + end));
      iteration(own, loop, team, begin, end, l.widths.count - 1, record);
    } else {
      iteration(s, l, team, begin, end, (n + 1 < count ? l.block_size : following) - 1, record);
    }
  }
}

}  // namespace
