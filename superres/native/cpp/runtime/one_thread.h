// A team of one thread, in place of threads.h where there are no threads: in WebAssembly.

#pragma once

#include <cstdint>

#include "runtime/clock.h"

namespace {

struct Team {
  static constexpr int size = 1;

  template <typename Body>
  void share(int64_t count, const Body& body) {
    if (count > 0) body((int64_t)0, count);
  }
  template <typename Body>
  void deal(int64_t count, int64_t, const Body& body) {
    share(count, body);
  }
};

template <typename Body>
void with_team(int, bool, const Body& body) {
  Team team;
  body(team);
}

}  // namespace
