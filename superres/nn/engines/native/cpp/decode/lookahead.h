// Iterations of lookahead decoding: superres/decoding/proposers/lookahead/decoding.py for greedy choices.

#pragma once

#include "decode/proposers.h"

namespace {

// One row of a batch that decodes by lookahead.
struct LookaheadRow {
  const Session& s;
  const Loop& l;
  const Lookahead& a;
  const int64_t b;

  int64_t* window(int64_t stage) const { return a.window + (b * (a.size - 1) + stage) * a.columns; }
  int64_t* gram(int64_t entry) const { return a.grams + (b * a.capacity + entry) * a.size; }
  const float* scores(int64_t column) const { return l.scores + (b * s.tree.scored + column) * s.vocabulary; }

  int64_t best(int64_t column) const {
    return uses_int8(s, l) ? l.best_tokens[b * s.tree.scored + column] : largest_of(scores(column), s.vocabulary);
  }

  bool passes(int64_t parent, int64_t proposal) const {
    return l.best ? is_among_best(s, scores(parent), proposal, l.bound) : std::llabs(proposal - best(parent)) <= l.bound;
  }

  // Sets `path` to that of the candidate with the longest accepted block, the first of equals, and returns its length.
  int64_t verify(const int64_t*& path) const {
    const int64_t* tokens = l.tokens + b * s.width;
    const int64_t found = l.position[b] < 0 ? 0 : a.found[b];
    int64_t longest = 0;
    for (int64_t g = 0; g == 0 || g < found; g++) {
      const int64_t* own = a.paths + g * a.size;
      int64_t accepted = 1;
      while (found && accepted < a.size && passes(own[accepted - 1], tokens[own[accepted]])) accepted++;
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
    int64_t* next = l.proposals + b * l.room;
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

  // Accepts and commits the longest block of the latest step, and prepares the next step.
  void advance(const Rows& rows, int64_t* record) const {
    const int64_t start = l.position[b], room = start < 0 ? 1 : l.limit[b] - start;
    const int64_t *path = nullptr, *tokens = l.tokens + b * s.width;
    const int64_t longest = verify(path), first = best(path[longest - 1]);
    int64_t* block = record + 2;
    for (int64_t i = 0; i < a.size; i++) block[i] = tokens[path[i]];
    const int64_t accepted = up_to_end(l, b, block, std::min(longest, room));
    record[0] = start, record[1] = accepted;
    std::memcpy(l.store + b * l.stride + l.place[b], block, a.size * sizeof(int64_t));
    rows.keep(b, path, a.size);
    l.position[b] = start + accepted;
    if (!accepted) return;  // a complete row
    int64_t* guesses = (int64_t*)__builtin_alloca(a.columns * sizeof(int64_t));
    for (int64_t c = 0; c < a.columns; c++) guesses[c] = best(a.guesses[c]);
    add(guesses);
    move(guesses, accepted, first);
    fill_columns(first);
  }
};

// One iteration of a team's rows.
void lookahead_iteration(const Session& s, const Loop& l, Team& team, int64_t begin, int64_t end, int64_t* record) {
  read_proposals(s, l, begin, end);
  step(s, team, begin, end, l.tokens, l.place, l.hidden, l.scores, uses_int8(s, l) ? l.best_tokens : nullptr);
  const Rows rows{s, team, begin, end, l.tokens, l.place};
  for (int64_t b = begin; b < end; b++) LookaheadRow{s, l, l.lookahead, b}.advance(rows, record + b * (2 + l.room));
}

}  // namespace
