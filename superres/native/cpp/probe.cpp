// Says what the processor can do. A library of its own: it is compiled for the oldest processors and in no time, and
// superres/native/build.py asks it which variant of native.cpp to compile or to load.

#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
  Registers(unsigned leaf, unsigned part) { __get_cpuid_count(leaf, part, &a, &b, &c, &d); }  // zeros for unknown leaves
};

// The parts of the registers that the system saves: a bit per kind of register.
unsigned saved_registers() {
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

std::string features() {
  std::string text;
  const auto add = [&](unsigned registers, int bit, const char* name) {
    if (registers >> bit & 1) text += std::string(text.empty() ? "" : " ") + name;
  };
  const Registers basic(1, 0), more(7, 0), rest(7, 1), extended(0x80000001, 0);
  add(basic.c, 13, "cx16"), add(basic.c, 23, "popcnt"), add(basic.c, 9, "ssse3"), add(basic.c, 19, "sse4.1");
  add(basic.c, 20, "sse4.2"), add(basic.c, 22, "movbe"), add(more.b, 3, "bmi"), add(more.b, 8, "bmi2"), add(extended.c, 5, "lzcnt");
  // Wide registers need the system's support: it must save them when it switches processes.
  const unsigned saved = basic.c >> 27 & 1 ? saved_registers() : 0;
  if ((saved & 0x6) != 0x6) return text;
  add(basic.c, 28, "avx"), add(more.b, 5, "avx2"), add(basic.c, 29, "f16c"), add(basic.c, 12, "fma"), add(rest.a, 4, "avxvnni");
  if ((saved & 0xe6) != 0xe6) return text;
  add(more.b, 16, "avx512f"), add(more.b, 30, "avx512bw"), add(more.b, 28, "avx512cd"), add(more.b, 17, "avx512dq");
  add(more.b, 31, "avx512vl"), add(more.c, 11, "avx512vnni");
  return text;
}

#elif defined(__linux__) && defined(__aarch64__)

std::string features() { return getauxval(AT_HWCAP) >> 20 & 1 ? "dotprod" : ""; }  // HWCAP_ASIMDDP

#elif defined(__APPLE__)

std::string features() {
  int has = 0;
  size_t size = sizeof has;
  return !sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) && has ? "dotprod" : "";
}

#else

std::string features() { return ""; }

#endif

}  // namespace

// The features of the processor that variants.py names, separated by spaces.
extern "C" const char* superres_processor() {
  static const std::string text = features();
  return text.c_str();
}
