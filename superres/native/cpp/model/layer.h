// The decoder's layers, on the rows of one team or on columns of them.

#pragma once

#include <algorithm>

#include "model/cache.h"

namespace {

// The residual stream of a team's rows [rows, D], whose last sub-layer is not added yet: its value is x + parts + bias, then
// normalised where norm is "post". Parts are null at the start.
struct Residual {
  const float *x, *parts, *bias, *norm_weight, *norm_bias;
  float *next_x, *next_parts;  // memory for the value, and for the parts of the next sub-layer
};

// The layers of a team's rows, or of some columns of one row, whose team is then a single thread.
//
// The attention heads and hidden units of a sub-layer form groups. Each group computes a part of the sub-layer's output, and
// parts are added in order: the result does not depend on the number of threads. A team shares the groups, so that its threads
// wait for one another once per sub-layer.
struct Layers : Rows {
  const bool whole;  // whether these are all columns of their rows

  Layers(const Rows& rows, bool whole) : Rows(rows), whole(whole) {}

  int64_t part_size() const { return s.size.batch * s.size.width * s.size.d; }  // floats from a part to the next

  // The residual stream before the first sub-layer.
  Residual residual() const {
    float *x = of(s.scratch.x, s.size.d), *parts = of(s.scratch.parts, s.size.d);
    return {x, nullptr, nullptr, nullptr, nullptr, x + part_size(), parts};
  }

  // Writes the value of the residual stream.
  void settle(const Residual& residual, float* out) const {
    const int64_t D = s.size.d, n = count(), part = part_size();
    for (int64_t r = 0; r < n; r++) {
      float* to = out + r * D;
      for (int64_t i = 0; i < D; i += LANES) {
        vec v = load(residual.x + r * D + i);
        if (residual.parts) {
          for (int64_t g = 0; g < s.size.groups; g++) v += load(residual.parts + g * part + r * D + i);
          v += load(residual.bias + i);
        }
        store(to + i, v);
      }
      if (residual.norm_weight) normalise(to, D, residual.norm_weight, residual.norm_bias, to);
    }
  }

  // A sub-layer: calls body(layers, x, first, last, parts) for ranges of groups, where x is the sub-layer's input [rows, D],
  // normalised where norm is "pre". Each thread computes x for itself, which is faster than sharing it. The parts may be
  // incomplete until the stream's value is read.
  template <typename Body>
  void sublayer(Residual& residual, const float* bias, const float* norm_weight, const float* norm_bias, const Body& body) const {
    team.share(s.size.groups, [me = *this, residual, norm_weight, norm_bias, body](int64_t first, int64_t last) {
      const int64_t size = me.count() * me.s.size.d;
      float* x = scratch<SUBLAYER_INPUT>(size);
      me.settle(residual, x);
      if (!first) std::memcpy(residual.next_x, x, size * sizeof(float));
      if (me.s.weights.pre) me.normalise_all(x, norm_weight, norm_bias, x);
      body(me, x, first, last, residual.next_parts);
    });
    float* parts = residual.next_parts;
    const int64_t half = s.size.groups * part_size();
    residual = {residual.next_x, parts, bias, s.weights.pre ? nullptr : norm_weight, norm_bias, (float*)residual.x,
                parts < of(s.scratch.parts, s.size.d) + half ? parts + half : parts - half};
  }

  // The numeric neighbourhood: a sub-layer of its own input.
  void neighbourhood(Residual& residual) const {
    float *features = of(s.scratch.gathered, s.neighbourhood.features), *wide = of(s.scratch.wide, s.size.filter);
    gather_all(*this, features);
    team.share(s.size.groups, [me = *this, features, wide, parts = residual.next_parts](int64_t first, int64_t last) {
      me.expand_features(features, wide, first, last);
      me.contract(me.s.neighbourhood.second, wide, first, last, parts);
    });
    residual.parts = residual.next_parts;
    residual.bias = s.neighbourhood.second.bias;
    residual.next_parts += s.size.groups * part_size();
  }

  // The start of a decoder layer: its self-attention; of some columns only up to the keys and values, since other threads may not
  // have written those of further columns yet.
  void begin_layer(int64_t number, Residual& residual) const {
    const Layer* layer = s.weights.layer + number;
    sublayer(residual, layer->output.bias, layer->norm_weight[0], layer->norm_bias[0],
             [=](const Layers& me, const float* x, int64_t first, int64_t last, float* parts) {
      me.project(layer->projection, 3, x, me.of(me.s.scratch.projected, me.s.size.stride), me.s.size.stride, first, last);
      if (!me.s.tree.longest) me.write_keys(number, first, last);
      if (me.whole) me.attend(number, first, last, parts);
    });
  }

