// Iterations of lookahead decoding: superres/decoding/plain/lookahead/iteration.py for greedy choices.

#pragma once

#include "decode/blockwise.h"

namespace {

// The candidates, the window and the pool of one row.
struct LookaheadRow {
  const Session& s;
  LoopState& l;
  const Lookahead& a;
  const int64_t b;

  int64_t* window(int64_t stage) const { return a.window + (b * (a.size - 1) + stage) * a.columns; }
  int64_t* gram(int64_t entry) const { return a.grams + (b * a.capacity + entry) * a.size; }
  const float* scores(int64_t column) const { return l.scores + (b * s.tree.scored + column) * s.size.vocabulary; }

  int64_t best(int64_t column) const {
    return uses_int8(s, l) ? l.best_tokens[b * s.tree.scored + column] : largest_of(scores(column), s.size.vocabulary);
  }

  bool accepts(int64_t parent, int64_t proposal) const {
    if (is_limited(l) && scores(parent)[proposal] == -INFINITY) return false;
    if (l.rule == RANK) return is_among_best(scores(parent), s.size.vocabulary, proposal, l.bound);
    return std::llabs(proposal - best(parent)) <= l.bound;
  }

  // Sets `path` to that of the candidate with the longest accepted block, the first of equals, and returns its length.
  int64_t verify(const int64_t*& path) const {
    const int64_t* tokens = l.tokens + b * s.size.width;
    const int64_t found = l.position[b] < 0 ? 0 : a.found[b];
    int64_t longest = 0;
    for (int64_t g = 0; g == 0 || g < found; g++) {
      const int64_t* own = a.paths + g * a.size;
      int64_t accepted = 1;
      while (found && accepted < a.size && accepts(own[accepted - 1], tokens[own[accepted]])) accepted++;
      if (accepted > longest) longest = accepted, path = own;
    }
    return longest;
  }

  // Adds the n-grams of the window and its guesses to the pool; a known one becomes the latest.
  void add(const int64_t* guesses) const {
    for (int64_t c = 0; c < a.columns; c++) {
      const int64_t place = (a.oldest[b] + c) % a.capacity;
      int64_t* fresh = gram(place);
      for (int64_t i = 0; i + 1 < a.size; i++) fresh[i] = window(i)[c];
      fresh[a.size - 1] = guesses[c];
      for (int64_t entry = 0; entry < a.capacity; entry++)
        if (gram(entry)[0] == fresh[0] && entry != place && !std::memcmp(gram(entry), fresh, a.size * sizeof(int64_t)))
          gram(entry)[0] = -1;
    }
    a.oldest[b] = (a.oldest[b] + a.columns) % a.capacity;
  }

  // Moves the window on by `accepted` tokens; the last guess is repeated beyond its end.
  void move(const int64_t* guesses, int64_t accepted, int64_t first) const {
    for (int64_t stage = 0; stage + 1 < a.size; stage++) {
      const int64_t* above = stage + 2 < a.size ? window(stage + 1) : guesses;
      for (int64_t c = 0; c < a.columns; c++) window(stage)[c] = above[std::min(c + accepted - 1, a.columns - 1)];
    }
    window(0)[0] = first;
  }

  // Fills the columns of the next step: the last token, candidates from the pool, the latest first, and the window.
  void fill_columns(int64_t first) const {
    int64_t* next = l.proposals + b * l.capacity;
    *next++ = first;
    a.found[b] = 0;
    for (int64_t back = 1; back <= a.capacity && a.found[b] < a.candidates; back++) {
      const int64_t* known = gram((a.oldest[b] - back + a.capacity) % a.capacity);
      if (known[0] != first) continue;
      std::memcpy(next + a.found[b]++ * (a.size - 1), known + 1, (a.size - 1) * sizeof(int64_t));
    }
    std::fill(next + a.found[b] * (a.size - 1), next + a.candidates * (a.size - 1), 0);
    next += a.candidates * (a.size - 1);
    for (int64_t i = 0; i < a.cells; i++) next[i] = window(a.stage[i])[a.column[i]];
  }

  // Makes the next step's tokens after `accepted` tokens and p1's next one.
  void propose(int64_t first, int64_t accepted) const {
    int64_t* guesses = scratch<GUESSES, int64_t>(a.columns);
    for (int64_t c = 0; c < a.columns; c++) guesses[c] = best(a.guesses[c]);
    add(guesses);
    move(guesses, accepted, first);
    fill_columns(first);
  }
};

// Blockwise decoding whose step reads a tree.
struct LookaheadDecoding : BlockwiseDecoding {
  // Does one iteration, and writes its trace to record [B, 2 + capacity].
  void iterate(int64_t* record) const {
    read_pending(s, l, begin, end);
    step(s, team, begin, end, l.tokens, l.place, step_output(s, l));
    for (int64_t b = begin; b < end; b++) {
      if (is_limited(l)) limit_tree(s, l, b);
      const LookaheadRow row{s, l, l.lookahead, b};
      const int64_t *path = nullptr, *tokens = l.tokens + b * s.size.width, size = l.lookahead.size;
      const int64_t longest = row.verify(path), first = row.best(path[longest - 1]);
      int64_t *own = record + b * (2 + l.capacity), *block = own + 2;
      for (int64_t i = 0; i < size; i++) block[i] = tokens[path[i]];
      const int64_t accepted = stop_at_end_token(b, block, std::min(longest, missing(l, b)));
      own[0] = l.position[b], own[1] = accepted;
      commit(l, b, block, size, accepted);
      keep_columns(s, b, l.place[b], path, size);
      if (accepted) row.propose(first, accepted);  // else the row is complete
    }
  }
};

}  // namespace
