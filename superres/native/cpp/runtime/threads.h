// Threads that share the work of a step. The calling thread is the leader; helper threads claim pieces of its work.
//
// A helper that is not running delays no one: the leader does the pieces that no helper has claimed. The leader waits only
// for a helper that was interrupted in the middle of a piece. If that wait is long, another process wants the processor,
// and the leader works alone for a rest period, which doubles while this repeats.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>

#ifndef _WIN32
#include <csignal>
#include <ctime>
#include <pthread.h>
#endif

#include "runtime/clock.h"

namespace {

constexpr int MAX_THREADS = 64;
constexpr int64_t MAX_PIECES = (1 << 12) - 1;
constexpr double SPIN = 1e-3;     // seconds after which a helper without work goes to sleep
constexpr double STALL = 250e-6;  // seconds of waiting for a helper or a core after which the machine counts as busy
constexpr double LEAST_REST = 2e-3, MOST_REST = 0.5;  // bounds on a rest period, in seconds
constexpr double WORTH = 5;       // a team pays off if it worked for this many times the seconds lost in a stall

// Seconds for which the calling thread has run on a core. On Windows, whose clock of threads is too coarse, all seconds count:
// a call never seems to have stalled for want of a core.
inline double seconds_on_core() {
#ifdef _WIN32
  return now();
#else
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
#endif
}

// Lets other threads have the core briefly.
inline void nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr size_t BODY = 192 - 24;

// Work on `count` items, divided into pieces. The body is a copy, which a helper reads faster than the leader's stack.
struct Job {
  void (*call)(const void* body, int64_t begin, int64_t end);
  int64_t count, pieces;
  alignas(8) char body[BODY];
  void run(int64_t piece) const { call(body, count * piece / pieces, count * (piece + 1) / pieces); }
};

// The channel from the leader to one helper. `ticket` holds the job's number, the next piece and the end of the pieces
// (40, 12 and 12 bits). `done` holds the job's number and the number of its pieces that the helper has done. The job does
// not change until every claimed piece is done.
struct Lane {
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) Job job{};
  alignas(64) std::atomic<uint64_t> done{0};
  int64_t left = 0;  // pieces that the leader did not claim back
  alignas(64) std::atomic<bool> asleep{true};
  double called = 0;  // when the leader woke the helper; 0 once the helper runs. Guarded by the mutex.
  std::mutex mutex;
  std::condition_variable awake;

  static bool is_open(uint64_t ticket) { return (ticket >> 12 & MAX_PIECES) < (ticket & MAX_PIECES); }

  // Publishes pieces [first, past) of a job to the helper.
  void offer(const Job& whole, size_t size_of_body, uint64_t number, int64_t first, int64_t past) {
    left = past - first;
    std::memcpy((void*)&job, &whole, offsetof(Job, body) + size_of_body);
    ticket.store(number << 24 | (uint64_t)first << 12 | (uint64_t)past, std::memory_order_release);
  }

  // Whether the helper has done a piece of the job.
  bool did(uint64_t number) const { return done.load(std::memory_order_relaxed) >> 24 == number; }

  // Gives a running helper a moment to claim its piece, whose weights are in its core's cache.
  void let_begin() const {
    for (int spins = 0; spins < 20 && is_open(ticket.load(std::memory_order_relaxed)); spins++) pause();
  }

  // Claims a piece and returns its number and the job's number; returns false if no piece is left.
  bool claim(int64_t& piece, uint64_t& number) {
    uint64_t word = ticket.load(std::memory_order_acquire);
    while (is_open(word))
      if (ticket.compare_exchange_weak(word, word + (1 << 12), std::memory_order_acq_rel, std::memory_order_acquire)) {
        piece = word >> 12 & MAX_PIECES;
        number = word >> 24;
        return true;
      }
    return false;
  }

