// The aligned conditioning of an image: superres/nn/image_priors.py. The threads of a team share the positions of each part.

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

// The estimate of one image, and its aligned conditioning if there are maps.
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
  static int64_t memory_size(const Encoder& e) {
    return 2 * e.length + image(e, input_channels(e)).size() + 2 * image(e, e.maps).size()
        + image(e, e.refinement.panels * PANEL).size();
  }

  Conditioning(const Encoder& e, const int64_t* source, const float* states, float* memory)
      : e(e), source(source), states(states), large((double*)memory), input(image(e, input_channels(e))), x(image(e, e.maps)),
        inner(x), taps(image(e, e.refinement.panels * PANEL)) {
    input.values = memory + 2 * e.length;
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
        double shift = e.maps ? e.refinement_bias[c] : 0;
        for (int64_t tap = 0; e.maps && tap < 9; tap++) shift += taps.at(y + tap / 3 - 1, j + tap % 3 - 1)[tap * e.channels + c];
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
    if (e.maps) condition(team, position_table, head_table);
    team.share(rows(), [=](int64_t begin, int64_t end) {
      for (int64_t y = begin; y < end; y++) me->refine(y, estimate);
    });
    if (sums) residual_sums(estimate, sums);
  }

  void condition(Team& team, float* position_table, float* head_table) const {
    const Conditioning* me = this;
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
  }
};

}  // namespace
