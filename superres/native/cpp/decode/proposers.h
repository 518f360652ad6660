// Proposals of the next tokens by the heads or a draft model: the computation of superres/decoding/proposers.

#pragma once

#include "decode/confidence.h"
#include "decode/limits.h"
#include "decode/sampling.h"
#include "model/heads.h"

namespace {

// The choices of tokens after p1's next one: of row b, `h` + 1 tokens after it. `size` judges them, if it is not null.
struct ProposalChoice {
  const Session& s;
  const LoopState& l;
  ConfidentBlockSize* size;
  const bool judges = size;
  const bool greedy = !l.sampling;
  const bool screens = (greedy || is_gumbel(s.size, *l.sampling)) && !is_limited(l);

  void limit(int64_t b, int64_t h, const int64_t* proposals, float* scores) const {
    limit_proposal(s, l, b, h, proposals, scores);
  }

  GumbelAt gumbel_at(int64_t b, int64_t h) const { return GumbelAt(greedy ? nullptr : l.sampling, b, l.position[b] + h + 1); }

  int64_t operator()(int64_t b, int64_t h, const float* scores) const {
    if (greedy) return largest_of(scores, s.size.vocabulary);
    Choice choice(s.size.vocabulary, *l.sampling, b, l.position[b] + h + 1, scores);
    if (!is_speculative(l)) return choice.token();
    const int64_t slot = b * l.capacity + h;
    return choice.propose(l.sampling->q + slot * s.size.vocabulary, l.sampling->q_total + slot, h + 1);
  }

  template <typename... Evidence>
  void judge(int64_t b, int64_t h, Evidence... evidence) const {
    size->judge(b, h, evidence...);
  }

  // Whether a block of more than `count` tokens may pay.
  bool more(int64_t count) const { return !size || size->more(count); }
};

// Tokens of the draft model, one after another. Its first step reads the token before the block as well, which may be the
// last proposal of the block before; further steps read one token.
void propose_draft(const ProposalChoice& choose, Team& team, int64_t begin, int64_t end, int64_t count, int64_t* tokens) {
  const LoopState& l = choose.l;
  const Draft& p = l.draft;
  Session draft = *p.session;
  const bool int8 = draft.weights.int8_filter.product.weight && choose.screens;
  for (int64_t h = 0; h < count; h++) {
    if (h < 2) draft = narrowed(*p.session, begin, end, h ? 1 : p.session->size.width);
    const int64_t width = draft.size.width, V = draft.size.vocabulary, shift = begin * (p.session->size.width - width);
    int64_t* read = p.tokens + shift;
    const StepOutput output{p.hidden + shift * draft.size.d, p.scores + shift * V, int8 ? p.best_tokens + shift : nullptr,
                            choose.greedy ? nullptr : l.sampling};
    for (int64_t b = begin; b < end; b++) {
      const int64_t position = l.position[b], *store = l.store + b * l.stride + 1;
      p.place[b] = position + (h ? h + 1 : 0);
      if (!h) read[b * width] = store[position > 1 ? position - 1 : 0];
      read[b * width + width - 1] = h ? tokens[b * count + h - 1] : l.first[b];
    }
    step(draft, team, begin, end, read, p.place, output);
    for (int64_t b = begin; b < end; b++) {
      const int64_t r = b * width + width - 1;
      if (!int8) choose.limit(b, h, tokens + b * count, output.scores + r * V);
      tokens[b * count + h] = int8 ? output.best_tokens[r] : choose(b, h, output.scores + r * V);
    }
  }
}

// Writes `count` proposals per row, for the tokens after p1's next one, to l.next [batch, count]. Returns how many each row has:
// fewer if `size` is not null and no larger block pays.
int64_t propose_next(Session& s, LoopState& l, Team& team, int64_t begin, int64_t end, int64_t count, ConfidentBlockSize* size) {
  const ProposalChoice choose{s, l, size};
  if (!l.draft.session)
    return propose(s, team, begin, end, {l.place, l.index, l.first, count, l.hidden, l.scratch, l.next}, choose);
  propose_draft(choose, team, begin, end, count, l.next);
  return count;
}

}  // namespace