  void sleep() {
    asleep.store(true);
    std::unique_lock<std::mutex> lock(mutex);
    awake.wait(lock, [&] { return called > 0; });
    called = 0;
    asleep.store(false);
  }

  // Wakes the helper if it sleeps. A woken thread may be queued on the leader's own core, where it would wait for
  // milliseconds; if it has not started after STALL, the leader yields its core briefly.
  void call() {
    if (!asleep.load()) return;
    const double time = now();
    bool late;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      late = called > 0 && time - called > STALL;
      if (!late && !called) called = time;
      awake.notify_one();
    }
    if (late) nap();
  }
};

// The helper threads of this process. The pool is never freed, since helpers use it until the process ends.
struct Pool {
  std::atomic<bool> led{false};     // whether a call has the helpers; concurrent calls work alone
  std::atomic<int> calls{0};        // calls in progress
  int helpers = 0;
  uint64_t number = 0;              // number of the last job
  double rest = 0, rest_until = 0;  // length and end of the rest period after a stall, in seconds; only the leader reads them
  double worked = 0;                // seconds of team work since the last stall
  Lane lanes[MAX_THREADS];

  // The main loop of a helper thread.
  void serve(Lane& lane) {
    uint64_t last = 0, count = 0;
    double idle_since = 0;
    lane.sleep();
    for (int spins = 0;; spins++) {
      int64_t piece;
      uint64_t number;
      if (lane.claim(piece, number)) {
        lane.job.run(piece);
        count = number == last ? count + 1 : 1;
        last = number;
        lane.done.store(number << 24 | count, std::memory_order_release);
        spins = -1;
        continue;
      }
      pause();
      if (spins % 64) continue;
      if (!spins) idle_since = now();
      else if (now() - idle_since > SPIN) {
        lane.sleep();
        spins = -1;
      }
    }
  }

  // Starts and wakes up to `count` helpers and returns their number, which is smaller if the system allows fewer threads.
  int summon(int count, bool waits) {
    while (helpers < count && start(lanes[helpers])) helpers++;
    if (helpers < count) count = helpers;
    for (int i = 0; i < count; i++) lanes[i].call();
    for (int i = 0; waits && i < count; i++)
      for (int tries = 0; tries < 100 && lanes[i].asleep.load(); tries++) nap();
    return count;
  }

  // Starts a helper thread with all signals blocked; returns whether the system allowed it.
  bool start(Lane& lane) {
#ifndef _WIN32
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    bool started = true;
    try {
      std::thread([this, &lane] { serve(lane); }).detach();
    } catch (const std::system_error&) {
      started = false;
    }
#ifndef _WIN32
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
    return started;
  }

  // Starts a rest period after the leader lost `lost` seconds: it waited for a helper that was not running, or had no core
  // itself. On a busy machine, two threads share cores with other processes, while one thread has a core to itself.
  void stalled(double lost) {
    rest = worked < WORTH * lost ? 2 * rest : LEAST_REST;
    rest = rest < LEAST_REST ? LEAST_REST : rest > MOST_REST ? MOST_REST : rest;
    rest_until = now() + rest;
    worked = 0;
  }

  // Accounts for `seconds` of a team's work, of which the leader ran on a core for `busy` seconds.
  void judge(bool counts, double seconds, double busy) {
    worked += busy;
    if (counts && seconds - busy > STALL) stalled(seconds - busy);
  }
};

// The pool of this process. A child of fork inherits no helper threads, so it starts with a new pool.
Pool*& pool() {
  static Pool* current = [] {
#ifndef _WIN32
    pthread_atfork(nullptr, nullptr, [] { pool() = new Pool; });
#endif
    return new Pool;
  }();
  return current;
}

// The threads of a call; a single thread needs no pool. Helpers are woken for the first job that is shared: a helper without
// work would keep a core busy.
struct Team {
  Pool* pool = nullptr;
  int size = 1;
  bool waits = false;     // waits for its helpers even on a busy machine
  bool works = false;     // has shared a job
  bool is_close = false;  // has shared short jobs, in which threads wait for one another
  double started = 0, on_core = 0;  // when it shared its first job, and the leader's seconds on a core until then

