// Proposals of the prediction heads.

#pragma once

#include "model/recurrent.h"

namespace {

// What `propose` reads and writes: see `superres_propose`. `memory` has `propose_room` floats per row.
struct Proposals {
  const int64_t *position, *index, *first;
  int64_t count;
  const float* hidden;
  float* memory;
  int64_t* tokens;
};

// argmax(scores / temperature + noise), for `superres_propose`.
struct NoisyChoice {
  int64_t vocabulary, count;
  const float *temperature, *noise;
  const bool screens = !noise;
  static constexpr bool judges = false;

  void limit(int64_t, int64_t, const int64_t*, float*) const {}

  GumbelAt gumbel_at(int64_t, int64_t) const { return GumbelAt(nullptr, 0, 0); }

  int64_t operator()(int64_t b, int64_t h, float* scores) const {
    const int64_t r = b * count + h;
    if (noise)
      for (int64_t v = 0; v < vocabulary; v++) scores[v] = scores[v] / temperature[r] + noise[r * vocabulary + v];
    return largest_of(scores, vocabulary);
  }

  template <typename... Any>
  void judge(Any...) const {}
  bool more(int64_t) const { return true; }
};

// Multiplications from which threads share the heads' states. Fewer take less time than the wait for a thread.
constexpr int64_t SHARED_STATES = 1 << 21;

// The heads of a team's rows that do not depend on one another's states, and their memory.
struct ParallelHeads {
  Session& s;
  Team& team;
  int64_t begin, end;
  const Proposals& request;
  float *here, *inner, *states, *linear, *projected, *scores;  // of the team's rows

  static int64_t adapted(const Heads& heads) { return heads.adapt.panels * PANEL; }  // outputs of `adapt`

  // Floats of memory per row.
  static int64_t memory_size(const Session& s, int64_t count) {
    return s.size.d + s.heads.count * s.heads.size + count * (s.size.d + adapted(s.heads) + s.size.stride) + s.size.vocabulary;
  }

  ParallelHeads(Session& s, Team& team, int64_t begin, int64_t end, const Proposals& request)
      : s(s), team(team), begin(begin), end(end), request(request) {
    const int64_t rows = end - begin, count = request.count;
    here = request.memory + begin * memory_size(s, count);
    inner = here + rows * s.size.d;
    states = inner + rows * s.heads.count * s.heads.size;
    linear = states + rows * count * s.size.d;
    projected = linear + rows * count * adapted(s.heads);
    scores = projected + rows * count * s.size.stride;
  }

  // Computes the hidden layer of dense heads, which all of them read.
  void expand_all() const {
    const int64_t wide = s.heads.count * s.heads.size;
    team.share(wide / PANEL, [=, me = *this](int64_t first, int64_t past) {
      apply_panels(me.s.heads.expand, me.here, me.s.size.d, me.end - me.begin, me.inner, wide, RELU, first, past);
    });
  }

  // Computes the states of heads [from, to), shared by the team if they are wide or many.
  void compute_states(int64_t from, int64_t to) const {
    Team alone;
    const bool few = (end - begin) * (to - from) * 2 * s.size.d * s.heads.size < SHARED_STATES;
    (few ? alone : team).share(to - from, [=, me = *this](int64_t first, int64_t past) {
      const Heads& heads = me.s.heads;
      const int64_t wide = heads.count * heads.size, panels = heads.size / PANEL;
      if (!heads.dense)
        apply_panels(heads.expand, me.here, me.s.size.d, me.end - me.begin, me.inner, wide, RELU, (from + first) * panels,
                     (from + past) * panels);
      for (int64_t h = from + first; h < from + past; h++) me.compute_state(h);
    });
  }

  // Chooses all tokens by the int8 filter.
  template <typename Choose>
  void screen(const Choose& choose) const {
    const int64_t count = request.count;
    const auto gumbel_at = [=, &choose, first = begin](int64_t r) { return choose.gumbel_at(first + r / count, r % count); };
    screened_argmax(s, team, states, (end - begin) * count, projected, request.tokens + begin * count, 1, gumbel_at);
  }

  // Projects the states of heads [from, to).
  void project_states(int64_t from, int64_t to) const {
    // The states of all heads are consecutive; those of some heads are consecutive within a row only.
    const int64_t rows = end - begin, parts = to - from == request.count ? 1 : rows, each = rows * (to - from) / parts;
    const int64_t D = s.size.d, outputs = adapted(s.heads);
    Team alone;
    for (int64_t part = 0; part < parts; part++) {
      const int64_t r = part * request.count + from;
      project(s, team, states + r * D, each, projected + r * s.size.stride);
      if (s.heads.earlier) apply(s.heads.adapt, alone, states + r * D, D, each, linear + r * outputs, outputs, STORE);
    }
  }

