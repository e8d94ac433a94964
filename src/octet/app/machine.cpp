#include "octet/app/machine.h"

#include <link.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "octet/base/clock.h"
#include "octet/base/threads.h"
#include "octet/device/arena.h"
#include "octet/kernels/gemm/gemm.h"

namespace octet::app {
namespace fs = std::filesystem;
namespace {

// The value of "key : value" in a /proc file, or "".
std::string proc_value(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::string simd_of_processor(const fs::path& cpuinfo) {
  const std::string flags = " " + proc_value(cpuinfo, "flags") + proc_value(cpuinfo, "Features") + " ";
  const auto has = [&](const std::string& flag) { return flags.find(" " + flag + " ") != std::string::npos; };
  if (has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512dq"))
    return has("avx512_bf16") ? "AVX-512 with BF16" : "AVX-512";
  if (has("avx2") && has("fma")) return "AVX2";
  if (has("sve")) return "SVE";
  if (has("asimd")) return "NEON";
  return has("sse4_2") ? "SSE4.2" : "unknown";
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 ...", or "... Open Kernel Module for x86_64  580.95.05
// ...": the first word that begins with a digit and has a dot.
std::string driver_version(const fs::path& path) {
  std::istringstream words(proc_value(path, "NVRM version"));
  for (std::string word; words >> word;) {
    if (word[0] >= '0' && word[0] <= '9' && word.find('.') != std::string::npos) return word;
  }
  return "";
}

std::optional<Limit> limit_of(int resource) {
  struct rlimit limit {};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return std::nullopt;
  const auto value = [](rlim_t bound) { return bound == RLIM_INFINITY ? Limit::kNone : std::uint64_t{bound}; };
  return Limit{.soft = value(limit.rlim_cur), .hard = value(limit.rlim_max)};
}

}  // namespace

std::optional<Space> space_of(const fs::path& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) return std::nullopt;
  const auto bytes = [&](auto blocks) { return static_cast<std::int64_t>(blocks * info.f_frsize); };
  return Space{.total_bytes = bytes(info.f_blocks), .free_bytes = bytes(info.f_bavail)};
}

Machine describe_machine(const fs::path& root) {
  const fs::path cpuinfo = root / "proc/cpuinfo", infiniband = root / "sys/class/infiniband";
  const std::string name = proc_value(cpuinfo, "model name");
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::error_code error;
  return {.processor = name.empty() ? "unknown" : name,
          .simd = simd_of_processor(cpuinfo),
          .cores = available_cores(),
          .group_cores = group_cores(root),
          .memory = host_memory(root),
          .disk = space_of("."),
          .shared_memory = space_of(root / "dev/shm"),
          .can_write_here = ::access(".", W_OK | X_OK) == 0,
          .open_files = limit_of(RLIMIT_NOFILE),
          .locked_bytes = limit_of(RLIMIT_MEMLOCK),
          .has_infiniband = fs::is_directory(infiniband, error) && !fs::is_empty(infiniband, error),
          .has_nvidia_device = fs::exists(root / "dev/nvidiactl", error),
          .nvidia_driver = driver_version(root / "proc/driver/nvidia/version"),
          .visible_gpus = visible ? visible : "all"};
}

std::string loaded_library(const std::string& name) {
  struct Search {
    const std::string& name;
    fs::path found;
  } search{name, {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* argument) {
        auto& wanted = *static_cast<Search*>(argument);
        const fs::path path = info->dlpi_name;
        if (path.filename().string().rfind(wanted.name, 0) != 0) return 0;
        wanted.found = path;
        return 1;
      },
      &search);
  std::error_code error;
  return search.found.empty() ? "" : fs::weakly_canonical(search.found, error).string();
}

double measure_gemm_gflops(DType dtype) {
  constexpr std::int64_t kSize = 1024;
  const Shape shape{kSize, kSize};
  const auto meta = make_meta_device(DeviceKind::cpu);
  Arena needed(*meta, MemoryCategory::workspace, 0);  // the scratch grows with the number of cores
  const auto multiply = [](Stream& stream, Arena& scratch, const Tensor& a, const Tensor& b, const Tensor& d) {
    kernels::gemm(stream, scratch, {.a = {.values = a}, .b = {.values = b}, .c = {}, .d = d});
  };
  const Tensor planned = allocate(needed, dtype, shape);
  multiply(*meta->make_stream(), needed, planned, planned, planned);

  const auto device = make_device(DeviceKind::cpu);
  const auto stream = device->make_stream();
  Arena arena(*device, MemoryCategory::workspace, 3 * planned.bytes() + needed.high_water());
  const Tensor a = allocate(arena, dtype, shape), b = allocate(arena, dtype, shape), d = allocate(arena, dtype, shape);
  visit_float(dtype, [&]<class T>() {
    std::fill_n(a.as<T>(), kSize * kSize, T(0.5f));
    std::fill_n(b.as<T>(), kSize * kSize, T(0.25f));
  });
  double best_s = 1e9;
  for (const auto end = Clock::now() + std::chrono::milliseconds(500); Clock::now() < end;) {
    const auto begin = Clock::now();
    multiply(*stream, arena, a, b, d);
    stream->synchronize();
    best_s = std::min(best_s, seconds_since(begin));
  }
  return 2.0 * kSize * kSize * kSize / best_s * 1e-9;
}

}  // namespace octet::app
