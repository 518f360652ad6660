// The layers of the decoder, on the rows of one team.

#pragma once

#include "attention.h"

namespace {

// The rows of one team: batch rows [begin, end), their W columns each.
struct Rows {
  const Session& s;
  const Team& team;
  int64_t begin, end;
  const int64_t *tokens, *position;

  int64_t count() const { return (end - begin) * s.width; }
  float* of(float* scratch, int64_t stride) const { return scratch + begin * s.width * stride; }
  int64_t place(int64_t b, int64_t w) const { return position[b] + w; }
  int64_t inside(int64_t b, int64_t w) const { return place(b, w) < s.length ? place(b, w) : s.length - 1; }

  // Normalises all rows of the team into `normed`; every thread does so for itself, which spares a barrier.
  const float* normed(const float* x, float* scratch, const float* weight, const float* bias) const {
    for (int64_t r = 0; r < count(); r++) normalise(x + r * s.size_d, s.size_d, weight, bias, scratch + r * s.size_d);
    return scratch;
  }

  void embed(float* x) const {
    const int64_t D = s.size_d;
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.width; w++, x += D) {
        const int64_t before = place(b, w) - 1;
        const int64_t row = before < 0 ? s.vocabulary * s.channels : tokens[b * s.width + w] + before % s.channels * s.vocabulary;
        const float* table = s.position_table + ((s.conditioned ? b * s.length : 0) + inside(b, w)) * D;
        for (int64_t i = 0; i < D; i += LANES) store(x + i, load(s.token_table + row * D + i) + load(table + i));
        if (s.numbers && before >= 0 && before < s.length) {
          const float estimate = s.estimate[b * s.length + before];
          s.deviation[b * (s.length + 2) + before] = (tokens[b * s.width + w] - estimate) / s.residual_scale;
        }
      }
  }

  // The numbers of a target: deviations of its neighbours, then its cell's remainder at the place of its pixels left.
  void gather(int64_t b, int64_t place, float* numbers) const {
    const float* deviation = s.deviation + b * (s.length + 2);
    for (int64_t i = 0; i < s.near; i++) numbers[i] = deviation[s.near_table[place * s.near + i]];
    if (!s.cell_size) return;
    float spent = 0;
    int64_t left = s.cell_size;
    for (int64_t i = 0; i < s.cell_size; i++) {
      const int64_t pixel = s.cell_positions[place * s.cell_size + i];
      if (pixel < place) spent += deviation[pixel], left--;
      numbers[s.near + i] = 0;
    }
    numbers[s.near + left - 1] = (s.budget[b * s.source_length + s.cell[place]] - spent) / left;
  }

  void neighbourhood(float* x) const {
    float* numbers = of(s.gathered, s.numbers);
    float* wide = of(s.wide, s.filter);
    if (team.rank == 0)
      for (int64_t b = begin; b < end; b++)
        for (int64_t w = 0; w < s.width; w++) gather(b, inside(b, w), numbers + ((b - begin) * s.width + w) * s.numbers);
    team.meet();
    apply(s.first, team, numbers, s.numbers, count(), wide, s.filter, STORE);
    int64_t from, to;
    team.share(s.first.panels, from, to);
    for (int64_t b = begin, r = 0; b < end; b++)
      for (int64_t w = 0; w < s.width; w++, r++) {
        const float* bias = s.channel_bias + inside(b, w) % s.channels * s.filter;
        for (int64_t i = from * PANEL; i < to * PANEL; i += LANES) {
          const vec v = load(wide + r * s.filter + i) + load(bias + i);
          store(wide + r * s.filter + i, pick(v > 0.0f, v, vec{}));
        }
      }
    team.meet();
    apply(s.second, team, wide, s.filter, count(), x, s.size_d, ADD);
    team.meet();
  }

