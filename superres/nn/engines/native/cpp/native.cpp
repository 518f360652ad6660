// The decoding step for CPUs: the computation of superres/nn/engines/torch_step.py in one call.
// superres/nn/engines/native/build.py compiles it; session.py beside it calls it.
//
// The order of every sum depends on the position alone, never on the step width, the batch or the number of threads. A
// block of k tokens therefore gets bit for bit the scores that the same tokens get one at a time.
//
// With at least one row per thread, groups of rows are distributed over the threads of a team. With fewer rows, the
// threads share the outputs of each product.

#include <cstdlib>

#include "layout.h"
#include "recurrent.h"

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

// Writes the trace of one iteration of row b: position, accepted tokens, proposals.
ALWAYS_INLINE void note(const Loop& l, int64_t b, int64_t accepted, int64_t* record) {
  record[0] = l.position[b];
  record[1] = accepted;
  std::memcpy(record + 2, l.proposals + b * l.room, l.room * sizeof(int64_t));
}

// Accepts and commits the longest passing prefix of row b's proposals and chooses p1's next token. The proposals of the
// other heads are computed later, by `propose`.
void advance(const Session& s, const Loop& l, int64_t b, int64_t* record) {
  const int64_t start = l.position[b], room = start < 0 ? 1 : l.limit[b] - start;
  const int64_t* tokens = l.tokens + b * s.width;
  int64_t accepted = 1;
  while (accepted < l.block_size && accepted < room && passes(s, l, b, accepted)) accepted++;
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

// Calls body(team, begin, end) for all rows; in groups of at most `together` rows if the threads divide the rows.
template <typename Body>
void in_groups(const Session& s, int64_t together, const Body& body) {
  with_team((int)s.threads, s.patient, [&](Team& team) {
    if (team.size > 1 && s.batch < team.size) {
      body(team, (int64_t)0, s.batch);
      return;
    }
    const int64_t share = (s.batch + team.size - 1) / team.size, group = together < share ? together : share;
    team.deal(s.batch, (s.batch + group - 1) / group, [=, body = &body](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; b += group) {
        Team alone;
        (*body)(alone, b, b + group < end ? b + group : end);
      }
    });
  });
}

// A step of a team's rows: see `superres_step`. If `best_tokens` [B, W] is not null, writes the argmax of each column there
// and no scores.
void step(const Session& s, Team& team, int64_t begin, int64_t end, const int64_t* tokens, const int64_t* position,
          float* hidden, float* scores, int64_t* best_tokens) {
  const Rows rows{s, team, begin, end, tokens, position};
  Clock clock(begin ? nullptr : s.seconds);
  float* x = rows.of(s.x, s.size_d);
  rows.embed(x);
  if (s.features) rows.neighbourhood(x);
  clock.lap(INPUT);
  for (int64_t l = 0; l < s.layers; l++) rows.run(s.layer[l], x, clock);
  float* states = rows.of(hidden, s.size_d);
  if (s.final_weight) rows.normalise_all(x, s.final_weight, s.final_bias, states);
  else std::memcpy(states, x, rows.count() * s.size_d * sizeof(float));
  float* projected = rows.of(s.projected, s.stride);
  if (best_tokens) {
    screened_argmax(s, team, states, rows.count(), projected, best_tokens + begin * s.width, 1);
    clock.lap(SCORES);
    return;
  }
  project(s, team, states, rows.count(), projected);
  for (int64_t b = begin, r = begin * s.width; b < end; b++)
    for (int64_t w = 0; w < s.width; w++, r++) {
      const float* out = projected + (r - begin * s.width) * s.stride;
      if (!s.ordinal) {
        std::memcpy(scores + r * s.vocabulary, out, s.vocabulary * sizeof(float));
        refuse_unless(s, all_finite(out, s.vocabulary));
        continue;
      }
      const int64_t target = rows.inside(b, w);
      float mu = s.estimate[b * s.length + target] + out[s.outputs - 2] * s.residual_scale;
      if (s.features)
        mu += dot(s.gathered + r * s.features, s.direct + target % s.channels * s.features, s.features) * s.residual_scale;
      scores_around(s, mu, slope_of(s, out), out, scores + r * s.vocabulary);
      refuse_unless(s, all_finite(scores + r * s.vocabulary, s.vocabulary));
    }
  clock.lap(SCORES);
}

