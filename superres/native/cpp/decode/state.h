// The rows being decoded: superres/decoding/plain/state.py.

#pragma once

#include <algorithm>

#include "model/step.h"

namespace {

ALWAYS_INLINE bool is_limited(const LoopState& l) { return l.limits.earlier; }

ALWAYS_INLINE bool is_speculative(const LoopState& l) { return l.sampling && l.sampling->kind == SPECULATIVE; }

// Whether an iteration needs only the choice of each column, not the scores.
ALWAYS_INLINE bool uses_int8(const Session& s, const LoopState& l) {
  if (!s.weights.int8_filter.product.weight || l.rule == RANK || is_limited(l)) return false;
  return !l.sampling || is_gumbel(s.size, *l.sampling);
}

ALWAYS_INLINE StepOutput step_output(const Session& s, const LoopState& l) {
  return {l.hidden, l.scores, uses_int8(s, l) ? l.best_tokens : nullptr, l.sampling};
}

// p1's scores of row b at a column, and its choice if that is an argmax.
ALWAYS_INLINE const float* scores_at(const Session& s, const LoopState& l, int64_t b, int64_t column) {
  return l.scores + (b * s.size.width + column) * s.size.vocabulary;
}
ALWAYS_INLINE int64_t best_at(const Session& s, const LoopState& l, int64_t b, int64_t column) {
  if (uses_int8(s, l)) return l.best_tokens[b * s.size.width + column];
  return largest_of(scores_at(s, l, b, column), s.size.vocabulary);
}

// The block size of row b's pending proposals.
ALWAYS_INLINE int64_t block_size(const LoopState& l, int64_t b) { return l.block_costs.costs ? l.block_costs.sizes[b] : l.block_size; }

// How many tokens row b may accept at most; a row that starts accepts the start alone.
ALWAYS_INLINE int64_t missing(const LoopState& l, int64_t b) { return l.position[b] < 0 ? 1 : l.limit[b] - l.position[b]; }

// Lets the next step read the pending proposals of rows [begin, end).
ALWAYS_INLINE void read_pending(const Session& s, LoopState& l, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; b++) {
    l.place[b] = l.position[b] + 1;
    std::memcpy(l.tokens + b * s.size.width, l.proposals + b * l.capacity, s.size.width * sizeof(int64_t));
  }
}

// Commits the first `accepted` of `count` tokens to row b. All are written: those that were not accepted are overwritten before
// anything reads them.
ALWAYS_INLINE void commit(LoopState& l, int64_t b, const int64_t* tokens, int64_t count, int64_t accepted) {
  std::memcpy(l.store + b * l.stride + l.place[b], tokens, count * sizeof(int64_t));
  l.position[b] += accepted;
}

// Writes the trace of one iteration of row b: position, accepted tokens, proposals. With `block_costs`, -1 follows the block.
ALWAYS_INLINE void trace(const LoopState& l, int64_t b, int64_t accepted, int64_t* record) {
  record[0] = l.position[b];
  record[1] = accepted;
  std::memcpy(record + 2, l.proposals + b * l.capacity, l.capacity * sizeof(int64_t));
  if (l.block_costs.costs) std::fill(record + 2 + l.block_costs.sizes[b], record + 2 + l.capacity, -1);
}

}  // namespace
