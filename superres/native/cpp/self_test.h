// Whether this library computes what every other one does: a digest of what its kernels make of fixed inputs. The recorded
// digest is `SELF_TEST` in superres/native/variants.py.

#pragma once

#include <vector>

#include "model/linear.h"

namespace {

// Pseudo-random numbers by a linear congruential generator. Floats use all 24 bits: a product that is rounded before it is
// added differs from one that is not.
struct Numbers {
  uint32_t state = 1;
  uint32_t next() { return (state = state * 1664525u + 1013904223u) >> 8; }
  int64_t integer(int64_t most) { return next() % (2 * most + 1) - most; }  // -most..most
  std::vector<float> floats(int64_t count) {
    std::vector<float> out(count);
    for (float& x : out) x = integer((1 << 23) - 1) * 0x1p-22f;
    return out;
  }
};

// The FNV-1a hash of the bits of all outputs.
struct Digest {
  uint64_t value = 0xcbf29ce484222325u;
  void add(const std::vector<float>& outputs) {
    const unsigned char* bytes = (const unsigned char*)outputs.data();
    for (size_t i = 0; i < outputs.size() * sizeof(float); i++) value = (value ^ bytes[i]) * 0x100000001b3u;
  }
};

// Products of 1, 4 and 13 rows by two panels: overwritten, after ReLU, and added.
void test_product(const Linear& linear, Numbers& numbers, Digest& digest) {
  for (const int64_t rows : {1, 4, 13}) {
    const std::vector<float> x = numbers.floats(rows * linear.inputs);
    std::vector<float> y(rows * linear.panels * PANEL);
    for (const Mode mode : {STORE, ADD, RELU}) {
      apply_panels(linear, x.data(), linear.inputs, rows, y.data(), linear.panels * PANEL, mode, 0, linear.panels);
      digest.add(y);
    }
  }
}

void test_products(Numbers& numbers, Digest& digest) {
  const int64_t inputs = 48, panels = 2;
  const std::vector<float> bias = numbers.floats(panels * PANEL), weight = numbers.floats(panels * inputs * PANEL);
  test_product({inputs, panels, FLOAT32, weight.data(), bias.data(), nullptr}, numbers, digest);
  test_product({inputs, panels, BFLOAT16, weight.data(), bias.data(), nullptr}, numbers, digest);
  std::vector<float> scale = numbers.floats(panels * PANEL);
  std::vector<uint8_t> bytes(panels * inputs * PANEL);
  for (uint8_t& byte : bytes) byte = (uint8_t)(numbers.integer(127) + 128);
  test_product({inputs, panels, INT8, bytes.data(), bias.data(), scale.data()}, numbers, digest);
}

// Attention of three queries over a ring that they have passed the end of; over float32, and over bytes.
void test_attention(Numbers& numbers, Digest& digest) {
  const int64_t slots = 4 * LANES, size = LANES, rows = 3, from[rows] = {40, 40, 48}, last[rows] = {70, 71, 72};
  const std::vector<float> query = numbers.floats(rows * size);
  std::vector<float> key = numbers.floats(slots * size), value = numbers.floats(slots * size);
  std::vector<float> weights(rows * slots), out(rows * size), units(slots, 0.0078125f);
  const auto attend = [&](const HeadCache& cache) {
    attend_rows(rows, query.data(), size, cache, slots, size, from, last, nullptr, weights.data(), slots,
                out.data(), size);
    digest.add(out);
  };
  attend({key.data(), value.data(), nullptr, nullptr});
  std::vector<uint8_t> keys(slots * size), values(slots * size);
  for (uint8_t& byte : keys) byte = (uint8_t)(numbers.integer(127) + 128);
  for (uint8_t& byte : values) byte = (uint8_t)(numbers.integer(127) + 128);
  attend({keys.data(), values.data(), units.data(), units.data()});
}

void test_functions(Numbers& numbers, Digest& digest) {
  const int64_t size = 4 * LANES;
  const std::vector<float> x = numbers.floats(size), weight = numbers.floats(size), bias = numbers.floats(size);
  std::vector<float> y(size);
  normalise(x.data(), size, weight.data(), bias.data(), y.data());
  digest.add(y);
  for (int64_t i = 0; i < size; i += LANES) store(y.data() + i, exponential(load(x.data() + i) * 16.0f));
  digest.add(y);
}

// Comparisons of numbers with NaN and -inf, which the instructions of minimum and maximum treat in several ways.
void test_comparisons(Numbers& numbers, Digest& digest) {
  for (int64_t count = LANES; count < 6 * LANES; count++) {
    std::vector<float> x = numbers.floats(count);
    for (float& number : x)
      if (const int64_t kind = numbers.integer(2); kind < 0) number = kind == -1 ? NAN : -INFINITY;
    const vec first = load(x.data());
    std::vector<float> y = {(float)largest_of(x.data(), count), (float)any(first + 1.0f >= 2.5f)};
    y.resize(2 + 2 * LANES);
    store(y.data() + 2, pick(first > 0.0f, first, vec{}));
    store(y.data() + 2 + LANES, power_of_two(first));
    digest.add(y);
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
