// The operating system's description of this machine. Empty values could not be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "octet/base/control_group.h"
#include "octet/tensor/dtype.h"

namespace octet::app {

// Room on a file system.
struct Space {
  std::int64_t total_bytes = 0, free_bytes = 0;
};

struct Limit {
  std::uint64_t soft = 0, hard = 0;
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
};

struct Machine {
  std::string processor;   // as it calls itself
  std::string simd;        // the widest instruction set that matters here: "AVX-512 with BF16", "AVX2", "NEON", ...
  int cores = 0;           // that the affinity mask allows
  GroupCores group_cores;
  HostMemory memory;
  std::optional<Space> disk, shared_memory;  // the current folder, and /dev/shm
  bool can_write_here = false;               // files in the current folder
  std::optional<Limit> open_files, locked_bytes;
  bool has_infiniband = false;
  bool has_nvidia_device = false;   // /dev/nvidiactl
  std::string nvidia_driver;        // version of the kernel's module; "" without one
  std::string visible_gpus;         // CUDA_VISIBLE_DEVICES; "all" where it is not set
};

// `root` is the root of the file system for /proc, /sys and /dev; tests pass a made-up tree. Affinity, limits, environment and the
// current folder are those of the process.
Machine describe_machine(const std::filesystem::path& root = "/");

// The room on the file system of this path; nothing if it cannot be read.
std::optional<Space> space_of(const std::filesystem::path& path);

// Returns the rate of a GEMM with operands and results of this dtype and this process's threads, in 1e9 FLOPs per second: the
// best of half a second.
double measure_gemm_gflops(DType dtype);

// Returns the path of a shared library that this program has loaded, found by the beginning of its name ("libnccl.so"), or "".
std::string loaded_library(const std::string& name);

}  // namespace octet::app