  void write(const Cache& cache, const float* projected) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    int64_t first, last;
    team.share(s.attention_heads, first, last);
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.width; w++) {
        const float* row = projected + ((b - begin) * s.width + w) * s.stride;
        const int64_t slot = place(b, w) % s.slots;
        for (int64_t h = first; h < last; h++) {
          const int64_t start = (b * s.attention_heads + h) * s.slots * size;
          for (int64_t i = 0; i < size; i++) cache.key[start + i * s.slots + slot] = row[D + h * size + i];
          std::memcpy(cache.value + start + slot * size, row + 2 * D + h * size, size * sizeof(float));
        }
      }
  }

  // Each thread writes and reads the cache of its own attention heads.
  void self_attention(const Layer& layer, const float* projected, float* out) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    write(layer.self, projected);
    int64_t first, last, *from = (int64_t*)__builtin_alloca(2 * s.width * sizeof(int64_t)), *to = from + s.width;
    team.share(s.attention_heads, first, last);
    const int64_t stride = s.slots > s.cross_slots ? s.slots : s.cross_slots;
    for (int64_t b = begin; b < end; b++) {
      for (int64_t w = 0; w < s.width; w++) {
        to[w] = place(b, w);
        const int64_t start = (to[w] / s.block_length - 1) * s.block_length;
        from[w] = start > 0 ? start : 0;
      }
      for (int64_t h = first; h < last; h++) {
        const int64_t start = (b * s.attention_heads + h) * s.slots * size, row = (b - begin) * s.width;
        attend_rows(s.width, projected + row * s.stride + h * size, s.stride, layer.self.key + start, layer.self.value + start,
                    s.slots, size, from, to, nullptr, s.weights + (b * s.attention_heads + h) * s.width * stride, stride,
                    out + row * D + h * size, D);
      }
    }
  }

  void cross_attention(const Layer& layer, const float* query, float* out) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    int64_t first, last, *from = (int64_t*)__builtin_alloca(2 * s.width * sizeof(int64_t)), *to = from + s.width;
    team.share(s.attention_heads, first, last);
    const int64_t stride = s.slots > s.cross_slots ? s.slots : s.cross_slots;
    for (int64_t w = 0; w < s.width; w++) from[w] = 0, to[w] = s.cross_slots - 1;
    for (int64_t b = begin; b < end; b++)
      for (int64_t h = first; h < last; h++) {
        const int64_t start = (b * s.attention_heads + h) * s.cross_slots * size, row = (b - begin) * s.width;
        attend_rows(s.width, query + row * D + h * size, D, layer.cross.key + start, layer.cross.value + start,
                    s.cross_slots, size, from, to, s.cross_mask + b * s.cross_slots,
                    s.weights + (b * s.attention_heads + h) * s.width * stride, stride, out + row * D + h * size, D);
      }
  }

  // The norm after a sub-layer, where norm is "post".
  void after(const Layer& layer, int sublayer, float* x) const {
    if (s.pre) return;
    if (team.rank == 0) normed(x, x, layer.norm_weight[sublayer], layer.norm_bias[sublayer]);
    team.meet();
  }

  // Thread-private room for normalised rows: the barriers allow no thread to be a whole sub-layer ahead of another.
  float* own() const { return s.normed + team.rank * s.batch * s.width * s.size_d + begin * s.width * s.size_d; }

  const float* before(const float* x) const { return s.pre ? normed(x, own(), nullptr, nullptr) : x; }

  void run(const Layer& layer, float* x, Clock& clock) const {
    const int64_t D = s.size_d, n = count();
    float *wide = of(s.wide, s.filter), *projected = of(s.projected, s.stride), *attended = of(s.attended, D);
    apply(layer.projection, team, before(x), D, n, projected, s.stride, STORE);
    team.meet();
    self_attention(layer, projected, attended);
    team.meet();
    apply(layer.output, team, attended, D, n, x, D, ADD);
    team.meet();
    after(layer, 0, x);
    if (s.cross_slots) {
      apply(layer.cross_query, team, before(x), D, n, projected, D, STORE);
      team.meet();
      cross_attention(layer, projected, attended);
      team.meet();
      apply(layer.cross_output, team, attended, D, n, x, D, ADD);
      team.meet();
      after(layer, 1, x);
    }
    clock.lap(ATTENTION);
    apply(layer.expand, team, before(x), D, n, wide, s.filter, RELU);
    team.meet();
    apply(layer.contract, team, wide, s.filter, n, x, D, ADD);
    team.meet();
    after(layer, 2, x);
    clock.lap(FEED_FORWARD);
  }
};

}  // namespace
