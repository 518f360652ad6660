// Threads that share the work of a step: the calling thread leads, and helpers claim pieces of what it hands out.
//
// A helper that is not running holds nobody up: the leader takes the pieces that nobody has claimed. It waits only for a
// helper that was interrupted in the middle of a piece; if that takes long, something else wants the processor, and the
// leader works alone for a while, ever longer while that repeats.

#pragma once

#include <atomic>
#include <csignal>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <mutex>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <type_traits>
#include <unistd.h>

namespace {

constexpr int MAX_THREADS = 64;
constexpr int64_t MAX_PIECES = (1 << 12) - 1;
constexpr double SPIN = 1e-3;          // seconds after which a helper without work goes to sleep
constexpr double STALL = 250e-6;       // seconds without a helper, or without a core, after which the machine is busy
constexpr double LEAST_REST = 2e-3, MOST_REST = 0.5;  // seconds for which a leader then works alone
constexpr double RECENT = 1;           // seconds after such a rest for which the machine still counts as busy
constexpr double WORTH = 5;            // times as long as it then lost that a team must have worked to be worth it

inline double now(clockid_t clock = CLOCK_MONOTONIC) {
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr size_t BODY = 192 - 24;

// Work on `count` items, cut into pieces. The body is a copy, which a helper reads faster than the leader's stack.
struct Job {
  void (*call)(const void* body, int64_t begin, int64_t end);
  int64_t count, pieces;
  alignas(8) char body[BODY];
  void run(int64_t piece) const { call(body, count * piece / pieces, count * (piece + 1) / pieces); }
};

// What the leader hands to one helper. `ticket` holds the job's number, the next piece and the one past the last
// (40, 12 and 12 bits), `done` the job's number and how many pieces the helper has done of it. The job stays as it is
// while a claimed piece is not done.
struct Lane {
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) Job job{};
  alignas(64) std::atomic<uint64_t> done{0};
  int64_t left = 0;  // pieces that the leader did not take itself
  alignas(64) std::atomic<bool> asleep{true};
  double called = 0;  // when the leader woke the helper, if that does not run yet; guarded by the mutex
  std::mutex mutex;
  std::condition_variable awake;

  static bool is_open(uint64_t ticket) { return (ticket >> 12 & MAX_PIECES) < (ticket & MAX_PIECES); }

  void offer(const Job& whole, size_t size_of_body, uint64_t number, int64_t first, int64_t past) {
    left = past - first;
    std::memcpy((void*)&job, &whole, offsetof(Job, body) + size_of_body);
    ticket.store(number << 24 | (uint64_t)first << 12 | (uint64_t)past, std::memory_order_release);
  }

  // Whether the helper has taken part in a job.
  bool did(uint64_t number) const { return done.load(std::memory_order_relaxed) >> 24 == number; }

  // Gives the helper, which is running, a moment to claim its piece: its weights are in a cache near to it.
  void let_begin() const {
    for (int spins = 0; spins < 20 && is_open(ticket.load(std::memory_order_relaxed)); spins++) pause();
  }

  // Claims a piece, and returns its number and the job's; false if there is none.
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

  // Sees to it that the helper runs. A thread that was just woken may be queued on the leader's own core, where it
  // would stay for milliseconds: the leader makes room for it once it has had the time to start elsewhere.
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
    if (late) usleep(50);
  }
};

// The helpers of this process, and who leads them. It is never freed, since helpers use it to the end.
struct Pool {
  std::atomic<bool> led{false};     // by a call; others work alone meanwhile
  std::atomic<int> calls{0};        // under way
  int helpers = 0;
  uint64_t number = 0;              // of the last job
  double rest = 0, rest_until = 0;  // for how long the leader works alone after a stall, and until when
  double worked = 0;                // seconds of team work since then
  Lane lanes[MAX_THREADS];

  // A helper's life.
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

  // Lets there be `count` helpers if the system allows, awake, and returns how many there are.
  int summon(int count, bool patient) {
    while (helpers < count && start(lanes[helpers])) helpers++;
    if (helpers < count) count = helpers;
    for (int i = 0; i < count; i++) lanes[i].call();
    for (int i = 0; patient && i < count; i++)
      for (int tries = 0; tries < 100 && lanes[i].asleep.load(); tries++) usleep(50);
    return count;
  }

  // Starts a helper, to which no signal is delivered; returns whether the system allowed it.
  bool start(Lane& lane) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
      std::thread([this, &lane] { serve(lane); }).detach();
    } catch (const std::system_error&) {
      started = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  // Notes that the leader lost seconds: it waited for a helper that was not running, or was itself without a core. Two
  // threads that want the core of one of them and of a busy neighbour slow both; one thread has a core to itself.
  void stalled(double lost) {
    rest = worked < WORTH * lost ? 2 * rest : LEAST_REST;
    rest = rest < LEAST_REST ? LEAST_REST : rest > MOST_REST ? MOST_REST : rest;
    rest_until = now() + rest;
    worked = 0;
  }

  // Judges a call of a team that took so many seconds, in which its leader had a core, and was at work, for `busy` of them.
  void judge(bool counts, double seconds, double busy) {
    if (counts && seconds - busy > STALL) stalled(seconds - busy);
    else worked += seconds;
  }

  // Whether work on several threads was tried lately, and again and again did not pay.
  bool is_busy() const { return rest > 2 * LEAST_REST && now() < rest_until + RECENT; }
};

// A child of fork has no helpers, whatever its parent had: it begins with a new pool.
Pool*& pool() {
  static Pool* current = [] {
    pthread_atfork(nullptr, nullptr, [] { pool() = new Pool; });
    return new Pool;
  }();
  return current;
}

// The threads of a call. One alone needs no pool.
struct Team {
  Pool* pool = nullptr;
  int size = 1;
  bool patient = false;   // waits for its helpers whatever happens
  bool is_close = false;  // has shared work whose parts wait for one another

  // Calls body(begin, end) for parts of [0, count) until all of it is done, a part per thread at most.
  template <typename Body>
  void share(int64_t count, const Body& body) {
    hand_out(count, size, true, body);
  }

  // The same for work that takes long: in `parts`, however many, and it is no sign of a busy machine to wait for them.
  template <typename Body>
  void deal(int64_t count, int64_t parts, const Body& body) {
    hand_out(count, parts, false, body);
  }

 private:
  template <typename Body>
  void hand_out(int64_t count, int64_t pieces, bool brief, const Body& body) {
    if (pieces > count) pieces = count;
    if (pieces > MAX_PIECES) pieces = MAX_PIECES;
    if (size == 1 || pieces < 2) {
      if (count > 0) body((int64_t)0, count);
      return;
    }
    static_assert(sizeof body <= BODY && std::is_trivially_copyable<Body>::value, "capture by value, and little");
    Job job{[](const void* body, int64_t begin, int64_t end) { (*(const Body*)body)(begin, end); }, count, pieces, {}};
    std::memcpy(job.body, &body, sizeof body);
    finish(job, sizeof body, brief);
  }

  // Does the job with the helpers.
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
    if (late && brief && !patient) size = 1;  // for the rest of the call
  }

  // Waits until a helper has done its pieces; returns whether that took long.
  static bool await(const Lane& lane, uint64_t number) {
    if (!lane.left) return false;
    const uint64_t done = number << 24 | (uint64_t)lane.left;
    double since = 0;
    for (int spins = 1; lane.done.load(std::memory_order_acquire) != done; spins++) {
      pause();
      if (spins % 64) continue;
      if (!since) since = now();
      // The helper may be waiting for this very core.
      else if (now() - since > STALL) usleep(50);
    }
    return since && now() - since > STALL;
  }
};

// Calls body(team) with a team of up to `threads`, as far as they are free and the machine is not busy.
template <typename Body>
void with_team(int threads, bool patient, const Body& body) {
  Pool& here = *pool();
  const int others = here.calls.fetch_add(1);
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  threads -= others;  // each has a thread of its own
  Team team;
  const bool leads = threads > 1 && !here.led.exchange(true);
  if (leads) {
    const double started = now(), worked = now(CLOCK_THREAD_CPUTIME_ID);
    const bool rests = !patient && started < here.rest_until;
    if (!rests) team = Team{&here, 1 + here.summon(threads - 1, patient), patient};
    body(team);
    if (!rests) here.judge(team.is_close && !patient, now() - started, now(CLOCK_THREAD_CPUTIME_ID) - worked);
    here.led.store(false);
  } else {
    body(team);
  }
  here.calls.fetch_sub(1);
}

}  // namespace
