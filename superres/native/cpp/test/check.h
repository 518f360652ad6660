// Checks that are counted, and the tests of the kernels.

#pragma once

#include <cmath>
#include <cstdio>

#include "fixed_numbers.h"

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

// The tests. Each returns the digest of its outputs, which are finite.
uint64_t test_vectors();
uint64_t test_products();
uint64_t test_attention();
uint64_t test_convolution();
uint64_t test_noise();
uint64_t test_decoding();
