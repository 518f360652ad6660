// Checks that are counted, and what the tests of the kernels share: pseudo-random numbers, and a digest of bits.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

// The results of all checks so far.
struct Results {
  int64_t passed = 0, failed = 0;

  // Counts a check, and prints the first failures.
  bool add(bool holds, const char* text, const char* file, int line) {
    if (holds) return ++passed;
    if (++failed <= 20) std::printf("%s:%d: %s does not hold", file, line, text);
    return false;
  }
};
inline Results results;

#define CHECK(CONDITION) \
  do { if (!results.add((CONDITION), #CONDITION, __FILE__, __LINE__) && results.failed <= 20) std::printf("\n"); } while (0)

// As CHECK, with values (arguments of printf) that a failure prints.
#define CHECK_WITH(CONDITION, ...)                                                                 \
  do {                                                                                             \
    if (!results.add((CONDITION), #CONDITION, __FILE__, __LINE__) && results.failed <= 20)         \
      std::printf(": "), std::printf(__VA_ARGS__), std::printf("\n");                              \
  } while (0)

template <typename T>
uint64_t bits_of(T x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Whether two numbers have the same bits; all NaN are the same, because their bits differ by processor.
template <typename T>
bool same(T a, T b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

#define CHECK_SAME(A, B) CHECK_WITH(same(A, B), "%.9g and %.9g", (double)(A), (double)(B))
#define CHECK_NEAR(A, B, TOLERANCE) \
  CHECK_WITH(std::fabs((double)(A) - (double)(B)) <= (TOLERANCE), "%.9g and %.9g, tolerance %g", (double)(A), (double)(B), (double)(TOLERANCE))

// Pseudo-random numbers by a linear congruential generator, the same on every system.
struct Numbers {
  uint64_t state = 1;
  uint32_t next() { return (uint32_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 32); }
  int64_t integer(int64_t low, int64_t high) { return low + next() % (uint64_t)(high - low + 1); }
  // In (-1, 1), with all 24 bits: a product that is rounded before it is added differs from one that is not.
  float real() { return ((int32_t)(next() >> 8) - 0x7FFFFF) * 0x1p-23f; }
  std::vector<float> reals(int64_t count, float scale = 1) {
    std::vector<float> out(count);
    for (float& x : out) x = real() * scale;
    return out;
  }
  // Bytes as they are stored: 128 larger than a number of -127..127.
  std::vector<uint8_t> stored_bytes(int64_t count) {
    std::vector<uint8_t> out(count);
    for (uint8_t& x : out) x = (uint8_t)integer(1, 255);
    return out;
  }
};

// The FNV-1a hash of the bits of outputs, 32 bits at a time.
struct Digest {
  uint64_t value = 0xcbf29ce484222325u;
  template <typename T>
  void add(const T* outputs, int64_t count) {
    static_assert(sizeof(T) == 4, "words of 32 bits");
    for (int64_t i = 0; i < count; i++) value = (value ^ (uint32_t)bits_of(outputs[i])) * 0x100000001b3u;
  }
};

// The tests. Each returns the digest of its outputs, which are finite.
uint64_t test_vectors();
uint64_t test_products();
uint64_t test_attention();
uint64_t test_convolution();
uint64_t test_noise();
uint64_t test_decoding();
