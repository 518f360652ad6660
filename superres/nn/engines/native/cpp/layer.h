// The decoder's input and layers, on the rows of one team.

#pragma once

#include "attention.h"

namespace {

// The rows of one team: batch rows [begin, end), each with W columns.
struct Rows {
  const Session& s;
  Team& team;
  int64_t begin, end;
  const int64_t *tokens, *position;

  int64_t count() const { return (end - begin) * s.width; }
  float* of(float* scratch, int64_t stride) const { return scratch + begin * s.width * stride; }
  int64_t place(int64_t b, int64_t w) const { return position[b] + w; }
  int64_t inside(int64_t b, int64_t w) const { return place(b, w) < s.length ? place(b, w) : s.length - 1; }

  void normalise_all(const float* x, const float* weight, const float* bias, float* out) const {
    for (int64_t r = 0; r < count(); r++) normalise(x + r * s.size_d, s.size_d, weight, bias, out + r * s.size_d);
  }

  // The input of a sub-layer: x, normalised where norm is "pre". Each thread normalises all rows, which is faster than
  // sharing the result.
  const float* before(const float* x) const {
    static thread_local std::vector<float> own;
    if (!s.pre) return x;
    if ((int64_t)own.size() < count() * s.size_d) own.resize(count() * s.size_d);
    normalise_all(x, nullptr, nullptr, own.data());
    return own.data();
  }

  // Writes the decoder's input to x and the deviations of the tokens read from their estimates.
  void embed(float* x) const {
    const int64_t D = s.size_d;
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.width; w++, x += D) {
        const int64_t before = place(b, w) - 1;
        const int64_t row = before < 0 ? s.vocabulary * s.channels : tokens[b * s.width + w] + before % s.channels * s.vocabulary;
        const float* table = s.position_table + ((s.conditioned ? b * s.length : 0) + inside(b, w)) * D;
        for (int64_t i = 0; i < D; i += LANES) store(x + i, load(s.token_table + row * D + i) + load(table + i));
        if (s.features && before >= 0 && before < s.length) {
          const float estimate = s.estimate[b * s.length + before];
          s.deviation[b * (s.length + 2) + before] = (tokens[b * s.width + w] - estimate) / s.residual_scale;
        }
      }
  }

  // The neighbour features of a target: deviations of its neighbours, then one entry per possible number of pixels left
  // in its cell. The entry of the actual number holds their mean residual; the others are 0.
  void gather(int64_t b, int64_t place, float* features) const {
    const float* deviation = s.deviation + b * (s.length + 2);
    for (int64_t i = 0; i < s.near; i++) features[i] = deviation[s.near_table[place * s.near + i]];
    if (!s.cell_size) return;
    float spent = 0;
    int64_t left = s.cell_size;
    for (int64_t i = 0; i < s.cell_size; i++) {
      const int64_t pixel = s.cell_positions[place * s.cell_size + i];
      if (pixel < place) spent += deviation[pixel], left--;
      features[s.near + i] = 0;
    }
    features[s.near + left - 1] = (s.residual_sum[b * s.source_length + s.cell[place]] - spent) / left;
  }

