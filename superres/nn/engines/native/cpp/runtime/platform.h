// What threads need of the operating system: clocks, short waits, signals, forks.

#pragma once

#ifdef _WIN32
#include <chrono>
#include <thread>
#else
#include <csignal>
#include <ctime>
#include <pthread.h>
#include <unistd.h>
#endif

namespace {

#ifdef _WIN32

// Seconds since some point in time.
inline double now() { return 1e-9 * std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Windows counts a thread's seconds on a core in steps of 1/64 s, too coarse to tell who waited: all time counts.
inline double seconds_on_core() { return now(); }

// Gives the core away for a moment.
inline void sleep_briefly() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

// Blocks all signals of the calling thread, and of the threads that it starts; Windows has none.
struct WithoutSignals {
  WithoutSignals() {}
};

// Calls `work` in every child process that is a copy of this one; Windows has none.
inline void in_forked_children(void (*)()) {}

#else

inline double seconds_of(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

// Seconds since some point in time.
inline double now() { return seconds_of(CLOCK_MONOTONIC); }

// Seconds that the calling thread has run on a core.
inline double seconds_on_core() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

// Gives the core away for a moment.
inline void sleep_briefly() { usleep(50); }

// Blocks all signals of the calling thread, and of the threads that it starts, while this object lives.
struct WithoutSignals {
  sigset_t before;
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
  }
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
};

// Calls `work` in every child process that is a copy of this one.
inline void in_forked_children(void (*work)()) { pthread_atfork(nullptr, nullptr, work); }

#endif

// Tells the processor that this thread is waiting.
inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace
