// What the operating system says of this machine.
#pragma once

#include <cstdint>
#include <string>

namespace octet::app {

struct Machine {
  std::string processor;     // as it calls itself
  std::string simd;          // the widest instruction set that matters here: "AVX-512 with BF16", "AVX2", "NEON", ...
  int cores = 0;             // that this process may use
  std::int64_t memory_bytes = 0, memory_free_bytes = 0;  // the container's limit where there is one
  std::int64_t disk_free_bytes = 0;                      // where the current directory lies
};
Machine describe_machine();

// FP32 rate of the GEMM with this process's threads, best of half a second, in 1e9 FLOPs per second.
double measure_gemm_gflops();

}  // namespace octet::app
