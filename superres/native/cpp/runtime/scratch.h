// Memory of the calling thread.

#pragma once

#include <cstdint>
#include <vector>

namespace {

// Areas of memory, one per use.
enum Use {
  SPECTRUM, TRANSFORMED, INPUT_ROWS, WIDE_ROWS, SCORE_ROWS, SHARED, ATTENTION_BYTES, SUBLAYER_INPUT, VISIBLE, WRITTEN, QUANTISED,
  SCREENED, NOISE, SCALED, WEIGHTS, WHOLE_WEIGHTS, CHOSEN, GUESSES, COLUMNS
};

// Memory of the calling thread for `count` values, at a multiple of 64 bytes. Its contents are undefined.
template <Use USE, typename T = float>
T* scratch(int64_t count) {
#if defined(__wasm__)
  static std::vector<char> own;  // a thread's own would need destructors that WebAssembly lacks
#else
  static thread_local std::vector<char> own;
#endif
  const size_t bytes = count * sizeof(T) + 64;
  if (own.size() < bytes) own.resize(bytes);
  return (T*)(((uintptr_t)own.data() + 63) / 64 * 64);
}

}  // namespace
