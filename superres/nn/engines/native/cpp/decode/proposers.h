// Proposals of the next tokens by each kind of proposer: the computation of superres/decoding/proposers.

#pragma once

#include "decode/choice.h"
#include "decode/limits.h"
#include "model/propose.h"
#include "model/step.h"

namespace {

ALWAYS_INLINE bool is_speculative(const Loop& l) { return l.sampling && l.sampling->kind == SPECULATIVE; }

// Whether proposals are drawn from a distribution that speculative sampling has to know.
ALWAYS_INLINE bool draws(const Loop& l) { return l.proposer.kind == HEADS || l.proposer.kind == DRAFT; }

// Whether an iteration needs only the choice of each column, not the scores. Jacobi proposals of samples need the scores.
ALWAYS_INLINE bool uses_int8(const Session& s, const Loop& l) {
  if (!s.int8_filter.product.weight || l.best || is_limited(l)) return false;
  return !l.sampling || (is_gumbel(s, *l.sampling) && l.proposer.kind != JACOBI);
}

// p1's scores of row b at a column, and its choice if that is an argmax.
ALWAYS_INLINE const float* scores_at(const Session& s, const Loop& l, int64_t b, int64_t column) {
  return l.scores + (b * s.width + column) * s.vocabulary;
}
ALWAYS_INLINE int64_t best_at(const Session& s, const Loop& l, int64_t b, int64_t column) {
  return uses_int8(s, l) ? l.best_tokens[b * s.width + column] : largest_of(scores_at(s, l, b, column), s.vocabulary);
}

// Whether fewer than `bound` tokens have a larger score than the proposal.
ALWAYS_INLINE bool is_among_best(const Session& s, const float* scores, int64_t proposal, int64_t bound) {
  int64_t better = 0;
  for (int64_t v = 0; v < s.vocabulary; v++) better += scores[v] > scores[proposal];
  return better < bound;
}

// Returns how many of row b's `accepted` tokens to commit: an end token is the last one, and then the row's limit.
ALWAYS_INLINE int64_t up_to_end(const Loop& l, int64_t b, const int64_t* tokens, int64_t accepted) {
  for (int64_t i = 0; i < accepted; i++)
    if (tokens[i] == l.end_token) {
      l.limit[b] = l.position[b] + i + 1;
      return i + 1;
    }
  return accepted;
}

// Lets the next step read the pending proposals of rows [begin, end).
ALWAYS_INLINE void read_proposals(const Session& s, const Loop& l, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; b++) {
    l.place[b] = l.position[b] + 1;
    std::memcpy(l.tokens + b * s.width, l.proposals + b * l.room, s.width * sizeof(int64_t));
  }
}

// The choices of tokens after p1's next one: of row b, `h` + 1 tokens after it.
struct ProposalChoice {
  const Session& s;
  const Loop& l;
  const bool greedy = !l.sampling || (is_speculative(l) && !draws(l));
  const bool screens = (greedy || is_gumbel(s, *l.sampling)) && !is_limited(l);

  void limit(int64_t b, int64_t h, const int64_t* proposals, float* scores) const {
    limit_proposal(s, l, b, h, proposals, scores);
  }

  GumbelAt gumbel_at(int64_t b, int64_t h) const { return GumbelAt(greedy ? nullptr : l.sampling, b, l.position[b] + h + 1); }

  int64_t operator()(int64_t b, int64_t h, const float* scores) const {
    if (greedy) return largest_of(scores, s.vocabulary);
    Choice choice(s, *l.sampling, b, l.position[b] + h + 1, scores);
    if (!is_speculative(l)) return choice.token();
    const int64_t slot = b * l.room + h;
    return choice.propose(l.sampling->q + slot * s.vocabulary, l.sampling->q_total + slot);
  }
};

// The verifier's choices from the latest step of `count` + 1 columns; further ones repeat its last column.
void propose_jacobi(const ProposalChoice& choose, int64_t b, int64_t count, int64_t* tokens) {
  const Session& s = choose.s;
  const Loop& l = choose.l;
  for (int64_t h = 0; h < count; h++) {
    const int64_t next = l.index[b] + h + 1, column = next < count ? next : count;
    tokens[h] = choose.greedy ? best_at(s, l, b, column) : choose(b, h, scores_at(s, l, b, column));
  }
}

