// The decoder's input and layers, on the rows of one team.

#pragma once

#include <algorithm>

#include "model/linear.h"

namespace {

// The residual stream of a team's rows [rows, D], whose last sub-layer is not added yet: its value is x + parts + bias, then
// normalised where norm is "post". Parts are null at the start.
struct Residual {
  const float *x, *parts, *bias, *norm_weight, *norm_bias;
  float *next_x, *next_parts;  // memory for the value, and for the parts of the next sub-layer
};

// The rows of one team: batch rows [begin, end), each with W columns.
//
// The groups of a sub-layer (attention heads, or hidden units) are shared by the threads. Each group computes a part of the
// sub-layer's output, so that threads wait for one another once per sub-layer. Parts are added in order: the result does not
// depend on the number of threads.
struct Rows {
  const Session& s;
  Team& team;
  int64_t begin, end;
  const int64_t *tokens, *position;

  int64_t count() const { return (end - begin) * s.width; }
  float* of(float* scratch, int64_t stride) const { return scratch + begin * s.width * stride; }
  int64_t place(int64_t b, int64_t w) const { return position[b] + (s.tree.longest ? s.tree.depth[w] : w); }
  int64_t inside(int64_t b, int64_t w) const { return place(b, w) < s.length ? place(b, w) : s.length - 1; }
  int64_t part_size() const { return s.batch * s.width * s.size_d; }  // floats from a part to the next

  void normalise_all(const float* x, const float* weight, const float* bias, float* out) const {
    for (int64_t r = 0; r < count(); r++) normalise(x + r * s.size_d, s.size_d, weight, bias, out + r * s.size_d);
  }

  // The residual stream before the first sub-layer.
  Residual residual() const {
    const int64_t half = part_size();
    float *x = of(s.x, s.size_d), *parts = of(s.parts, s.size_d);
    return {x, nullptr, nullptr, nullptr, nullptr, x + half, parts};
  }

  // Writes the value of the residual stream.
  void settle(const Residual& residual, float* out) const {
    const int64_t D = s.size_d, n = count(), part = part_size();
    for (int64_t r = 0; r < n; r++) {
      float* to = out + r * D;
      for (int64_t i = 0; i < D; i += LANES) {
        vec v = load(residual.x + r * D + i);
        if (residual.parts) {
          for (int64_t g = 0; g < s.groups; g++) v += load(residual.parts + g * part + r * D + i);
          v += load(residual.bias + i);
        }
        store(to + i, v);
      }
      if (residual.norm_weight) normalise(to, D, residual.norm_weight, residual.norm_bias, to);
    }
  }

  // A sub-layer: calls body(rows, x, first, last, parts) for ranges of groups, where x is the sub-layer's input [rows, D],
  // normalised where norm is "pre". Each thread computes x for itself, which is faster than sharing it.
  template <typename Body>
  void sublayer(Residual& residual, const float* bias, const float* norm_weight, const float* norm_bias, const Body& body) const {
    team.share(s.groups, [me = *this, residual, body](int64_t first, int64_t last) {
      static thread_local std::vector<float> own;
      const int64_t size = me.count() * me.s.size_d;
      if ((int64_t)own.size() < size) own.resize(size);
      float* x = own.data();
      me.settle(residual, x);
      if (!first) std::memcpy(residual.next_x, x, size * sizeof(float));
      if (me.s.pre) me.normalise_all(x, nullptr, nullptr, x);
      body(me, x, first, last, residual.next_parts);
    });
    float* parts = residual.next_parts;
    const int64_t half = s.groups * part_size();
    residual = {residual.next_x, parts, bias, s.pre ? nullptr : norm_weight, norm_bias, (float*)residual.x,
              parts < of(s.parts, s.size_d) + half ? parts + half : parts - half};
  }

  // Groups [first, last)' parts of the product of `inner` [rows, inputs] and a weight.
  void contract(const Linear& linear, const float* inner, int64_t first, int64_t last, float* parts) const {
    for (int64_t g = first; g < last; g++)
      apply_slice(linear, g, s.groups, inner + g * linear.inputs / s.groups, linear.inputs, count(), parts + g * part_size(), s.size_d);
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

  // The numeric neighbourhood: a sub-layer of its own input.
  void neighbourhood(Residual& residual) const {
    float* features = of(s.gathered, s.features);
    float* wide = of(s.wide, s.filter);
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.width; w++) gather(b, inside(b, w), features + ((b - begin) * s.width + w) * s.features);
    team.share(s.groups, [me = *this, features, wide, parts = residual.next_parts](int64_t first, int64_t last) {
      const Session& s = me.s;
      const int64_t panels = s.filter / PANEL / s.groups;
      apply_panels(s.first, features, s.features, me.count(), wide, s.filter, STORE, first * panels, last * panels);
      for (int64_t b = me.begin, r = 0; b < me.end; b++)
        for (int64_t w = 0; w < s.width; w++, r++) {
          const float* bias = s.channel_bias + me.inside(b, w) % s.channels * s.filter;
          for (int64_t i = first * panels * PANEL; i < last * panels * PANEL; i += LANES) {
            const vec v = load(wide + r * s.filter + i) + load(bias + i);
            store(wide + r * s.filter + i, pick(v > 0.0f, v, vec{}));
          }
        }
      me.contract(s.second, wide, first, last, parts);
    });
    residual.parts = residual.next_parts;
    residual.bias = s.second.bias;
    residual.next_parts += s.groups * part_size();
  }

  // Writes the keys and values of attention heads [first, last) to the cache.
  void write(const Cache& cache, const float* projected, int64_t first, int64_t last) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.width; w++) {
        const float* row = projected + ((b - begin) * s.width + w) * s.stride;
        const int64_t slot = place(b, w) % s.slots;
        for (int64_t h = first; h < last; h++)
          write_slot(cache, b * s.attention_heads + h, slot, row + D + h * size, row + 2 * D + h * size);
      }
  }

  // Writes the key and value of an attention head to a slot of the cache.
  void write_slot(const Cache& cache, int64_t head, int64_t slot, const float* key, const float* value) const {
    const int64_t size = s.size_d / s.attention_heads, start = head * s.slots * size;
    if (!cache.key_scale) {
      for (int64_t i = 0; i < size; i++) ((float*)cache.key)[start + i * s.slots + slot] = key[i];
      std::memcpy((float*)cache.value + start + slot * size, value, size * sizeof(float));
      return;
    }
    int8_t bytes[MAX_HEAD];
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
      const uvec mine = as<uvec>(load_bytes(bytes + i) + 128) << (int)shift;
      store(values + i, (load(values + i) & uvec(~(255u << shift))) | mine);
    }
  }

  // Self-attention of attention heads [first, last), whose cache it writes first.
  void self_attention(const Layer& layer, const float* projected, float* out, int64_t first, int64_t last) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    const int64_t stride = s.slots > s.cross_slots ? s.slots : s.cross_slots;
    if (s.tree.longest) return tree_attention(layer, projected, out, first, last);
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
        attend_rows(s.width, projected + row * s.stride + h * size, s.stride, head_of(layer.self, head, s.slots, size), s.slots, size,
                    from, to, nullptr, s.weights + head * s.width * stride, stride, out + row * D + h * size, D);
      }
    }
  }

  // Self-attention over a tree. The path to each column is written to the cache in turn, at its positions: so a column has
  // bit for bit the result that it has at the end of a chain. `keep` writes the path that remains.
  void tree_attention(const Layer& layer, const float* projected, float* out, int64_t first, int64_t last) const {
    const int64_t D = s.size_d, size = D / s.attention_heads, stride = s.slots > s.cross_slots ? s.slots : s.cross_slots;
    int64_t* written = (int64_t*)__builtin_alloca(s.tree.longest * sizeof(int64_t));  // the column at each depth
    for (int64_t b = begin; b < end; b++)
      for (int64_t h = first; h < last; h++) {
        const int64_t head = b * s.attention_heads + h;
        std::fill(written, written + s.tree.longest, -1);
        for (int64_t w = 0; w < s.width; w++) {
          const float* row = projected + ((b - begin) * s.width + w) * s.stride;
          float* kept = layer.columns + (b * s.width + w) * 2 * D + h * size;
          std::memcpy(kept, row + D + h * size, size * sizeof(float));
          std::memcpy(kept + D, row + 2 * D + h * size, size * sizeof(float));
          const int64_t* path = s.tree.ancestors + w * s.tree.longest;
          for (int64_t i = 0; i < s.tree.longest && path[i] >= 0; i++) {
            const int64_t column = path[i], depth = s.tree.depth[column];
            if (written[depth] == column) continue;
            written[depth] = column;
            const float* key = projected + ((b - begin) * s.width + column) * s.stride + D + h * size;
            write_slot(layer.self, head, place(b, column) % s.slots, key, key + D);
          }
          const int64_t to = place(b, w), start = (to / s.block_length - 1) * s.block_length, from = start > 0 ? start : 0;
          attend_rows(1, row + h * size, s.stride, head_of(layer.self, head, s.slots, size), s.slots, size, &from, &to, nullptr,
                      s.weights + head * s.width * stride, stride, out + ((b - begin) * s.width + w) * D + h * size, D);
        }
      }
  }

  // Writes the keys and values of `count` columns of row b to the cache, at the row's position and after it.
  void keep(int64_t b, const int64_t* columns, int64_t count) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    for (int64_t l = 0; l < s.layers; l++)
      for (int64_t i = 0; i < count; i++) {
        const float* key = s.layer[l].columns + (b * s.width + columns[i]) * 2 * D;
        for (int64_t h = 0; h < s.attention_heads; h++)
          write_slot(s.layer[l].self, b * s.attention_heads + h, (position[b] + i) % s.slots, key + h * size,
                     key + D + h * size);
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
        attend_rows(s.width, query + row * D + h * size, D, head_of(layer.cross, head, s.cross_slots, size), s.cross_slots, size, from,
                    to, s.cross_mask + b * s.cross_slots, s.weights + head * s.width * stride, stride, out + row * D + h * size,
                    D);
      }
  }

  // One decoder layer.
  void run(const Layer& l, Residual& residual, Clock& clock) const {
    float *wide = of(s.wide, s.filter), *projected = of(s.projected, s.stride), *attended = of(s.attended, s.size_d);
    const Layer* layer = &l;
    sublayer(residual, l.output.bias, l.norm_weight[0], l.norm_bias[0],
             [=](const Rows& me, const float* x, int64_t first, int64_t last, float* parts) {
      const int64_t heads = me.s.attention_heads / me.s.groups;
      for (int64_t part = 0; part < 3; part++) me.project(layer->projection, part, x, projected, me.s.stride, first, last);
      me.self_attention(*layer, projected, attended, first * heads, last * heads);
      me.contract(layer->output, attended, first, last, parts);
    });
    if (s.cross_slots)
      sublayer(residual, l.cross_output.bias, l.norm_weight[1], l.norm_bias[1],
               [=](const Rows& me, const float* x, int64_t first, int64_t last, float* parts) {
        const int64_t heads = me.s.attention_heads / me.s.groups;
        me.project(layer->cross_query, 0, x, projected, me.s.size_d, first, last);
        me.cross_attention(*layer, projected, attended, first * heads, last * heads);
        me.contract(layer->cross_output, attended, first, last, parts);
      });
    clock.lap(ATTENTION);
    sublayer(residual, l.contract.bias, l.norm_weight[2], l.norm_bias[2],
             [=](const Rows& me, const float* x, int64_t first, int64_t last, float* parts) {
      const int64_t panels = layer->expand.panels / me.s.groups;
      apply_panels(layer->expand, x, me.s.size_d, me.count(), wide, me.s.filter, RELU, first * panels, last * panels);
      me.contract(layer->contract, wide, first, last, parts);
    });
    clock.lap(FEED_FORWARD);
  }

 private:
  // Vectors of the attention heads of groups [first, last): queries, keys or values, if `part` is 0, 1 or 2.
  void project(const Linear& linear, int64_t part, const float* x, float* y, int64_t ys, int64_t first, int64_t last) const {
    const int64_t D = s.size_d, panels = D / s.groups / PANEL, start = part * D / PANEL;
    apply_panels(linear, x, D, count(), y, ys, STORE, start + first * panels, start + last * panels);
  }
};

}  // namespace
