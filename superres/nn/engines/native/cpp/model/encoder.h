// The encoder: its layers on the positions of a source, and the aligned conditioning of an image.
//
// The order of every sum depends on the position alone, never on the batch or the number of threads. The threads of a team
// share the positions of each part, whose rows a product computes independently.

#pragma once

#include "kernels/convolution.h"
#include "model/linear.h"

namespace {

constexpr int64_t TILES = 16;  // tiles per product: their values stay in the second-level cache

// A 3x3 convolution as 36 products of transformed tiles and transformed weights. `to` must not be `from`.
void convolve(Team& team, const Linear* products, const float* bias, const Maps& from, const Maps& to, Mode mode) {
  team.share(from.tiles(), [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t += TILES) {
      const int64_t count = t + TILES < end ? TILES : end - t;
      const auto multiply = [&](int k, const float* v, float* m) {
        apply_panels(products[k], v, from.channels, count, m, to.channels, STORE, 0, products[k].panels);
      };
      convolve_tiles(multiply, bias, from, to, mode, t, t + count);
    }
  });
}

// Writes the keys and values of positions [begin, end) to one row of a cache. A position's keys [D] are at `keys`, row stride
// `stride`, and its values [D] follow them.
void write_positions(const float* keys, int64_t stride, int64_t D, int64_t heads, int64_t slots, int64_t begin, int64_t end,
                     float* key, float* value) {
  const int64_t size = D / heads;
  for (int64_t i = 0; i < D; i++)
    for (int64_t p = begin; p < end; p++) key[i * slots + p] = keys[p * stride + i];
  for (int64_t p = begin; p < end; p++)
    for (int64_t h = 0; h < heads; h++)
      std::memcpy(value + (h * slots + p) * size, keys + p * stride + D + h * size, size * sizeof(float));
}

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
  static int64_t room(const Encoder& e, int64_t length) { return (3 * length + 2 * slots(length)) * e.size_d; }

  Source(const Encoder& e, int64_t length, float* x, const float* mask, float* room)
      : e(e), length(length), x(x), mask(mask), projected(room), key(projected + 3 * length * e.size_d),
        value(key + slots() * e.size_d) {
    // Positions past the end have weight 0, and 0 times NaN would be NaN.
    std::memset(key, 0, 2 * slots() * e.size_d * sizeof(float));
  }

  // The input of a sub-layer for positions [begin, end): x, normalised where norm is "pre".
  const float* before(int64_t begin, int64_t end) const {
    const int64_t D = e.size_d;
    if (!e.pre) return x + begin * D;
    float* out = scratch<INPUT_ROWS>((end - begin) * D);
    for (int64_t p = begin; p < end; p++) normalise(x + p * D, D, nullptr, nullptr, out + (p - begin) * D);
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
    apply_panels(linear, before(begin, end), D, end - begin, projected + begin * 3 * D, 3 * D, STORE, 0, linear.panels);
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
    apply_panels(layer.expand, before(begin, end), D, rows, wide, e.filter, RELU, 0, layer.expand.panels);
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

// The aligned conditioning of one image.
struct Conditioning {
  const Encoder& e;
  const int64_t* source;  // [S]
  const float* states;    // [S, D]
  double* large;          // bicubic enlargement [T]
  Maps input, x, inner;   // maps and enlargement; maps; maps within a block
  Maps taps;              // the refinement's products with the weights of each tap

  int64_t rows() const { return e.rows * e.height; }
  int64_t columns() const { return e.columns * e.width; }
  static int64_t input_channels(const Encoder& e) { return e.maps + (e.channels + LANES - 1) / LANES * LANES; }

  static Maps image(const Encoder& e, int64_t channels) { return {e.rows * e.height, e.columns * e.width, channels, nullptr}; }

  // Floats of memory that an image takes.
  static int64_t room(const Encoder& e) {
    return 2 * e.length + image(e, input_channels(e)).size() + 2 * image(e, e.maps).size()
        + image(e, e.refinement.panels * PANEL).size();
  }

  Conditioning(const Encoder& e, const int64_t* source, const float* states, float* room)
      : e(e), source(source), states(states), large((double*)room), input(image(e, input_channels(e))), x(image(e, e.maps)),
        inner(x), taps(image(e, e.refinement.panels * PANEL)) {
    input.values = room + 2 * e.length;
    x.values = input.values + input.size();
    inner.values = x.values + x.size();
    taps.values = inner.values + inner.size();
    for (const Maps* maps : {&input, &x, &inner, &taps}) maps->clear_border();
  }

  // Enlarges target row y, as input of the network too.
  void enlarge(int64_t y) const {
    const int64_t channels = e.channels, across = e.columns * channels;
    double* line = (double*)scratch<INPUT_ROWS>(2 * across);
    for (int64_t i = 0; i < across; i++) {
      line[i] = 0;
      for (int64_t r = 0; r < e.rows; r++) line[i] += e.row_weights[y * e.rows + r] * source[r * across + i];
    }
    for (int64_t j = 0; j < columns(); j++) {
      float* known = input.at(y, j) + e.maps;
      std::memset(known, 0, (input.channels - e.maps) * sizeof(float));
      for (int64_t c = 0; c < channels; c++) {
        double value = 0;
        for (int64_t k = 0; k < e.columns; k++) value += e.column_weights[j * e.columns + k] * line[k * channels + c];
        value = value < 0 ? 0 : value > e.vocabulary - 1 ? e.vocabulary - 1 : value;
        large[(y * columns() + j) * channels + c] = value;
        known[c] = (float)(value / 128 - 1);
      }
    }
  }

  // Brings the states of all cells to the maps of one position within the cells.
  void shuffle(int64_t inside) const {
    const int64_t cells = e.rows * e.columns, size = e.channels * e.size_d, panels = e.maps / PANEL;
    float* rows = scratch<WIDE_ROWS>(cells * e.maps);
    apply_panels(e.shuffle, states, size, cells, rows - inside * e.maps, e.maps, STORE, inside * panels, (inside + 1) * panels);
    for (int64_t r = 0; r < e.rows; r++)
      for (int64_t c = 0; c < e.columns; c++)
        std::memcpy(input.at(r * e.height + inside / e.width, c * e.width + inside % e.width),
                    rows + (r * e.columns + c) * e.maps, e.maps * sizeof(float));
  }

  // The position tables of target row y, and its refinement's products.
  void tables(int64_t y, float* position_table, float* head_table) const {
    const int64_t across = e.channels * e.size_d, row = y * columns() * across;
    apply_panels(e.refinement, x.at(y, 0), e.maps, columns(), taps.at(y, 0), taps.channels, STORE, 0, e.refinement.panels);
    float* positive = scratch<INPUT_ROWS>(columns() * e.maps);
    for (int64_t i = 0; i < columns() * e.maps; i += LANES) {
      const vec v = load(x.at(y, 0) + i);
      store(positive + i, pick(v > 0.0f, v, vec{}));
    }
    std::memcpy(position_table + row, e.signal + row, columns() * across * sizeof(float));
    apply_panels(e.vectors, positive, e.maps, columns(), position_table + row, across, ADD, 0, e.vectors.panels);
    if (head_table)
      apply_panels(e.head_vectors, positive, e.maps, columns(), head_table + row, across, STORE, 0, e.head_vectors.panels);
  }

  // The estimate of target row y.
  void refine(int64_t y, float* estimate) const {
    for (int64_t j = 0; j < columns(); j++)
      for (int64_t c = 0; c < e.channels; c++) {
        double shift = e.refinement_bias[c];
        for (int64_t tap = 0; tap < 9; tap++) shift += taps.at(y + tap / 3 - 1, j + tap % 3 - 1)[tap * e.channels + c];
        const int64_t place = (y * columns() + j) * e.channels + c;
        estimate[place] = (float)(large[place] + shift * e.residual_scale);
      }
  }

  // What the deviations of each cell must add up to.
  void residual_sums(const float* estimate, float* sums) const {
    for (int64_t s = 0; s < e.source_length; s++) {
      const int64_t r = s / (e.columns * e.channels), rest = s % (e.columns * e.channels);
      float sum = 0;
      for (int64_t i = 0; i < e.height; i++)
        for (int64_t j = 0; j < e.width; j++) {
          const int64_t column = rest / e.channels * e.width + j;
          sum += source[s] - estimate[((r * e.height + i) * columns() + column) * e.channels + rest % e.channels];
        }
      sums[s] = sum / e.residual_scale;
    }
  }

  void run(Team& team, float* position_table, float* head_table, float* estimate, float* sums) const {
    const Conditioning* me = this;
    team.share(rows(), [=](int64_t begin, int64_t end) {
      for (int64_t y = begin; y < end; y++) me->enlarge(y);
    });
    team.share(e.height * e.width, [=](int64_t begin, int64_t end) {
      for (int64_t inside = begin; inside < end; inside++) me->shuffle(inside);
    });
    const auto convolution = [&](int64_t number, const Maps& from, const Maps& to, Mode mode) {
      convolve(team, e.products + number * POINTS * POINTS, e.biases + number * e.maps, from, to, mode);
    };
    convolution(0, input, x, STORE);
    for (int64_t block = 0; block < e.blocks; block++) {
      convolution(1 + 2 * block, x, inner, RELU);
      convolution(2 + 2 * block, inner, x, ADD);
    }
    team.share(rows(), [=](int64_t begin, int64_t end) {
      for (int64_t y = begin; y < end; y++) me->tables(y, position_table, head_table);
    });
    team.share(rows(), [=](int64_t begin, int64_t end) {
      for (int64_t y = begin; y < end; y++) me->refine(y, estimate);
    });
    if (sums) residual_sums(estimate, sums);
  }
};

// Gathers the weights of row b's shortlist.
void gather_shortlist(const Session& s, int64_t b) {
  const Shortlist& list = s.heads.shortlist;
  const int64_t groups = s.size_d / 4;
  const Linear& all = s.int8_filter.product;
  for (int64_t i = 0; i < list.count; i++) {
    const int64_t place = b * list.count + i, token = list.tokens[place];
    list.bias[place] = token < 0 ? -INFINITY : all.bias[token];
    list.scale[place] = token < 0 ? 0 : all.scale[token];
    if (token < 0) continue;  // its products times 0 leave -inf
    const uint32_t* row = (const uint32_t*)(list.known + token * s.size_d);
    uint32_t* to = (uint32_t*)list.weight + (b * list.count + i / PANEL * PANEL) * groups + i % PANEL;
    for (int64_t g = 0; g < groups; g++) to[g * PANEL] = row[g];
  }
}

// Writes the keys and values of cross-attention to row b of the caches of all layers, and of recurrent heads: those of the
// states [batch, cross_slots, D].
void remember(const Session& s, const float* states, int64_t b) {
  const int64_t S = s.cross_slots, D = s.size_d;
  float* projected = scratch<WIDE_ROWS>(S * 2 * D);
  const auto write = [=, &s](const Linear& linear, const Cache& cache) {
    apply_panels(linear, states + b * S * D, D, S, projected, 2 * D, STORE, 0, linear.panels);
    write_positions(projected, 2 * D, D, s.attention_heads, S, 0, S, (float*)cache.key + b * S * D,
                    (float*)cache.value + b * S * D);
  };
  for (int64_t l = 0; l < s.layers; l++) write(s.layer[l].cross_source, s.layer[l].cross);
  if (s.heads.recurrent) write(s.heads.cross_source, s.heads.cross);
  if (s.heads.shortlist.count) gather_shortlist(s, b);
}

// Encodes source b of the batch: see `superres_encode`.
void encode(const Encoder& e, const Encoded& out, Team& team, const int64_t* sources, int64_t b) {
  const int64_t S = out.lengths[b], D = e.size_d, *source = sources + b * out.stride;
  const int64_t layers = Source::room(e, S), image = out.position_table ? Conditioning::room(e) : 0;
  float *x = scratch<SHARED>(S * D + (layers > image ? layers : image)), *room = x + S * D;
  float* states = out.states + b * out.positions * D;
  for (int64_t p = 0; p < S; p++) {
    const float* embedding = e.token_table + (source[p] + p % e.channels * e.vocabulary) * D;
    for (int64_t i = 0; i < D; i += LANES) store(x + p * D + i, load(embedding + i) + load(e.source_signal + p * D + i));
  }
  Source(e, S, x, nullptr, room).encode(team, states);
  if (out.position_table) Conditioning(e, source, states, room).run(
      team, out.position_table + b * e.length * D, out.head_table ? out.head_table + b * e.length * D : nullptr,
      out.estimate + b * e.length, out.residual_sum ? out.residual_sum + b * S : nullptr);
}

}  // namespace