// Proposals of recurrent heads: arguments as for `propose`.
void recur(const Session& s, Team& team, int64_t begin, int64_t end, const int64_t* index, const int64_t* first,
           int64_t count, const float* hidden, const float* temperature, const float* noise, float* scratch, int64_t* tokens) {
  const Recurrence heads{s, team, begin, end, scratch + begin * Recurrence::room(s)};
  for (int64_t b = begin; b < end; b++)
    std::memcpy(heads.state + (b - begin) * s.size_d, hidden + (b * s.width + index[b]) * s.size_d, s.size_d * sizeof(float));
  for (int64_t h = 0; h < count; h++) {
    int64_t* own_tokens = tokens + begin * count + h;
    if (h) heads.advance(own_tokens - 1, count);
    else heads.advance(first + begin, 1);
    heads.choose(temperature ? temperature + begin * count + h : nullptr,
                 noise ? noise + (begin * count + h) * s.vocabulary : nullptr, own_tokens, count);
  }
}

// Floats of scratch per row that `propose` needs.
int64_t propose_room(const Session& s, int64_t count) {
  const Heads& heads = s.heads;
  if (heads.recurrent) return Recurrence::room(s);
  const int64_t adapted = heads.adapt.panels * PANEL;
  return s.size_d + heads.count * heads.size + count * (s.size_d + adapted + s.stride) + s.vocabulary;
}

// Proposals for a team's rows: see `superres_propose`.
void propose(const Session& s, Team& team, int64_t begin, int64_t end, const int64_t* position, const int64_t* index,
             const int64_t* first, int64_t count, const float* hidden, const float* temperature, const float* noise,
             float* scratch, int64_t* tokens) {
  const Heads& heads = s.heads;
  if (heads.recurrent) {
    recur(s, team, begin, end, index, first, count, hidden, temperature, noise, scratch, tokens);
    return;
  }
  const int64_t D = s.size_d, wide = heads.count * heads.size, adapted = heads.adapt.panels * PANEL;
  const int64_t room = propose_room(s, count);
  const int64_t rows = end - begin;
  float *here = scratch + begin * room, *inner = here + rows * D, *states = inner + rows * wide;
  float *linear = states + rows * count * D, *projected = linear + rows * count * adapted, *scores = projected + rows * count * s.stride;
  for (int64_t b = begin; b < end; b++)
    std::memcpy(here + (b - begin) * D, hidden + (b * s.width + index[b]) * D, D * sizeof(float));
  Linear expand = heads.expand;
  expand.panels = (count * heads.size + PANEL - 1) / PANEL;
  apply(expand, team, here, D, rows, inner, wide, RELU);
  team.share(count, [=, &s](int64_t from, int64_t to) {
    const Heads& heads = s.heads;
    const int64_t D = s.size_d;
    Team alone;
    for (int64_t h = from; h < to; h++) {
      for (int64_t r = 0; r < rows; r++) std::memcpy(states + (r * count + h) * D, heads.bias + h * D, D * sizeof(float));
      apply(heads.contract[h], alone, inner + h * heads.size, wide, rows, states + h * D, count * D, ADD);
      for (int64_t b = begin; b < end; b++) {
        float* state = states + ((b - begin) * count + h) * D;
        const float* vectors = heads.conditioning;
        const int64_t target = within(s, position[b] + index[b] + h + 1);
        if (vectors) vectors += ((s.conditioned ? b * s.length : 0) + target) * D;
        for (int64_t i = 0; i < D; i += LANES) {
          const vec v = load(state + i) + load(here + (b - begin) * D + i);
          store(state + i, vectors ? v + load(vectors + i) : v);
        }
        normalise(state, D, heads.norm_weight, heads.norm_bias, state);
      }
    }
  });
  if (s.int8_filter.weight && !noise) {
    screened_argmax(s, team, states, rows * count, projected, tokens + begin * count, 1);
    return;
  }
  project(s, team, states, rows * count, projected);
  Team alone;
  if (heads.adaptive) apply(heads.adapt, alone, states, D, rows * count, linear, adapted, STORE);
  for (int64_t b = begin; b < end; b++) {
    const Row row{s, b, within(s, position[b] + index[b]), s.gathered + (b * s.width + index[b]) * s.features};
    for (int64_t h = 0; h < count; h++) {
      const int64_t r = (b - begin) * count + h;
      row.score(h, projected + r * s.stride, linear + r * adapted, first[b], tokens + b * count, scores);
      tokens[b * count + h] = best(s, scores, temperature ? temperature + b * count + h : nullptr,
                                   noise ? noise + (b * count + h) * s.vocabulary : nullptr);
    }
  }
}

