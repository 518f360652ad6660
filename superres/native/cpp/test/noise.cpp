// Tests of kernels/noise.h.

#include <algorithm>

#include "kernels/noise.h"
#include "test/check.h"

namespace {

// Philox4x32-10 by definition (Salmon et al. 2011).
void philox_of(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t k0 = key[0], k1 = key[1];
  std::memcpy(out, counter, 16);
  for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t a = (uint64_t)out[0] * 0xD2511F53u, b = (uint64_t)out[2] * 0xCD9E8D57u;
    const uint32_t next[4] = {(uint32_t)(b >> 32) ^ out[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ out[3] ^ k1, (uint32_t)a};
    std::memcpy(out, next, 16);
  }
}

int64_t joined(uint32_t low, uint32_t high) { return (int64_t)((uint64_t)high << 32 | low); }

// The published vectors: counter, key, and words.
void test_published() {
  const uint32_t vectors[3][10] = {
      {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
      {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
      {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
  for (const uint32_t* v : vectors) {
    uint32_t expected[4];
    philox_of(v, v + 4, expected);
    const Stream stream(joined(v[4], v[5]), joined(v[2], v[3]));
    uvec words[4];
    philox(stream, uvec{} + v[0], v[1], words);
    for (int i = 0; i < 4; i++) {
      CHECK(expected[i] == v[6 + i]);
      CHECK(words[i][0] == v[6 + i] && words[i][LANES - 1] == v[6 + i]);
    }
  }
}

void test_words(Digest& digest) {
  Numbers random;
  for (int n = 0; n < 300; n++) {
    const uint32_t seed[2] = {random.next(), random.next()}, key[2] = {random.next(), random.next()};
    const Stream stream(joined(seed[0], seed[1]), joined(key[0], key[1]));
    const int64_t position = random.integer(0, 100000), group = random.integer(0, 1000);
    uvec words[4];
    group_words(stream, position, group * GROUP, words);
    for (int lane = 0; lane < LANES; lane++) {
      const uint32_t counter[4] = {(uint32_t)(group * LANES + lane), (uint32_t)position, key[0], key[1]};
      uint32_t expected[4];
      philox_of(counter, seed, expected);
      for (int i = 0; i < 4; i++) CHECK(words[i][lane] == expected[i]);
      digest.add(expected, 4);
    }
    const uint32_t counter[4] = {(uint32_t)n, (uint32_t)position, key[0], key[1]};
    uint32_t expected[4];
    philox_of(counter, seed, expected);
    for (int i = 0; i < 4; i++) CHECK(uniform(stream, position, n, i) == (expected[i] + 0.5) / 4294967296.0);
    uvec high, low;
    uint32_t x[LANES];
    for (uint32_t& value : x) value = n ? random.next() : 0xFFFFFFFFu;
    multiply(load(x), seed[0], high, low);
    for (int lane = 0; lane < LANES; lane++) CHECK(((uint64_t)high[lane] << 32 | low[lane]) == (uint64_t)x[lane] * seed[0]);
  }
}

// Random words of all sizes, with the smallest and the largest.
std::vector<uint32_t> all_words() {
  Numbers random;
  std::vector<uint32_t> words;
  for (int bits = 0; bits <= 32; bits++)
    for (int n = 0; n < 200; n++) words.push_back((uint32_t)((uint64_t)random.next() >> bits));
  for (int bit = 0; bit < 32; bit++)
    for (const int near : {-1, 0, 1}) words.push_back((1u << bit) + (uint32_t)near);
  words.resize(words.size() + LANES - words.size() % LANES, 0xFFFFFFFFu);
  return words;
}

void test_gumbel(Digest& digest) {
  const std::vector<uint32_t> words = all_words();
  for (size_t i = 0; i < words.size(); i += LANES) {
    const vec u = uniform_of(load(words.data() + i)), g = gumbel(u), bound = gumbel_bound(u);
    float noise[LANES], uniforms[LANES];
    store(noise, g);
    store(uniforms, u);
    digest.add(noise, LANES);
    digest.add(uniforms, LANES);
    for (int lane = 0; lane < LANES; lane++) {
      const double exact = (words[i + lane] + 0.5) / 4294967296.0, v = u[lane];
      CHECK_NEAR(v, std::min(exact, 1 - 0x1p-24), exact * 1.3e-7);
      CHECK(v > 0 && v < 1);
      CHECK_NEAR(g[lane], -std::log(-std::log1p(-v)), 2e-6);
      CHECK(g[lane] <= bound[lane] && g[lane] >= LEAST_GUMBEL && g[lane] <= MOST_GUMBEL);
    }
  }
}

void test_functions(Digest& digest) {
  Numbers random;
  double error = 0;
  for (int n = 0; n < 2000; n++) {
    float x[LANES], y[LANES];
    for (float& value : x) {
      const int exponent = (int)random.integer(-126, 126);
      value = std::ldexp(1 + std::fabs(random.real()), exponent);
    }
    if (n % 2)
      for (float& value : x) value = 1 + 0.4f * random.real();
    store(y, logarithm(load(x)));
    digest.add(y, LANES);
    for (int i = 0; i < LANES; i++) error = std::max(error, std::fabs(y[i] - std::log((double)x[i])) / std::fabs(std::log((double)x[i]) + 1e-30));
  }
  CHECK_WITH(error <= 2e-7, "%g", error);
  CHECK(logarithm(fill(1))[0] == 0);
  for (int n = 0; n < 4000; n += LANES) {
    const vec x = converted<vec>(numbers() + n) / -200.0f;
    const ivec weights = weights_of(x);
    int32_t out[LANES];
    store(out, weights);
    digest.add(out, LANES);
    for (int i = 0; i < LANES; i++) {
      const double expected = 0x1p24 * std::exp((double)x[i]);
      CHECK_NEAR(out[i], expected, 1 + 3e-7 * expected);
    }
  }
  CHECK(weights_of(vec{})[0] == 1 << 24 && weights_of(fill(-INFINITY))[1] == 0 && weights_of(fill(-100))[2] == 0);
}

}  // namespace

uint64_t test_noise() {
  Digest digest;
  test_published();
  test_words(digest);
  test_gumbel(digest);
  test_functions(digest);
  return digest.value;
}