// Tokens of the draft model, one after another. Its first step reads the token before the block as well, which may be the
// last proposal of the block before; further steps read one token.
void propose_draft(const ProposalChoice& choose, Team& team, int64_t begin, int64_t end, int64_t count, int64_t* tokens) {
  const Loop& l = choose.l;
  const Proposer& p = l.proposer;
  Session draft = *p.draft;
  const bool int8 = draft.int8_filter.product.weight && choose.screens;
  for (int64_t h = 0; h < count; h++) {
    if (h < 2) {
      draft = *p.draft;
      narrow(draft, begin, end, h ? 1 : p.draft->width);
    }
    const int64_t width = draft.width, shift = begin * (p.draft->width - width);
    int64_t *read = p.tokens + shift, *best = p.best_tokens + shift;
    float *hidden = p.hidden + shift * draft.size_d, *scores = p.scores + shift * draft.vocabulary;
    for (int64_t b = begin; b < end; b++) {
      const int64_t position = l.position[b], *store = l.store + b * l.stride + 1;
      p.place[b] = position + (h ? h + 1 : 0);
      if (!h) read[b * width] = store[position > 1 ? position - 1 : 0];
      read[b * width + width - 1] = h ? tokens[b * count + h - 1] : l.first[b];
    }
    step(draft, team, begin, end, read, p.place, hidden, scores, int8 ? best : nullptr, choose.greedy ? nullptr : l.sampling);
    for (int64_t b = begin; b < end; b++) {
      const int64_t r = b * width + width - 1;
      if (!int8) choose.limit(b, h, tokens + b * count, scores + r * draft.vocabulary);
      tokens[b * count + h] = int8 ? best[r] : choose(b, h, scores + r * draft.vocabulary);
    }
  }
}

// The table's next token of the longest known context, one after another.
void propose_ngrams(const Session& s, const Loop& l, int64_t b, int64_t count, int64_t* tokens) {
  const Proposer& p = l.proposer;
  const int64_t position = l.position[b], *store = l.store + b * l.stride + 1;
  int64_t most = 1;
  for (int64_t i = 1; i < p.order; i++) most *= s.vocabulary;
  const int64_t* past = p.keys + p.entries;
  for (int64_t h = 0; h < count; h++) {
    const int64_t place = position + h + 1, channel = place % p.channels;
    int64_t context = 0;
    tokens[h] = -1;
    for (int64_t length = 0; length < p.order && length <= place; length++) {
      if (length) {
        const int64_t at = place - length;  // the token that joins the context
        context = context * s.vocabulary + (at > position ? tokens[at - position - 1] : at == position ? l.first[b] : store[at]);
      }
      const int64_t number = (length * p.channels + channel) * most + context;
      const int64_t* found = std::lower_bound(p.keys, past, number);
      if (!length || (found < past && *found == number)) tokens[h] = p.known[std::min(found, past - 1) - p.keys];
    }
  }
}

// The continuation of the longest match of the latest tokens, in the source or the target; of equal ones, the latest.
void propose_lookup(const Loop& l, int64_t b, int64_t count, int64_t* tokens) {
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

// Writes `count` proposals per row, for the tokens after p1's next one, to tokens [batch, count]. Returns how many each row
// has: fewer if `size` is not null and no more pay.
int64_t propose_next(const Session& s, const Loop& l, Team& team, int64_t begin, int64_t end, int64_t count, int64_t* tokens,
                     BlockSize* size) {
  const ProposalChoice choose{s, l};
  const ProposerKind kind = l.proposer.kind;
  if (kind == HEADS)
    return propose(s, team, begin, end, l.place, l.index, l.first, count, l.hidden, choose, l.scratch, tokens, size);
  if (kind == DRAFT) propose_draft(choose, team, begin, end, count, tokens);
  for (int64_t b = begin; b < end; b++) {
    int64_t* own = tokens + b * count;
    if (kind == JACOBI) propose_jacobi(choose, b, count, own);
    if (kind == NGRAM) propose_ngrams(s, l, b, count, own);
    if (kind == LOOKUP) propose_lookup(l, b, count, own);
    if (draws(l) || !is_speculative(l)) continue;
    for (int64_t h = 0; h < count; h++) {  // a proposal that was not drawn has probability 1
      const int64_t slot = b * l.room + h;
      int32_t* q = l.sampling->q + slot * s.vocabulary;
      std::memset(q, 0, s.vocabulary * sizeof(int32_t));
      q[own[h]] = 1;
      l.sampling->q_total[slot] = 1;
    }
  }
  return count;
}

}  // namespace