  // Chooses the tokens of head p(h + 2) by its scores.
  template <typename Choose>
  void choose_tokens(int64_t h, const Choose& choose) const {
    for (int64_t b = begin; b < end; b++) {
      const int64_t r = (b - begin) * request.count + h, column = request.index[b];
      int64_t* tokens = request.tokens + b * request.count;
      const float *own = projected + r * s.size.stride, *weights = linear + r * adapted(s.heads);
      const ProposingPlace place{s, b, within(s.size, request.position[b] + column),
                                 s.scratch.gathered + (b * s.size.width + column) * s.neighbourhood.features};
      const float centre = place.score(h, own, weights, request.first[b], tokens, scores);
      choose.limit(b, h, tokens, scores);
      tokens[h] = choose(b, h, scores);
      if (choose.judges) choose.judge(b, h, centre, sharpness_of(s.size, s.ordinal, own), tokens[h]);
    }
  }

 private:
  // Computes the state of head p(h + 2) for all rows.
  void compute_state(int64_t h) const {
    const Heads& heads = s.heads;
    const int64_t D = s.size.d, count = request.count, rows = end - begin, own_units = heads.dense ? 0 : heads.size;
    Team alone;
    for (int64_t r = 0; r < rows; r++) std::memcpy(states + (r * count + h) * D, heads.bias + h * D, D * sizeof(float));
    apply(heads.contract[h], alone, inner + h * own_units, heads.count * heads.size, rows, states + h * D, count * D, ADD);
    for (int64_t b = begin; b < end; b++) {
      float* state = states + ((b - begin) * count + h) * D;
      const float* vectors = heads.conditioning;
      const int64_t target = within(s.size, request.position[b] + request.index[b] + h + 1);
      if (vectors) vectors += ((s.input.conditioned ? b * s.size.length : 0) + target) * D;
      for (int64_t i = 0; i < D; i += LANES) {
        const vec v = load(state + i) + load(here + (b - begin) * D + i);
        store(state + i, vectors ? v + load(vectors + i) : v);
      }
      normalise(state, D, heads.norm_weight, heads.norm_bias, state);
    }
  }
};

// Floats of memory per row that `propose` needs.
int64_t propose_room(const Session& s, int64_t count) {
  return s.heads.recurrent ? Recurrence::memory_size(s) : ParallelHeads::memory_size(s, count);
}

// Copies the states that heads read: of each row, that of the column at which it proposes.
void read_states(const Session& s, int64_t begin, int64_t end, const Proposals& request, float* states) {
  const int64_t D = s.size.d;
  for (int64_t b = begin; b < end; b++, states += D)
    std::memcpy(states, request.hidden + (b * s.size.width + request.index[b]) * D, D * sizeof(float));
}

template <typename Choose>
int64_t propose_in_turn(Session& s, Team& team, int64_t begin, int64_t end, const Proposals& request, const Choose& choose) {
  const Recurrence heads{s, team, begin, end, request.memory + begin * Recurrence::memory_size(s)};
  read_states(s, begin, end, request, heads.state);
  if (!choose.more(1)) return 0;
  for (int64_t h = 0; h < request.count; h++) {
    int64_t* tokens = request.tokens + begin * request.count + h;
    if (h) heads.advance(tokens - 1, request.count);
    else heads.advance(request.first + begin, 1);
    heads.choose(h, choose, tokens, request.count);
    if (!choose.more(h + 2)) return h + 1;
  }
  return request.count;
}

// Proposals for a team's rows. choose(b, h, scores) returns the token of row b and head p(h + 2), after choose.limit(b, h, tokens
// of the heads before, scores). `choose.screens` says whether it is an argmax, with noise from choose.gumbel_at(b, h) or without.
// If `choose.judges`, choose.judge(...) reads each proposal, and choose.more(n) says whether more than n tokens of a block may
// pay. Returns how many proposals each row has.
template <typename Choose>
int64_t propose(Session& s, Team& team, int64_t begin, int64_t end, const Proposals& request, const Choose& choose) {
  if (s.heads.recurrent) return propose_in_turn(s, team, begin, end, request, choose);
  const ParallelHeads heads{s, team, begin, end, request};
  const int64_t count = request.count, at_once = choose.judges ? 1 : count;  // heads; sharing one costs more than it saves
  read_states(s, begin, end, request, heads.here);
  if (!choose.more(1)) return 0;
  if (s.heads.dense) heads.expand_all();
  for (int64_t from = 0; from < count; from += at_once) {
    const int64_t to = std::min(from + at_once, count);
    heads.compute_states(from, to);
    if (s.weights.int8_filter.product.weight && choose.screens) {
      heads.screen(choose);
      return count;
    }
    heads.project_states(from, to);
    for (int64_t h = from; h < to; h++) {
      heads.choose_tokens(h, choose);
      if (!choose.more(h + 2)) return h + 1;
    }
  }
  return count;
}

}  // namespace
