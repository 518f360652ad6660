// Inputs that are the same on every system, and a digest of outputs: what the self-test and the tests of the kernels share.

#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

template <typename T>
uint64_t bits_of(T x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  return bits;
}

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
