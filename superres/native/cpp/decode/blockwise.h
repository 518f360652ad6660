// superres/decoding/plain/blockwise.py a second time, with the same names in the same order: iterate, verify,
// stop_at_end_token, commit, propose. tests/decoding/test_contracts.py runs both against one reference, token for token.
//
// Each header of this folder is named after the Python module that it repeats.

#pragma once

#include "decode/acceptance.h"
#include "decode/proposers.h"

namespace {

// Blockwise decoding of a team's rows.
struct BlockwiseDecoding {
  Session& s;
  LoopState& l;
  Team& team;
  const int64_t begin, end;
  const Verifier verifier{s, l, begin, scratch<CHOSEN, Chosen>(end - begin)};

  // Does one iteration, which makes at most `more` proposals per row, and writes its trace to record [B, 2 + capacity].
  void iterate(int64_t more, int64_t* record) const {
    const int64_t W = s.size.width;
    read_pending(s, l, begin, end);
    step(s, team, begin, end, l.tokens, l.place, step_output(s, l));  // the only model call
    for (int64_t b = begin; b < end; b++) {
      if (is_limited(l)) limit_step(s, l, b);
      const int64_t* block = l.tokens + b * W;
      int64_t accepted = verify(b);  // the longest prefix that passes
      accepted = stop_at_end_token(b, block, accepted);
      trace(l, b, accepted, record + b * (2 + l.capacity));
      commit(l, b, block, W, accepted);
      l.index[b] = accepted > 0 ? accepted - 1 : 0;
    }
    propose(more);  // from the same call: predictions after the last accepted token
  }

  // Returns how many of row b's pending tokens p1 accepts (sections 3 and 5).
  int64_t verify(int64_t b) const {
    const int64_t k = block_size(l, b), most = missing(l, b);
    if (is_speculative(l)) return std::min(verifier.accepted_block(b, most), most);
    verifier.latest[b - begin].column = -1;
    int64_t accepted = 1, minimum = 1;
    while (accepted < k && accepted < most && verifier.accepts(b, accepted)) accepted++;
    // Tokens of probability 0, outside limits or filters, end the minimum block.
    while (minimum < l.minimum && minimum < k && verifier.is_possible(b, minimum)) minimum++;
    return std::min(std::max(accepted, minimum), most);
  }

  // Cuts the accepted part of row b's block after its first end token, and ends the row there.
  int64_t stop_at_end_token(int64_t b, const int64_t* block, int64_t accepted) const {
    for (int64_t i = 0; i < accepted; i++)
      if (block[i] == l.end_token) {
        l.limit[b] = l.position[b] + i + 1;
        return i + 1;
      }
    return accepted;
  }

  // Makes the next proposals: p1's choice after the accepted tokens, then those of the proposer.
  void propose(int64_t more) const {
    for (int64_t b = begin; b < end; b++) {
      l.first[b] = verifier.first(b, l.index[b]);
      std::fill_n(l.proposals + b * l.capacity, s.size.width, l.first[b]);
    }
    if (!more) return;
    ConfidentBlockSize size(s, l, begin, end);
    const int64_t made = propose_next(s, l, team, begin, end, more, l.block_costs.costs ? &size : nullptr);
    for (int64_t b = begin; b < end; b++)
      std::memcpy(l.proposals + b * l.capacity + 1, l.next + b * more, made * sizeof(int64_t));
    if (l.block_costs.costs) size.settle();
  }
};

}  // namespace
