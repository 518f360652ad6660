// Linear layers on packed weights: products of the formats of abi.h, shared by the threads of a team.

#pragma once

#include "abi.h"
#include "kernels/attention.h"
#include "kernels/products.h"
#include "runtime/scratch.h"
#if defined(__wasm__)
#include "runtime/one_thread.h"
#else
#include "runtime/threads.h"
#endif

namespace {

// Adds the time since the last lap to a part of the session's `seconds`. Only the team of the first rows is timed.
struct Clock {
  double* seconds;
  double last;
  explicit Clock(double* seconds) : seconds(seconds), last(seconds ? now() : 0) {}
  void lap(Part part) {
    if (!seconds) return;
    const double time = now();
    seconds[part] += time - last;
    last = time;
  }
};

// Rows quantised to bytes, in memory of the thread that quantised them.
struct ByteRows {
  Quad* quads;  // [rows, inputs / 4]
  ByteRow* rows;
};

template <Use USE>
ByteRows quantise_rows(const float* x, int64_t xs, int64_t count, int64_t inputs) {
  const ByteRows out{scratch<USE, Quad>(count * inputs / 4), scratch<USE, ByteRow>(count)};
  for (int64_t r = 0; r < count; r++) out.rows[r] = quantise(x + r * xs, inputs, out.quads + r * inputs / 4);
  return out;
}

// Panels [begin, end) of a product with inputs [from, from + inputs) of a weight.
struct Slice {
  const Linear& linear;
  int64_t begin, end, from, inputs;

  // The weights from the slice's first on, where `group` inputs lie side by side in a W.
  template <typename W>
  const W* weight(int64_t group) const { return (const W*)linear.weight + begin * stride(group) + from / group * PANEL; }
  int64_t stride(int64_t group) const { return linear.inputs / group * PANEL; }
  const float* bias() const { return past(linear.bias, begin * PANEL); }
};

// The product of quantised rows.
void apply_bytes(const Slice& slice, const ByteRows& x, int64_t rows, float* y, int64_t ys, Mode mode, const float* bias) {
  const int64_t steps = slice.inputs / 4;
  product<Bytes>(slice.weight<uint32_t>(4), steps, slice.stride(4), slice.end - slice.begin, bias,
                 {slice.linear.scale + slice.begin * PANEL, x.rows}, x.quads, steps, rows, y, ys, mode);
}

// Rows x, row stride xs, as a product with a weight reads them.
struct Inputs {
  const float* x;
  int64_t xs;
  ByteRows bytes{};
  Inputs(const Linear& linear, const float* x, int64_t xs, int64_t rows, int64_t inputs) : x(x), xs(xs) {
    if (linear.format == INT8) bytes = quantise_rows<QUANTISED>(x, xs, rows, inputs);
  }
};

// The product of `rows` inputs, into y with row stride ys.
void apply(const Slice& slice, const Inputs& in, int64_t rows, float* y, int64_t ys, Mode mode, const float* bias) {
  const int64_t panels = slice.end - slice.begin, inputs = slice.inputs;
  if (slice.linear.format == INT8) {
    apply_bytes(slice, in.bytes, rows, y, ys, mode, bias);
  } else if (slice.linear.format == FLOAT32) {
    product<Single>(slice.weight<float>(1), inputs, slice.stride(1), panels, bias, {}, in.x, in.xs, rows, y, ys, mode);
  } else {
    product<Paired>(slice.weight<uint32_t>(2), inputs / 2, slice.stride(2), panels, bias, {}, in.x, in.xs, rows, y, ys, mode);
  }
}

// Output panels [begin, end) of x [rows, inputs], row stride xs, times a weight, into y with row stride ys; and the same of the
// other of `parts` equal parts of the outputs.
void apply_panels(const Linear& linear, const float* x, int64_t xs, int64_t rows, float* y, int64_t ys, Mode mode,
                  int64_t begin, int64_t end, int64_t parts = 1) {
  const Inputs inputs(linear, x, xs, rows, linear.inputs);
  for (int64_t part = 0; part < parts; part++, begin += linear.panels / parts, end += linear.panels / parts) {
    const Slice slice{linear, begin, end, 0, linear.inputs};
    apply(slice, inputs, rows, y + begin * PANEL, ys, mode, slice.bias());
  }
}

// The product of one of `groups` equal ranges of inputs, without the bias; x starts at the range.
void apply_slice(const Linear& linear, int64_t group, int64_t groups, const float* x, int64_t xs, int64_t rows, float* y,
                 int64_t ys) {
  const int64_t inputs = linear.inputs / groups;
  apply({linear, 0, linear.panels, group * inputs, inputs}, Inputs(linear, x, xs, rows, inputs), rows, y, ys, STORE, nullptr);
}

// All output panels, shared by the threads of the team.
void apply(const Linear& linear, Team& team, const float* x, int64_t xs, int64_t rows, float* y, int64_t ys, Mode mode) {
  team.share(linear.panels, [=, linear = &linear](int64_t begin, int64_t end) {
    apply_panels(*linear, x, xs, rows, y, ys, mode, begin, end);
  });
}

// One attention head's part of a cache.
inline HeadCache head_of(const Cache& cache, int64_t head, int64_t slots, int64_t size) {
  const int64_t start = head * slots * size * (cache.key_scale ? 1 : sizeof(float));
  return {(const char*)cache.key + start, (const char*)cache.value + start, past(cache.key_scale, head * slots),
          past(cache.value_scale, head * slots)};
}

}  // namespace