  // The rest of a decoder layer, once the keys and values of all columns are in the cache.
  void end_layer(int64_t number, Residual& residual, Clock& clock) const {
    float *wide = of(s.scratch.wide, s.size.filter), *projected = of(s.scratch.projected, s.size.stride);
    float* attended = of(s.scratch.attended, s.size.d);
    const Layer* layer = s.weights.layer + number;
    LayerCache* cache = s.cache + number;
    if (!whole) attend(number, 0, s.size.groups, (float*)residual.parts);
    if (s.size.cross_slots)
      sublayer(residual, layer->cross_output.bias, layer->norm_weight[1], layer->norm_bias[1],
               [=](const Layers& me, const float* x, int64_t first, int64_t last, float* parts) {
        const int64_t heads = me.group_heads();
        me.project(layer->cross_query, 1, x, projected, me.s.size.d, first, last);
        me.cross_attention(cache->cross, projected, attended, first * heads, last * heads);
        me.contract(layer->cross_output, attended, first, last, parts);
      });
    clock.lap(ATTENTION);
    sublayer(residual, layer->contract.bias, layer->norm_weight[2], layer->norm_bias[2],
             [=](const Layers& me, const float* x, int64_t first, int64_t last, float* parts) {
      const int64_t panels = layer->expand.panels / me.s.size.groups, filter = me.s.size.filter;
      apply_panels(layer->expand, x, me.s.size.d, me.count(), wide, filter, RELU, first * panels, last * panels);
      me.contract(layer->contract, wide, first, last, parts);
    });
    clock.lap(FEED_FORWARD);
  }

 private:
  // Vectors of the attention heads of groups [first, last): queries, and keys and values if there are three parts.
  void project(const Linear& linear, int64_t parts, const float* x, float* y, int64_t ys, int64_t first, int64_t last) const {
    const int64_t D = s.size.d, panels = D / s.size.groups / PANEL;
    apply_panels(linear, x, D, count(), y, ys, STORE, first * panels, last * panels, parts);
  }

  // Groups [first, last)' parts of the product of `inner` [rows, inputs] and a weight.
  void contract(const Linear& linear, const float* inner, int64_t first, int64_t last, float* parts) const {
    const int64_t groups = s.size.groups;
    for (int64_t g = first; g < last; g++)
      apply_slice(linear, g, groups, inner + g * linear.inputs / groups, linear.inputs, count(), parts + g * part_size(),
                  s.size.d);
  }

  // Groups [first, last) of the neighbourhood's hidden units, from the features [rows, N].
  void expand_features(const float* features, float* wide, int64_t first, int64_t last) const {
    const Neighbourhood& near = s.neighbourhood;
    const int64_t filter = s.size.filter, panels = filter / PANEL / s.size.groups;
    apply_panels(near.first, features, near.features, count(), wide, filter, STORE, first * panels, last * panels);
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.size.width; w++, wide += filter) {
        const float* bias = near.channel_bias + inside(b, w) % s.size.channels * filter;
        for (int64_t i = first * panels * PANEL; i < last * panels * PANEL; i += LANES) {
          const vec v = load(wide + i) + load(bias + i);
          store(wide + i, pick(v > 0.0f, v, vec{}));
        }
      }
  }

  // The latest key that a query at `position` sees.
  int64_t last_visible(int64_t position) const { return position / s.size.key_distance; }

  // The first key that a query sees whose latest one is `last`.
  int64_t first_visible(int64_t last) const {
    const int64_t start = (last / s.size.block_length - 1) * s.size.block_length;
    return start > 0 ? start : 0;
  }

  // Memory for the weights of an attention head of row b, and the floats from a query's weights to the next one's.
  int64_t weights_stride() const { return std::max(s.size.slots, s.size.cross_slots); }
  float* weights_of(int64_t b, int64_t h) const {
    return s.scratch.weights + (b * s.size.attention_heads + h) * s.size.width * weights_stride();
  }

  int64_t group_heads() const { return s.size.attention_heads / s.size.groups; }

  // Writes the keys and values of groups [first, last) of a layer's self-attention to its cache.
  void write_keys(int64_t number, int64_t first, int64_t last) const {
    write_columns(*this, s.cache[number].self, of(s.scratch.projected, s.size.stride), first * group_heads(), last * group_heads());
  }

  // Groups [first, last)' parts of a layer's self-attention.
  void attend(int64_t number, int64_t first, int64_t last, float* parts) const {
    const float* projected = of(s.scratch.projected, s.size.stride);
    float* attended = of(s.scratch.attended, s.size.d);
    const int64_t from = first * group_heads(), to = last * group_heads();
    if (s.tree.longest) tree_attention(s.cache[number], projected, attended, from, to);
    else self_attention(s.cache[number].self, projected, attended, from, to);
    contract(s.weights.layer[number].output, attended, first, last, parts);
  }

  // Self-attention of attention heads [first, last).
  void self_attention(const Cache& cache, const float* projected, float* out, int64_t first, int64_t last) const {
    const int64_t D = s.size.d, W = s.size.width, stride = s.size.stride, slots = s.size.slots, size = D / s.size.attention_heads;
    int64_t *from = scratch<VISIBLE, int64_t>(2 * W), *to = from + W;
    for (int64_t b = begin; b < end; b++, projected += W * stride, out += W * D) {
      for (int64_t w = 0; w < W; w++) to[w] = last_visible(place(b, w)), from[w] = first_visible(to[w]);
      for (int64_t h = first; h < last; h++)
        attend_rows(W, projected + h * size, stride, head_of(cache, b * s.size.attention_heads + h, slots, size), slots, size, from,
                    to, nullptr, weights_of(b, h), weights_stride(), out + h * size, D);
    }
  }

  // Self-attention over a tree. The path to each column is written to the cache in turn, at its positions: so a column has
  // bit for bit the result that it has at the end of a chain. `keep_columns` writes the path that remains.
  void tree_attention(LayerCache& cache, const float* projected, float* out, int64_t first, int64_t last) const {
    const int64_t D = s.size.d, W = s.size.width, stride = s.size.stride, size = D / s.size.attention_heads;
    int64_t* written = scratch<WRITTEN, int64_t>(s.tree.longest);  // the column at each depth
    for (int64_t b = begin; b < end; b++, projected += W * stride, out += W * D)
      for (int64_t h = first; h < last; h++) {
        const int64_t head = b * s.size.attention_heads + h;
        std::fill(written, written + s.tree.longest, -1);
        for (int64_t w = 0; w < W; w++) {
          const float* query = projected + w * stride + h * size;
          float* kept = cache.columns + (b * W + w) * 2 * D + h * size;
          std::memcpy(kept, query + D, size * sizeof(float));
          std::memcpy(kept + D, query + 2 * D, size * sizeof(float));
          write_path(cache.self, b, h, w, projected, written);
          const int64_t to = last_visible(place(b, w)), from = first_visible(to);
          attend_rows(1, query, stride, head_of(cache.self, head, s.size.slots, size), s.size.slots, size, &from, &to, nullptr,
                      weights_of(b, h), weights_stride(), out + w * D + h * size, D);
        }
      }
  }

  // Writes the columns on the path to column w of row b, except those that are `written` already.
  void write_path(Cache& cache, int64_t b, int64_t h, int64_t w, const float* projected, int64_t* written) const {
    const int64_t D = s.size.d, size = D / s.size.attention_heads, *path = s.tree.ancestors + w * s.tree.longest;
    for (int64_t i = 0; i < s.tree.longest && path[i] >= 0; i++) {
      const int64_t column = path[i], depth = s.tree.depth[column];
      if (written[depth] == column) continue;
      written[depth] = column;
      const float* key = projected + column * s.size.stride + D + h * size;
      write_key(s.size, cache, b * s.size.attention_heads + h, place(b, column), key, key + D);
    }
  }

  // Cross-attention of attention heads [first, last).
  void cross_attention(const Cache& cache, const float* query, float* out, int64_t first, int64_t last) const {
    const int64_t D = s.size.d, W = s.size.width, slots = s.size.cross_slots, size = D / s.size.attention_heads;
    int64_t *from = scratch<VISIBLE, int64_t>(2 * W), *to = from + W;
    std::fill_n(from, W, 0);
    for (int64_t b = begin; b < end; b++, query += W * D, out += W * D) {
      std::fill_n(to, W, source_length(s, b) - 1);
      for (int64_t h = first; h < last; h++)
        attend_rows(W, query + h * size, D, head_of(cache, b * s.size.attention_heads + h, slots, size), slots, size, from, to,
                    nullptr, weights_of(b, h), weights_stride(), out + h * size, D);
    }
  }
};

}  // namespace