  // Calls body(begin, end) for parts of [0, count), at most one part per thread, and returns when all are done.
  template <typename Body>
  void share(int64_t count, const Body& body) {
    hand_out(count, size, true, body);
  }

  // As `share`, for long work divided into any number of `parts`; waiting for it is no sign of a busy machine.
  template <typename Body>
  void deal(int64_t count, int64_t parts, const Body& body) {
    hand_out(count, parts, false, body);
  }

  // Accounts for the team's work. From then on, the leader works alone.
  void end() {
    if (works) pool->judge(is_close && !waits, now() - started, seconds_on_core() - on_core);
    works = false;
    size = 1;
  }

 private:
  template <typename Body>
  void hand_out(int64_t count, int64_t pieces, bool brief, const Body& body) {
    if (pieces > count) pieces = count;
    if (pieces > MAX_PIECES) pieces = MAX_PIECES;
    if (pieces > 1 && size > 1 && !works) begin();
    if (size == 1 || pieces < 2) {
      if (count > 0) body((int64_t)0, count);
      return;
    }
    static_assert(sizeof body <= BODY && std::is_trivially_copyable<Body>::value, "capture by value, and little");
    Job job{[](const void* body, int64_t begin, int64_t end) { (*(const Body*)body)(begin, end); }, count, pieces, {}};
    std::memcpy(job.body, &body, sizeof body);
    finish(job, sizeof body, brief);
  }

  // Wakes the helpers. There are fewer if the system allows fewer threads.
  void begin() {
    works = true;
    started = now(), on_core = seconds_on_core();
    size = 1 + pool->summon(size - 1, waits);
  }

  // Does the job together with the helpers.
  void finish(const Job& job, size_t size_of_body, bool brief) {
    const uint64_t number = ++pool->number;
    const auto first = [&](int thread) { return job.pieces * thread / size; };
    for (int i = 1; i < size; i++) pool->lanes[i - 1].offer(job, size_of_body, number, first(i), first(i + 1));
    for (int64_t piece = 0; piece < first(1); piece++) job.run(piece);
    for (int i = 1; i < size; i++) {
      Lane& lane = pool->lanes[i - 1];
      int64_t piece;
      if (brief && lane.did(number - 1)) lane.let_begin();
      for (uint64_t same; lane.claim(piece, same); lane.left--) job.run(piece);
    }
    bool late = false;
    for (int i = 1; i < size; i++) late = await(pool->lanes[i - 1], number) || late;
    is_close = is_close || brief;
    if (late && brief && !waits) end();
  }

  // Waits until a helper has done its pieces; returns whether the wait exceeded STALL.
  static bool await(const Lane& lane, uint64_t number) {
    if (!lane.left) return false;
    const uint64_t done = number << 24 | (uint64_t)lane.left;
    double since = 0;
    for (int spins = 1; lane.done.load(std::memory_order_acquire) != done; spins++) {
      pause();
      if (spins % 64) continue;
      if (!since) since = now();
      // The helper may be waiting for the core that this thread occupies.
      else if (now() - since > STALL) nap();
    }
    return since && now() - since > STALL;
  }
};

// Calls body(team) with a team of up to `threads` threads; with one thread if the machine is busy or another call has the
// helpers.
template <typename Body>
void with_team(int threads, bool waits, const Body& body) {
  Pool& here = *pool();
  const int others = here.calls.fetch_add(1);
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  threads -= others;  // concurrent calls use a thread each
  Team team;
  const bool leads = threads > 1 && !here.led.exchange(true);
  if (leads && (waits || now() >= here.rest_until)) team = Team{&here, threads, waits};
  body(team);
  team.end();
  if (leads) here.led.store(false);
  here.calls.fetch_sub(1);
}

}  // namespace