  // Adds the numeric neighbourhood's vectors to x.
  void neighbourhood(float* x) const {
    float* features = of(s.gathered, s.features);
    float* wide = of(s.wide, s.filter);
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.width; w++) gather(b, inside(b, w), features + ((b - begin) * s.width + w) * s.features);
    team.share(s.first.panels, [me = *this, features, wide](int64_t first, int64_t past) {
      const Session& s = me.s;
      apply_panels(s.first, features, s.features, me.count(), wide, s.filter, STORE, first, past);
      for (int64_t b = me.begin, r = 0; b < me.end; b++)
        for (int64_t w = 0; w < s.width; w++, r++) {
          const float* bias = s.channel_bias + me.inside(b, w) % s.channels * s.filter;
          for (int64_t i = first * PANEL; i < past * PANEL; i += LANES) {
            const vec v = load(wide + r * s.filter + i) + load(bias + i);
            store(wide + r * s.filter + i, pick(v > 0.0f, v, vec{}));
          }
        }
    });
    apply(s.second, team, wide, s.filter, count(), x, s.size_d, ADD);
  }

  // Writes the keys and values of attention heads [first, last) to the cache.
  void write(const Cache& cache, const float* projected, int64_t first, int64_t last) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.width; w++) {
        const float* row = projected + ((b - begin) * s.width + w) * s.stride;
        const int64_t slot = place(b, w) % s.slots;
        for (int64_t h = first; h < last; h++) {
          const int64_t head = b * s.attention_heads + h, start = head * s.slots * size;
          const float *key = row + D + h * size, *value = row + 2 * D + h * size;
          if (cache.key_scale) {
            write_bytes(cache, head, slot, key, value);
            continue;
          }
          for (int64_t i = 0; i < size; i++) ((float*)cache.key)[start + i * s.slots + slot] = key[i];
          std::memcpy((float*)cache.value + start + slot * size, value, size * sizeof(float));
        }
      }
  }

  // Writes the key and value of an attention head to a slot of a cache of bytes.
  void write_bytes(const Cache& cache, int64_t head, int64_t slot, const float* key, const float* value) const {
    const int64_t size = s.size_d / s.attention_heads, start = head * s.slots * size;
    int8_t bytes[MAX_SIZE];
    cache.key_scale[head * s.slots + slot] = quantise(key, size, bytes).scale;
    uint32_t* keys = (uint32_t*)cache.key + start / 4 + slot;
    for (int64_t i = 0; i < size / 4; i++) {
      uint32_t four;
      std::memcpy(&four, bytes + 4 * i, sizeof four);
      keys[i * s.slots] = four ^ 0x80808080u;  // adds 128 to each byte
    }
    cache.value_scale[head * s.slots + slot] = quantise(value, size, bytes).scale;
    uint32_t* values = (uint32_t*)cache.value + start / 4 + slot / 4 * size;
    const uint32_t shift = slot % 4 * 8;
    for (int64_t i = 0; i < size; i += LANES) {
      const uvec mine = (uvec)(load_bytes(bytes + i) + 128) << shift;
      store(values + i, (load(values + i) & ~(255u << shift)) | mine);
    }
  }

  // Self-attention of attention heads [first, last), whose cache it writes first.
  void self_attention(const Layer& layer, const float* projected, float* out, int64_t first, int64_t last) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    const int64_t stride = s.slots > s.cross_slots ? s.slots : s.cross_slots;
    write(layer.self, projected, first, last);
    int64_t *from = (int64_t*)__builtin_alloca(2 * s.width * sizeof(int64_t)), *to = from + s.width;
    for (int64_t b = begin; b < end; b++) {
      for (int64_t w = 0; w < s.width; w++) {
        to[w] = place(b, w);
        const int64_t start = (to[w] / s.block_length - 1) * s.block_length;
        from[w] = start > 0 ? start : 0;
      }
      for (int64_t h = first; h < last; h++) {
        const int64_t head = b * s.attention_heads + h, row = (b - begin) * s.width;
        attend_rows(s.width, projected + row * s.stride + h * size, s.stride, {layer.self, head, s.slots, size}, s.slots, size,
                    from, to, nullptr, s.weights + head * s.width * stride, stride, out + row * D + h * size, D);
      }
    }
  }

  // Cross-attention of attention heads [first, last).
  void cross_attention(const Layer& layer, const float* query, float* out, int64_t first, int64_t last) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    const int64_t stride = s.slots > s.cross_slots ? s.slots : s.cross_slots;
    int64_t *from = (int64_t*)__builtin_alloca(2 * s.width * sizeof(int64_t)), *to = from + s.width;
    for (int64_t w = 0; w < s.width; w++) from[w] = 0, to[w] = s.cross_slots - 1;
    for (int64_t b = begin; b < end; b++)
      for (int64_t h = first; h < last; h++) {
        const int64_t head = b * s.attention_heads + h, row = (b - begin) * s.width;
        attend_rows(s.width, query + row * D + h * size, D, {layer.cross, head, s.cross_slots, size}, s.cross_slots, size, from,
                    to, s.cross_mask + b * s.cross_slots, s.weights + head * s.width * stride, stride, out + row * D + h * size,
                    D);
      }
  }

  // Projects x to `parts` vectors (queries, keys, values) of D values each, at row stride ys, and calls attend(first, last)
  // for ranges of attention heads. If a head's outputs fill whole panels, each thread projects the heads it attends with.
  template <typename Attend>
  void by_heads(const Linear& linear, int64_t parts, const float* x, float* y, int64_t ys, const Attend& attend) const {
    const int64_t D = s.size_d, heads = s.attention_heads, size = D / heads;
    if (size % PANEL) {
      project(linear, x, y, ys, STORE);
      team.share(heads, attend);
      return;
    }
    team.share(heads, [=, me = *this, linear = &linear](int64_t first, int64_t last) {
      const int64_t D = me.s.size_d, size = D / me.s.attention_heads;
      const float* read = me.before(x);
      for (int64_t part = 0; part < parts; part++)
        apply_panels(*linear, read, D, me.count(), y, ys, STORE, (part * D + first * size) / PANEL, (part * D + last * size) / PANEL);
      attend(first, last);
    });
  }

  // The product of a sub-layer's input (see `before`) [rows, D] and a weight.
  void project(const Linear& linear, const float* x, float* y, int64_t ys, Mode mode) const {
    team.share(linear.panels, [=, me = *this, linear = &linear](int64_t begin, int64_t end) {
      apply_panels(*linear, me.before(x), me.s.size_d, me.count(), y, ys, mode, begin, end);
    });
  }

  // The norm after a sub-layer; nothing where norm is "pre".
  void after(const Layer& layer, int sublayer, float* x) const {
    if (!s.pre) normalise_all(x, layer.norm_weight[sublayer], layer.norm_bias[sublayer], x);
  }

  // One decoder layer, in place on x [rows, D].
  void run(const Layer& l, float* x, Clock& clock) const {
    const int64_t D = s.size_d, n = count();
    float *wide = of(s.wide, s.filter), *projected = of(s.projected, s.stride), *attended = of(s.attended, D);
    const Layer* layer = &l;
    by_heads(l.projection, 3, x, projected, s.stride, [=, me = *this](int64_t first, int64_t last) {
      me.self_attention(*layer, projected, attended, first, last);
    });
    apply(l.output, team, attended, D, n, x, D, ADD);
    after(l, 0, x);
    if (s.cross_slots) {
      by_heads(l.cross_query, 1, x, projected, D, [=, me = *this](int64_t first, int64_t last) {
        me.cross_attention(*layer, projected, attended, first, last);
      });
      apply(l.cross_output, team, attended, D, n, x, D, ADD);
      after(l, 1, x);
    }
    clock.lap(ATTENTION);
    project(l.expand, x, wide, s.filter, RELU);
    apply(l.contract, team, wide, s.filter, n, x, D, ADD);
    after(l, 2, x);
    clock.lap(FEED_FORWARD);
  }
};

}  // namespace
