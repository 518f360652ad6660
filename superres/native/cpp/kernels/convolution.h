// 3x3 convolutions of images, channels last.

#pragma once

#include "abi.h"
#include "kernels/products.h"
#include "runtime/scratch.h"

namespace {

// Convolutions by Winograd's F(4x4, 3x3): each tile of 4 x 4 outputs is computed from the values of a polynomial product at
// 6 x 6 points. The points 0, +-NEAR, +-FAR and infinity have smaller rounding errors than the usual 0, +-1, +-2.
constexpr int TILE = 4, POINTS = TILE + 2;
constexpr float NEAR = NEAR_EIGHTHS / 8.0f, FAR = FAR_EIGHTHS / 8.0f, NEAR_2 = NEAR * NEAR, FAR_2 = FAR * FAR;

// The values of a row or column of six inputs at the points.
ALWAYS_INLINE void to_points(const vec* d, vec* v) {
  const vec near_even = d[4] - FAR_2 * d[2], near_odd = NEAR * (d[3] - FAR_2 * d[1]);
  const vec far_even = d[4] - NEAR_2 * d[2], far_odd = FAR * (d[3] - NEAR_2 * d[1]);
  v[0] = NEAR_2 * FAR_2 * d[0] - (NEAR_2 + FAR_2) * d[2] + d[4];
  v[1] = near_even + near_odd;
  v[2] = near_even - near_odd;
  v[3] = far_even + far_odd;
  v[4] = far_even - far_odd;
  v[5] = NEAR_2 * FAR_2 * d[1] - (NEAR_2 + FAR_2) * d[3] + d[5];
}

// The four outputs of a row or column from the products at the points.
ALWAYS_INLINE void from_points(const vec* m, vec* y) {
  const vec near_sum = m[1] + m[2], near_difference = m[1] - m[2], far_sum = m[3] + m[4], far_difference = m[3] - m[4];
  y[0] = m[0] + near_sum + far_sum;
  y[1] = NEAR * near_difference + FAR * far_difference;
  y[2] = NEAR_2 * near_sum + FAR_2 * far_sum;
  y[3] = NEAR_2 * NEAR * near_difference + FAR_2 * FAR * far_difference + m[5];
}

// Maps of an image, channels last, in whole tiles with a border of zeros around the image.
struct Maps {
  int64_t rows, columns, channels;
  float* values;
  int64_t across() const { return (columns + TILE - 1) / TILE; }
  int64_t tiles() const { return (rows + TILE - 1) / TILE * across(); }
  int64_t wide() const { return across() * TILE + 2; }
  int64_t high() const { return (rows + TILE - 1) / TILE * TILE + 2; }
  int64_t size() const { return high() * wide() * channels; }
  float* at(int64_t row, int64_t column) const { return values + ((row + 1) * wide() + column + 1) * channels; }

  void clear_border() const {
    const int64_t right = wide() - 1 - columns;
    for (int64_t y = -1; y < high() - 1; y++) {
      const bool inside = y >= 0 && y < rows;
      std::memset(at(y, -1), 0, (inside ? 1 : wide()) * channels * sizeof(float));
      if (inside) std::memset(at(y, columns), 0, right * channels * sizeof(float));
    }
  }
};

// Convolves tiles [begin, end). multiply(k, v, m) writes the products m [end - begin, to.channels] of the values
// v [end - begin, from.channels] at point k and the transformed weights there. `to` must not be `from`.
template <typename Multiply>
void convolve_tiles(const Multiply& multiply, const float* bias, const Maps& from, const Maps& to, Mode mode, int64_t begin,
                    int64_t end) {
  const int64_t in = from.channels, out = to.channels;
  // The spare vector keeps the 36 rows that one tile writes out of the same set of the first-level cache.
  const int64_t vs = (end - begin) * in + LANES, ms = (end - begin) * out + LANES;
  float *v = scratch<SPECTRUM>(POINTS * POINTS * vs), *m = scratch<TRANSFORMED>(POINTS * POINTS * ms);
  for (int64_t t = begin; t < end; t++) {
    const float* corner = from.at(t / from.across() * TILE - 1, t % from.across() * TILE - 1);
    for (int64_t c = 0; c < in; c += LANES) {
      vec half[POINTS][POINTS];
      for (int j = 0; j < POINTS; j++) {
        vec column[POINTS], values[POINTS];
        for (int i = 0; i < POINTS; i++) column[i] = load(corner + (i * from.wide() + j) * in + c);
        to_points(column, values);
        for (int i = 0; i < POINTS; i++) half[i][j] = values[i];
      }
      for (int i = 0; i < POINTS; i++) {
        vec values[POINTS];
        to_points(half[i], values);
        for (int j = 0; j < POINTS; j++) store(v + (i * POINTS + j) * vs + (t - begin) * in + c, values[j]);
      }
    }
  }
  for (int k = 0; k < POINTS * POINTS; k++) multiply(k, v + k * vs, m + k * ms);
  for (int64_t t = begin; t < end; t++) {
    const int64_t top = t / to.across() * TILE, left = t % to.across() * TILE;
    for (int64_t c = 0; c < out; c += LANES) {
      vec half[TILE][POINTS];
      for (int j = 0; j < POINTS; j++) {
        vec column[POINTS], values[TILE];
        for (int i = 0; i < POINTS; i++) column[i] = load(m + (i * POINTS + j) * ms + (t - begin) * out + c);
        from_points(column, values);
        for (int i = 0; i < TILE; i++) half[i][j] = values[i];
      }
      for (int i = 0; i < TILE && top + i < to.rows; i++) {
        vec values[TILE];
        from_points(half[i], values);
        for (int j = 0; j < TILE && left + j < to.columns; j++) {
          float* place = to.at(top + i, left + j) + c;
          vec y = values[j] + load(bias + c);
          if (mode == RELU) y = pick(y > 0.0f, y, vec{});
          if (mode == ADD) y += load(place);
          store(place, y);
        }
      }
    }
  }
}

}  // namespace
