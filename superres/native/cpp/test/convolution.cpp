// Tests of kernels/convolution.h.

#include <algorithm>

#include "kernels/convolution.h"
#include "test/check.h"

namespace {

// The weights of a 3-tap filter at the six points: its values as a polynomial, divided by what the transforms of the inputs
// multiply by.
void filter_at_points(const double* filter, double* at) {
  const double points[] = {0, NEAR, -NEAR, FAR, -FAR};
  for (int i = 0; i < 5; i++) {
    double factor = 1;
    for (int j = 0; j < 5; j++) factor *= i == j ? 1 : points[i] - points[j];
    at[i] = (filter[0] + filter[1] * points[i] + filter[2] * points[i] * points[i]) / factor;
  }
  at[5] = filter[2];
}

// The filters [in][out][3][3] as packed weights at each pair of points, [36][out / PANEL][in][PANEL].
std::vector<float> packed_filters(const std::vector<float>& filters, int64_t in, int64_t out) {
  std::vector<float> packed(POINTS * POINTS * in * out);
  for (int64_t i = 0; i < in; i++)
    for (int64_t o = 0; o < out; o++) {
      double rows[3][POINTS], all[POINTS][POINTS];
      for (int y = 0; y < 3; y++) {
        double filter[3];
        for (int x = 0; x < 3; x++) filter[x] = filters[((i * out + o) * 3 + y) * 3 + x];
        filter_at_points(filter, rows[y]);
      }
      for (int k = 0; k < POINTS; k++) {
        const double column[3] = {rows[0][k], rows[1][k], rows[2][k]};
        double at[POINTS];
        filter_at_points(column, at);
        for (int j = 0; j < POINTS; j++) all[j][k] = at[j];
      }
      for (int k = 0; k < POINTS * POINTS; k++)
        packed[((k * (out / PANEL) + o / PANEL) * in + i) * PANEL + o % PANEL] = (float)all[k / POINTS][k % POINTS];
    }
  return packed;
}

struct Image {
  std::vector<float> values;
  Maps maps;
  Image(int64_t rows, int64_t columns, int64_t channels) : maps{rows, columns, channels, nullptr} {
    values.assign(maps.size(), 7.0f);
    maps.values = values.data();
    maps.clear_border();
  }
};

void check_convolution(Numbers& random, int64_t rows, int64_t columns, int64_t in, int64_t out, Digest& digest) {
  Image from(rows, columns, in), to(rows, columns, out);
  const std::vector<float> filters = random.reals(in * out * 9), bias = random.reals(out);
  const std::vector<float> packed = packed_filters(filters, in, out);
  for (int64_t y = 0; y < rows; y++)
    for (int64_t x = 0; x < columns; x++) {
      for (int64_t c = 0; c < in; c++) from.maps.at(y, x)[c] = random.real();
      for (int64_t c = 0; c < out; c++) to.maps.at(y, x)[c] = random.real();
    }
  const std::vector<float> before = to.values;
  for (const Mode mode : {STORE, RELU, ADD}) {
    to.values = before;
    to.maps.values = to.values.data();
    // In two parts, the first of one tile.
    for (const int64_t begin : {0, 1}) {
      const int64_t end = begin ? from.maps.tiles() : 1;
      const auto multiply = [&](int k, const float* v, float* m) {
        product<Single>(packed.data() + k * in * out, in, in * PANEL, out / PANEL, nullptr, {}, v, in, end - begin, m, out, STORE);
      };
      if (begin < end) convolve_tiles(multiply, bias.data(), from.maps, to.maps, mode, begin, end);
    }
    digest.add(to.values.data(), to.values.size());
    bool right = true, border = true;
    for (int64_t y = -1; y < to.maps.high() - 1; y++)
      for (int64_t x = -1; x < to.maps.wide() - 1; x++)
        for (int64_t o = 0; o < out; o++) {
          const float found = to.maps.at(y, x)[o];
          if (y < 0 || y >= rows || x < 0 || x >= columns) {
            border = border && found == 0;
            continue;
          }
          double sum = bias[o];
          for (int64_t i = 0; i < in; i++)
            for (int tap = 0; tap < 9; tap++)
              sum += (double)filters[(i * out + o) * 9 + tap] * from.maps.at(y + tap / 3 - 1, x + tap % 3 - 1)[i];
          if (mode == RELU) sum = std::max(sum, 0.0);
          if (mode == ADD) sum += before[to.maps.at(y, x) - to.maps.values + o];
          right = right && std::fabs(found - sum) <= 1e-5 * std::sqrt(9.0 * in);
        }
    CHECK_WITH(right, "%lld x %lld x %lld to %lld, mode %d", (long long)rows, (long long)columns, (long long)in, (long long)out, mode);
    CHECK(border);
  }
}

}  // namespace

uint64_t test_convolution() {
  Digest digest;
  Numbers random;
  for (int64_t rows = 1; rows <= 5; rows++)
    for (int64_t columns = 1; columns <= 9; columns += 2) check_convolution(random, rows, columns, LANES, PANEL, digest);
  check_convolution(random, 8, 8, 3 * LANES, 2 * PANEL, digest);
  return digest.value;
}
