// Proposals of the next tokens by each kind of proposer: the computation of superres/decoding/proposers.

#pragma once

#include "decode/confidence.h"
#include "decode/limits.h"
#include "decode/sampling.h"
#include "model/heads.h"

namespace {

// Whether proposals are drawn from a distribution that speculative sampling has to know.
ALWAYS_INLINE bool draws(const LoopState& l) { return l.proposer.kind == HEADS || l.proposer.kind == DRAFT; }

// The choices of tokens after p1's next one: of row b, `h` + 1 tokens after it. `size` judges them, if it is not null.
struct ProposalChoice {
  const Session& s;
  const LoopState& l;
  ConfidentBlockSize* size;
  const bool judges = size;
  const bool greedy = !l.sampling || (is_speculative(l) && !draws(l));
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

// The verifier's choices from the latest step of `count` + 1 columns, or fewer while the block size grows; further ones
// repeat its last column.
void propose_jacobi(const ProposalChoice& choose, int64_t b, int64_t count, int64_t* tokens) {
  const Session& s = choose.s;
  const LoopState& l = choose.l;
  const int64_t last = std::min(count, s.size.width - 1);
  for (int64_t h = 0; h < count; h++) {
    const int64_t column = std::min(l.index[b] + h + 1, last);
    tokens[h] = choose.greedy ? best_at(s, l, b, column) : choose(b, h, scores_at(s, l, b, column));
  }
}

// Tokens of the draft model, one after another. Its first step reads the token before the block as well, which may be the
// last proposal of the block before; further steps read one token.
void propose_draft(const ProposalChoice& choose, Team& team, int64_t begin, int64_t end, int64_t count, int64_t* tokens) {
  const LoopState& l = choose.l;
  const Proposer& p = l.proposer;
  Session draft = *p.draft;
  const bool int8 = draft.weights.int8_filter.product.weight && choose.screens;
  for (int64_t h = 0; h < count; h++) {
    if (h < 2) draft = narrowed(*p.draft, begin, end, h ? 1 : p.draft->size.width);
    const int64_t width = draft.size.width, V = draft.size.vocabulary, shift = begin * (p.draft->size.width - width);
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

// The table's next token of the longest known context, one after another.
void propose_ngrams(const Session& s, const LoopState& l, int64_t b, int64_t count, int64_t* tokens) {
  const Proposer& p = l.proposer;
  const int64_t position = l.position[b], *store = l.store + b * l.stride + 1;
  int64_t most = 1;
  for (int64_t i = 1; i < p.order; i++) most *= s.size.vocabulary;
  const int64_t* past = p.keys + p.entries;
  for (int64_t h = 0; h < count; h++) {
    const int64_t place = position + h + 1, channel = place % p.channels;
    int64_t context = 0;
    tokens[h] = -1;
    for (int64_t length = 0; length < p.order && length <= place; length++) {
      if (length) {
        const int64_t at = place - length;  // the token that joins the context
        context = context * s.size.vocabulary + (at > position ? tokens[at - position - 1] : at == position ? l.first[b] : store[at]);
      }
      const int64_t number = (length * p.channels + channel) * most + context;
      const int64_t* found = std::lower_bound(p.keys, past, number);
      if (!length || (found < past && *found == number)) tokens[h] = p.known[std::min(found, past - 1) - p.keys];
    }
  }
}

// The continuation of the longest match of the latest tokens, in the source or the target; of equal ones, the latest.
void propose_lookup(const LoopState& l, int64_t b, int64_t count, int64_t* tokens) {
  const Proposer& p = l.proposer;
  const int64_t S = p.source_length, last = S + l.position[b];
  const int64_t *source = p.source + b * S, *store = l.store + b * l.stride + 1;
  const auto text = [=](int64_t i) { return i < S ? source[i] : i == last ? l.first[b] : store[i - S]; };
  int64_t longest = 0, found = 0;
  for (int64_t place = last - 1; place >= 0 && longest < p.longest; place--) {
    int64_t length = 0;
    while (length < p.longest && length <= place && text(place - length) == text(last - length)) length++;
    if (length > longest) longest = length, found = place;
  }
  // A copy that reaches the latest token continues from its own start.
  for (int64_t h = 0; h < count; h++) tokens[h] = longest ? text(found + 1 + h % (last - found)) : l.first[b];
}

// Records that row b's `count` proposals were not drawn: each has probability 1.
void record_certain(const Session& s, const LoopState& l, int64_t b, int64_t count, const int64_t* tokens) {
  for (int64_t h = 0; h < count; h++) {
    const int64_t slot = b * l.capacity + h;
    int32_t* q = l.sampling->q + slot * s.size.vocabulary;
    std::memset(q, 0, s.size.vocabulary * sizeof(int32_t));
    q[tokens[h]] = 1;
    l.sampling->q_total[slot] = 1;
  }
}

// Writes `count` proposals per row, for the tokens after p1's next one, to l.next [batch, count]. Returns how many each row has:
// fewer if `size` is not null and no larger block pays.
int64_t propose_next(Session& s, LoopState& l, Team& team, int64_t begin, int64_t end, int64_t count, ConfidentBlockSize* size) {
  const ProposalChoice choose{s, l, size};
  const ProposerKind kind = l.proposer.kind;
  if (kind == HEADS) return propose(s, team, begin, end, {l.place, l.index, l.first, count, l.hidden, l.scratch, l.next}, choose);
  if (kind == DRAFT) propose_draft(choose, team, begin, end, count, l.next);
  for (int64_t b = begin; b < end; b++) {
    int64_t* tokens = l.next + b * count;
    if (kind == JACOBI) propose_jacobi(choose, b, count, tokens);
    if (kind == NGRAM) propose_ngrams(s, l, b, count, tokens);
    if (kind == LOOKUP) propose_lookup(l, b, count, tokens);
    if (is_speculative(l) && !draws(l)) record_certain(s, l, b, count, tokens);
  }
  return count;
}

}  // namespace
