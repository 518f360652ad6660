// Whether this library computes what every other one does: a digest of what its kernels make of fixed inputs. The recorded
// digest is `SELF_TEST` in superres/native/variants.py.

#pragma once

#include "fixed_numbers.h"
#include "model/linear.h"

namespace {

// Products of 1, 4 and 13 rows by two panels: overwritten, after ReLU, and added.
void test_product(const Linear& linear, Numbers& numbers, Digest& digest) {
  for (const int64_t rows : {1, 4, 13}) {
    const std::vector<float> x = numbers.reals(rows * linear.inputs, 2);
    std::vector<float> y(rows * linear.panels * PANEL);
    for (const Mode mode : {STORE, ADD, RELU}) {
      apply_panels(linear, x.data(), linear.inputs, rows, y.data(), linear.panels * PANEL, mode, 0, linear.panels);
      digest.add(y.data(), y.size());
    }
  }
}

void test_products(Numbers& numbers, Digest& digest) {
  const int64_t inputs = 48, panels = 2;
  const std::vector<float> bias = numbers.reals(panels * PANEL, 2), weight = numbers.reals(panels * inputs * PANEL, 2);
  test_product({inputs, panels, FLOAT32, weight.data(), bias.data(), nullptr}, numbers, digest);
  test_product({inputs, panels, BFLOAT16, weight.data(), bias.data(), nullptr}, numbers, digest);
  std::vector<float> scale = numbers.reals(panels * PANEL, 2);
  const std::vector<uint8_t> bytes = numbers.stored_bytes(panels * inputs * PANEL);
  test_product({inputs, panels, INT8, bytes.data(), bias.data(), scale.data()}, numbers, digest);
}

// Attention of three queries over a ring that they have passed the end of; over float32, and over bytes.
void test_attention(Numbers& numbers, Digest& digest) {
  const int64_t slots = 4 * LANES, size = LANES, rows = 3, from[rows] = {40, 40, 48}, last[rows] = {70, 71, 72};
  const std::vector<float> query = numbers.reals(rows * size, 2);
  std::vector<float> key = numbers.reals(slots * size, 2), value = numbers.reals(slots * size, 2);
  std::vector<float> weights(rows * slots), out(rows * size), units(slots, 0.0078125f);
  const auto attend = [&](const HeadCache& cache) {
    attend_rows(rows, query.data(), size, cache, slots, size, from, last, nullptr, weights.data(), slots,
                out.data(), size);
    digest.add(out.data(), out.size());
  };
  attend({key.data(), value.data(), nullptr, nullptr});
  const std::vector<uint8_t> keys = numbers.stored_bytes(slots * size), values = numbers.stored_bytes(slots * size);
  attend({keys.data(), values.data(), units.data(), units.data()});
}

void test_functions(Numbers& numbers, Digest& digest) {
  const int64_t size = 4 * LANES;
  const std::vector<float> x = numbers.reals(size, 2), weight = numbers.reals(size, 2), bias = numbers.reals(size, 2);
  std::vector<float> y(size);
  normalise(x.data(), size, weight.data(), bias.data(), y.data());
  digest.add(y.data(), y.size());
  for (int64_t i = 0; i < size; i += LANES) store(y.data() + i, exponential(load(x.data() + i) * 16.0f));
  digest.add(y.data(), y.size());
}

// Comparisons of numbers with NaN and -inf, which the instructions of minimum and maximum treat in several ways.
void test_comparisons(Numbers& numbers, Digest& digest) {
  for (int64_t count = LANES; count < 6 * LANES; count++) {
    std::vector<float> x = numbers.reals(count, 2);
    for (float& number : x)
      if (const int64_t kind = numbers.integer(-2, 2); kind < 0) number = kind == -1 ? NAN : -INFINITY;
    const vec first = load(x.data());
    std::vector<float> y = {(float)largest_of(x.data(), count), (float)any(first + 1.0f >= 2.5f)};
    y.resize(2 + 2 * LANES);
    store(y.data() + 2, pick(first > 0.0f, first, vec{}));
    store(y.data() + 2 + LANES, power_of_two(first));
    digest.add(y.data(), y.size());
  }
}

uint64_t self_test() {
  Numbers numbers;
  Digest digest;
  test_products(numbers, digest);
  test_attention(numbers, digest);
  test_functions(numbers, digest);
  test_comparisons(numbers, digest);
  return digest.value;
}

}  // namespace
