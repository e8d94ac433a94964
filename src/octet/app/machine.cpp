#include "octet/app/machine.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "octet/base/clock.h"
#include "octet/base/threads.h"
#include "octet/device/arena.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/train/version.h"

namespace octet::app {
namespace {

// The value of "key : value" in a /proc file, or "".
std::string proc_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::int64_t memory_value(const std::string& key) {
  std::istringstream text(proc_value("/proc/meminfo", key));
  std::int64_t kib = 0;
  text >> kib;
  return kib * 1024;
}

// A number alone in a file, or -1 ("max" included).
std::int64_t number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = -1;
  return file >> value ? value : -1;
}

std::string simd_of_processor() {
  const std::string flags = " " + proc_value("/proc/cpuinfo", "flags") + proc_value("/proc/cpuinfo", "Features") + " ";
  const auto has = [&](const std::string& flag) { return flags.find(" " + flag + " ") != std::string::npos; };
  if (has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512dq")) return has("avx512_bf16") ? "AVX-512 with BF16" : "AVX-512";
  if (has("avx2") && has("fma")) return "AVX2";
  if (has("sve")) return "SVE";
  if (has("asimd")) return "NEON";
  return has("sse4_2") ? "SSE4.2" : "unknown";
}

}  // namespace

Machine describe_machine() {
  Machine machine;
  machine.processor = train::device_name(DeviceKind::cpu);
  machine.simd = simd_of_processor();
  machine.cores = available_cores();
  machine.memory_bytes = memory_value("MemTotal");
  machine.memory_free_bytes = memory_value("MemAvailable");
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (limit > 0 && limit < machine.memory_bytes) {
    machine.memory_bytes = limit;
    if (used >= 0) machine.memory_free_bytes = std::min(machine.memory_free_bytes, std::max<std::int64_t>(0, limit - used));
  }
  std::error_code error;
  const auto space = std::filesystem::space(".", error);
  machine.disk_free_bytes = error ? 0 : static_cast<std::int64_t>(space.available);
  return machine;
}

double measure_gemm_gflops() {
  constexpr std::int64_t kSize = 1024;
  const auto device = make_device(DeviceKind::cpu);
  const auto queue = device->make_queue();
  Arena arena(*device, MemoryCategory::workspace, std::size_t{16} * kSize * kSize);
  const Tensor a = allocate(arena, DType::f32, {kSize, kSize}), b = allocate(arena, DType::f32, {kSize, kSize}),
               d = allocate(arena, DType::f32, {kSize, kSize});
  std::fill_n(a.as<float>(), kSize * kSize, 0.5f);
  std::fill_n(b.as<float>(), kSize * kSize, 0.25f);
  double best_s = 1e9;
  for (const auto end = Clock::now() + std::chrono::milliseconds(500); Clock::now() < end;) {
    const auto begin = Clock::now();
    kernels::gemm(*queue, arena, {.a = {.values = a}, .b = {.values = b}, .c = {}, .d = d});
    queue->synchronize();
    best_s = std::min(best_s, seconds_since(begin));
  }
  return 2.0 * kSize * kSize * kSize / best_s * 1e-9;
}

}  // namespace octet::app
