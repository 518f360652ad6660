// The clock.

#pragma once

#include <chrono>

namespace {

// Seconds from an arbitrary start.
inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace
