// Memory of the calling thread.

#pragma once

#include <cstdint>
#include <vector>

namespace {

// Areas of memory, one per use.
enum Use { SPECTRUM, TRANSFORMED, INPUT_ROWS, WIDE_ROWS, SCORE_ROWS, SHARED, ATTENTION_BYTES, SUBLAYER_INPUT };

// Memory of the calling thread for `count` floats, at a multiple of 64 bytes. Its contents are undefined.
template <Use USE>
float* scratch(int64_t count) {
  static thread_local std::vector<float> own;
  if ((int64_t)own.size() < count + 16) own.resize(count + 16);
  return (float*)(((uintptr_t)own.data() + 63) / 64 * 64);
}

}  // namespace
