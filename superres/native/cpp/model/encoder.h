// The encoder: its layers on the positions of a source.
//
// The order of every sum depends on the position alone, never on the batch or the number of threads. The threads of a team
// share the positions of each part, whose rows a product computes independently.

#pragma once

#include "model/cache.h"
#include "model/conditioning.h"

namespace {

// The encoder layers of one source of S positions, in place on x [S, D].
struct Source {
  const Encoder& e;
  int64_t length;     // S
  float* x;
  const float* mask;  // [slots], added to the scores of attention: 0 or -inf; or null
  float *projected, *key, *value;  // [S, 3 * D], and a layer's keys and values as in `Cache`

  int64_t slots() const { return slots(length); }
  static int64_t slots(int64_t length) { return (length + LANES - 1) / LANES * LANES; }

  // Floats that `projected`, `key` and `value` take.
  static int64_t memory_size(const Encoder& e, int64_t length) { return (3 * length + 2 * slots(length)) * e.size_d; }

  Source(const Encoder& e, int64_t length, float* x, const float* mask, float* memory)
      : e(e), length(length), x(x), mask(mask), projected(memory), key(projected + 3 * length * e.size_d),
        value(key + slots() * e.size_d) {
    // Positions past the end have weight 0, and 0 times NaN would be NaN.
    std::memset(key, 0, 2 * slots() * e.size_d * sizeof(float));
  }

  // The input of a sub-layer for positions [begin, end): x, normalised where norm is "pre".
  const float* before(const Layer& layer, int sublayer, int64_t begin, int64_t end) const {
    const int64_t D = e.size_d;
    if (!e.pre) return x + begin * D;
    float* out = scratch<INPUT_ROWS>((end - begin) * D);
    for (int64_t p = begin; p < end; p++)
      normalise(x + p * D, D, layer.norm_weight[sublayer], layer.norm_bias[sublayer], out + (p - begin) * D);
    return out;
  }

  // The norm after a sub-layer; nothing where norm is "pre".
  void after(const Layer& layer, int sublayer, int64_t begin, int64_t end) const {
    const int64_t D = e.size_d;
    for (int64_t p = begin; !e.pre && p < end; p++)
      normalise(x + p * D, D, layer.norm_weight[sublayer], layer.norm_bias[sublayer], x + p * D);
  }

  // Projects positions [begin, end) to queries, keys and values.
  void project(const Layer& layer, int64_t begin, int64_t end) const {
    const int64_t D = e.size_d;
    const Linear& linear = layer.projection;
    apply_panels(linear, before(layer, 0, begin, end), D, end - begin, projected + begin * 3 * D, 3 * D, STORE, 0, linear.panels);
    write_positions(projected + D, 3 * D, D, e.attention_heads, slots(), begin, end, key, value);
  }

  // Attention and feed-forward of positions [begin, end), whose output replaces x.
  void transform(const Layer& layer, int64_t begin, int64_t end) const {
    const int64_t D = e.size_d, size = D / e.attention_heads, rows = end - begin;
    float *attended = scratch<WIDE_ROWS>(rows * (D > e.filter ? D : e.filter));
    float *weights = scratch<SCORE_ROWS>(MAX_ROWS * slots());
    int64_t from[MAX_ROWS], last[MAX_ROWS];
    for (int r = 0; r < MAX_ROWS; r++) from[r] = 0, last[r] = length - 1;
    for (int64_t h = 0; h < e.attention_heads; h++)
      for (int64_t r = 0; r < rows; r += MAX_ROWS)
        attend_rows(rows - r < MAX_ROWS ? rows - r : MAX_ROWS, projected + (begin + r) * 3 * D + h * size, 3 * D,
                    head_of({key, value, nullptr, nullptr}, h, slots(), size), slots(), size, from, last, mask, weights, slots(),
                    attended + r * D + h * size, D);
    apply_panels(layer.output, attended, D, rows, x + begin * D, D, ADD, 0, layer.output.panels);
    after(layer, 0, begin, end);
    float* wide = attended;
    apply_panels(layer.expand, before(layer, 2, begin, end), D, rows, wide, e.filter, RELU, 0, layer.expand.panels);
    apply_panels(layer.contract, wide, e.filter, rows, x + begin * D, D, ADD, 0, layer.contract.panels);
    after(layer, 2, begin, end);
  }

  // All layers and the final norm, into states [S, D].
  void encode(Team& team, float* states) const {
    for (int64_t l = 0; l < e.layers; l++) {
      const Layer* layer = e.layer + l;
      team.share(length, [=, me = this](int64_t begin, int64_t end) { me->project(*layer, begin, end); });
      team.share(length, [=, me = this](int64_t begin, int64_t end) { me->transform(*layer, begin, end); });
    }
    if (e.final_weight)
      for (int64_t p = 0; p < length; p++)
        normalise(x + p * e.size_d, e.size_d, e.final_weight, e.final_bias, states + p * e.size_d);
    else std::memcpy(states, x, length * e.size_d * sizeof(float));
  }
};

// Encodes source b of the batch: see `superres_encode`.
void encode(const Encoder& e, const Encoded& out, Team& team, const int64_t* sources, int64_t b) {
  const int64_t S = out.lengths[b], D = e.size_d, *source = sources + b * out.stride;
  const int64_t layers = Source::memory_size(e, S), image = out.estimate ? Conditioning::memory_size(e) : 0;
  float *x = scratch<SHARED>(S * D + (layers > image ? layers : image)), *memory = x + S * D;
  float* states = out.states + b * out.positions * D;
  for (int64_t p = 0; p < S; p++) {
    const float* embedding = e.token_table + (source[p] + p % e.channels * e.vocabulary) * D;
    for (int64_t i = 0; i < D; i += LANES) store(x + p * D + i, load(embedding + i) + load(e.source_signal + p * D + i));
  }
  Source(e, S, x, nullptr, memory).encode(team, states);
  if (out.estimate) Conditioning(e, source, states, memory).run(
      team, past(out.position_table, b * e.length * D), past(out.head_table, b * e.length * D), out.estimate + b * e.length,
      past(out.residual_sum, b * S));
}

}  // namespace
