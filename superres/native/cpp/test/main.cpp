// Runs all tests, or the suites named as arguments. The last line says how many checks passed and failed.

#include <algorithm>

#include "test/check.h"

namespace {

struct Suite {
  const char* name;
  uint64_t (*run)();
  uint64_t digest;  // of the suite's outputs: the same for every variant, compiler and system
};

const Suite SUITES[] = {
    {"vectors", test_vectors, 0x6f6519713efe13c1},
    {"products", test_products, 0x645865ab1216c626},
    {"attention", test_attention, 0x125831b2e6e923c5},
    {"convolution", test_convolution, 0xbf269c6d8de1d447},
    {"noise", test_noise, 0x2ca78b26d30ef9c5},
    {"decoding", test_decoding, 0x2dd9b10e2fd7483b},
};

}  // namespace

int main(int count, char** names) {
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
  for (const Suite& suite : SUITES) {
    const auto is_named = [&](const char* name) { return !std::strcmp(name, suite.name); };
    if (count > 1 && std::none_of(names + 1, names + count, is_named)) continue;
    const uint64_t digest = suite.run();
    std::printf("%-11s %016llx\n", suite.name, (unsigned long long)digest);
    CHECK_WITH(digest == suite.digest, "the outputs of %s have other bits: the recorded digest is %016llx", suite.name,
               (unsigned long long)suite.digest);
  }
  std::printf("%lld passed, %lld failed\n", (long long)results.passed, (long long)results.failed);
  return results.failed > 0;
}
