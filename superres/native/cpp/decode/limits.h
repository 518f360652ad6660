// Limits of tokens, as scores of -inf: the computation of superres/decoding/plain/limited.py.

#pragma once

#include "decode/state.h"

namespace {

// Sets the scores [V] of the tokens that row b may not have at position `target` to -inf. token(p) returns the token at an
// earlier position p. If no token is within the limits, which follows only from a token outside its own, the nearest stays.
template <typename Token>
ALWAYS_INLINE void limit(const Session& s, const LoopState& l, int64_t b, int64_t target, const Token& token, float* scores) {
  if (target >= s.size.length) return;
  const Limits& limits = l.limits;
  const int64_t past = s.size.length + 1;  // offset of the upper bounds
  const int64_t *earlier = limits.earlier + target * limits.count, *bounds = limits.bounds + 2 * b * past + target;
  int64_t sum = 0;
  for (int64_t i = 0; i < limits.count && earlier[i] >= 0; i++) sum += token(earlier[i]);
  const int64_t most = s.size.vocabulary - 1;
  const int64_t low = std::min(bounds[0] - sum, most), high = std::max<int64_t>(bounds[past] - sum, 0);
  for (int64_t v = 0; v < low; v++) scores[v] = -INFINITY;
  for (int64_t v = high + 1; v <= most; v++) scores[v] = -INFINITY;
}

// Limits p1's scores at all columns of row b's step, given the committed and the pending tokens.
void limit_step(const Session& s, LoopState& l, int64_t b) {
  const int64_t position = l.position[b], *store = l.store + b * l.stride + 1, *pending = l.tokens + b * s.size.width;
  const auto token = [=](int64_t p) { return p < position ? store[p] : pending[p - position]; };
  for (int64_t w = 0; w < s.size.width; w++)
    limit(s, l, b, position + 1 + w, token, l.scores + (b * s.size.width + w) * s.size.vocabulary);
}

// As `limit_step`, at the scored columns of a tree, given the committed tokens and those on each column's path.
void limit_tree(const Session& s, LoopState& l, int64_t b) {
  const int64_t position = l.position[b], *store = l.store + b * l.stride + 1, *read = l.tokens + b * s.size.width;
  for (int64_t w = 0; w < s.tree.scored; w++) {
    const int64_t depth = s.tree.depth[w], *path = s.tree.ancestors + w * s.tree.longest;
    const auto token = [=](int64_t p) { return p < position ? store[p] : read[path[position + depth - p]]; };
    limit(s, l, b, position + 1 + depth, token, l.scores + (b * s.tree.scored + w) * s.size.vocabulary);
  }
}

// Limits the scores [V] of the proposal `h` + 1 tokens after p1's next one, given the `proposals` before it.
void limit_proposal(const Session& s, const LoopState& l, int64_t b, int64_t h, const int64_t* proposals, float* scores) {
  if (!is_limited(l)) return;
  const int64_t position = l.position[b], first = l.first[b], *store = l.store + b * l.stride + 1;
  const auto token = [=](int64_t p) {
    return p < position ? store[p] : p == position ? first : proposals[p - position - 1];
  };
  limit(s, l, b, position + h + 1, token, scores);
}

}  // namespace
