// The loop around the iterations of a team's rows: superres/decoding/loop.py.

#pragma once

#include "decode/lookahead.h"

namespace {

// The state for steps of `width` tokens of rows from `begin`, instead of those of a session with these sizes.
LoopState narrowed(LoopState l, const Sizes& size, int64_t begin, int64_t width) {
  const int64_t skipped = begin * (size.width - width);
  l.hidden += skipped * size.d;
  l.scores += skipped * size.vocabulary;
  l.tokens += skipped;
  l.best_tokens += skipped;
  return l;
}

// Iterations of a team's rows, which stop once all of these rows are complete: see `superres_iterate`.
void run(Session& s, LoopState& l, Team& team, int64_t begin, int64_t end, int64_t count, int64_t following, int64_t* record) {
  for (int64_t n = 0; n < count; n++, record += s.size.batch * (2 + l.capacity)) {
    bool complete = true;
    for (int64_t b = begin; b < end; b++) complete = complete && l.position[b] >= l.limit[b];
    if (complete) {  // rows of other teams may not be complete yet
      for (int64_t b = begin; b < end; b++) trace(l, b, 0, record + b * (2 + l.capacity));
    } else if (l.lookahead.size) {
      LookaheadDecoding{{s, l, team, begin, end}}.iterate(record);
    } else if (l.block_costs.costs) {
      const int64_t width = *std::max_element(l.block_costs.sizes + begin, l.block_costs.sizes + end);
      Session own = narrowed(s, begin, end, width);
      LoopState state = narrowed(l, s.size, begin, width);
      BlockwiseDecoding{own, state, team, begin, end}.iterate(l.block_costs.count - 1, record);
    } else {
      BlockwiseDecoding{s, l, team, begin, end}.iterate((n + 1 < count ? l.block_size : following) - 1, record);
    }
  }
}

}  // namespace