// Iterations of a team's rows, which stop once all of these rows are complete: see `superres_iterate`.
void iterate(const Session& s, const Loop& l, Team& team, int64_t begin, int64_t end, int64_t count, int64_t following,
             int64_t* record) {
  for (int64_t n = 0; n < count; n++, record += s.batch * (2 + l.room)) {
    bool complete = true;
    for (int64_t b = begin; b < end; b++) complete = complete && l.position[b] >= l.limit[b];
    for (int64_t b = begin; b < end; b++) {
      if (complete) note(l, b, 0, record + b * (2 + l.room));  // rows of other teams may not be complete yet
      l.place[b] = l.position[b] + 1;
      std::memcpy(l.tokens + b * s.width, l.proposals + b * l.room, s.width * sizeof(int64_t));
    }
    if (complete) continue;
    step(s, team, begin, end, l.tokens, l.place, l.hidden, l.scores, uses_int8(s, l) ? l.best_tokens : nullptr);
    for (int64_t b = begin; b < end; b++) advance(s, l, b, record + b * (2 + l.room));
    const int64_t more = (n + 1 < count ? l.block_size : following) - 1;
    if (!more) continue;
    propose(s, team, begin, end, l.place, l.index, l.first, more, l.hidden, nullptr, nullptr, l.scratch, l.next);
    for (int64_t b = begin; b < end; b++)
      std::memcpy(l.proposals + b * l.room + 1, l.next + b * more, more * sizeof(int64_t));
  }
}

}  // namespace

extern "C" {

// The sizes of the structures and the offsets of their fields, as text for `layout` in build.py.
const char* superres_layout() {
  static const std::string text = layout();
  return text.c_str();
}

// Whether the processor has the int8 dot products that `Int8Filter` needs.
int64_t superres_has_int8() {
#ifdef __AVX512VNNI__
  return 1;
#else
  return 0;
#endif
}

// Whether the machine was recently too busy for several threads.
int64_t superres_busy() { return pool()->is_busy(); }

// Reads tokens [B, W] at positions [B] + 0..W-1. Writes p1's scores [B, W, V] and the hidden states [B, W, D]; with a
// numeric neighbourhood also its features, into `gathered` [B, W, N].
void superres_step(const Session* session, const int64_t* tokens, const int64_t* position, float* hidden, float* scores) {
  in_groups(*session, session->batch, [&](Team& team, int64_t begin, int64_t end) {
    step(*session, team, begin, end, tokens, position, hidden, scores, nullptr);
  });
}

// Floats of scratch per row that `superres_propose` needs.
int64_t superres_propose_room(const Session* session, int64_t count) { return propose_room(*session, count); }

// Proposes `count` tokens per row with heads p2.. at step column index[b], in order: argmax(scores / temperature + noise).
// temperature [B, count] and noise [B, count, V] are null for greedy choices. first [B] is p1's token.
void superres_propose(const Session* session, const int64_t* position, const int64_t* index, const int64_t* first,
                      int64_t count, const float* hidden, const float* temperature, const float* noise, float* scratch,
                      int64_t* tokens) {
  in_groups(*session, session->batch, [&](Team& team, int64_t begin, int64_t end) {
    propose(*session, team, begin, end, position, index, first, count, hidden, temperature, noise, scratch, tokens);
  });
}

// Does up to `count` iterations of greedy decoding, the same as superres/decoding/loop.py, until all rows are complete.
// Returns the number of iterations done. The last one proposes blocks of `following` tokens. Writes the trace of each to
// `record` [count, B, 2 + room]: position, accepted tokens, proposals.
//
// Rows do not wait for one another: a small group of rows does all its iterations before the next group starts, so that
// its key-value cache stays in the processor's cache.
int64_t superres_iterate(const Session* session, const Loop* loop, int64_t count, int64_t following, int64_t* record) {
  const Session& s = *session;
  in_groups(s, s.together, [&](Team& team, int64_t begin, int64_t end) {
    iterate(s, *loop, team, begin, end, count, following, record);
  });
  const int64_t size = 2 + loop->room;
  for (int64_t n = count; n > 0; n--)
    for (int64_t b = 0; b < s.batch; b++)
      if (record[((n - 1) * s.batch + b) * size + 1]) return n;  // something was accepted
  return 0;
}

}  // extern "C"
