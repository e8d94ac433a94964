#include <fmt/format.h>

#include <cmath>

#include "octet/app/doctor.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

using telemetry::format_bytes;

// The default of most systems. Rank 0 of a run holds a connection to each of the others, and a rank the files of its corpora.
constexpr std::uint64_t kFewFiles = 1024;
// NCCL's own advice for containers.
constexpr std::int64_t kSmallSharedMemory = std::int64_t{1} << 30;
// Room for a few checkpoints of the quickstart.
constexpr std::int64_t kLittleDisk = std::int64_t{1} << 30;
// If less than this share of the memory is free, it counts as nearly full.
constexpr double kLittleMemory = 0.1;

std::string size_of(std::int64_t bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }

std::string size_of(const std::optional<std::int64_t>& bytes) { return bytes ? size_of(*bytes) : "not known"; }

Json json_of_limit(const std::optional<std::uint64_t>& limit) {
  if (!limit) return nullptr;
  return *limit == Limit::kNone ? Json("unlimited") : Json(*limit);
}

void warn(Fact& fact, std::string advice) {
  fact.verdict = Verdict::warn;
  fact.advice = std::move(advice);
}

void add_processor(std::vector<Fact>& facts, const Machine& machine, int threads) {
  facts.push_back(
      {.name = "cpu.name", .label = "processor", .value = machine.processor, .text = machine.processor + ", " + machine.simd});
  facts.push_back({.name = "cpu.simd", .value = machine.simd});
  const GroupCores& group = machine.group_cores;
  Fact cores{.name = "cpu.cores", .label = "cores", .value = machine.cores};
  cores.text = fmt::format("{} for this process, {}", machine.cores, telemetry::format_count(threads, "thread"));
  facts.push_back(std::move(cores));
  Fact quota{.name = "cpu.quota", .label = "CPU quota", .value = json_or_null(group.quota), .text = "none"};
  if (!group.unread.empty()) {
    quota.text = "not known";
    warn(quota, "The CPU quota is not known: " + joined(group.unread, "; ") +
                    ". If the container has one, set `run.threads` to the cores that it grants.");
  }
  if (group.quota) {
    quota.text = fmt::format("{:.3g} cores", *group.quota);
    const int granted = std::max(1, static_cast<int>(std::ceil(*group.quota)));
    if (granted < threads) {
      warn(quota,
           fmt::format("The control group grants the time of {:.3g} cores, and octet starts {} threads, which then wait for each "
                       "other. Set `run.threads = {}`, or raise the quota (`docker run --cpus`).",
                       *group.quota, threads, granted));
    }
  }
  facts.push_back(std::move(quota));
  facts.push_back({.name = "cpu.threads", .value = threads});
}

void add_memory(std::vector<Fact>& facts, const HostMemory& memory) {
  Fact total{
      .name = "memory_bytes", .label = "memory", .value = json_or_null(memory.total_bytes), .text = size_of(memory.total_bytes)};
  if (!memory.unread.empty()) {
    total.text += ", limits not known";
    warn(total,
         "The memory that this process may use is not known: " + joined(memory.unread, "; ") +
             ". octet cannot see a limit that may be there. Compare `octet plan` with the memory of the container yourself.");
  }
  facts.push_back(std::move(total));
  Fact free{.name = "memory_free_bytes",
            .label = "memory free",
            .value = json_or_null(memory.available_bytes),
            .text = size_of(memory.available_bytes)};
  if (!memory.limited_by.empty()) free.text += ", limited by the control group " + memory.limited_by;
  if (memory.total_bytes && memory.available_bytes &&
      static_cast<double>(*memory.available_bytes) < kLittleMemory * static_cast<double>(*memory.total_bytes)) {
    const std::string left = size_of(*memory.available_bytes) + " of " + size_of(*memory.total_bytes);
    warn(free,
         memory.limited_by.empty()
             ? "Only " + left + " of memory are free. End other programs before you train."
             : "The control group " + memory.limited_by + " has only " + left +
                   " left. End other programs in it, or raise its limit (`docker run --memory`, `resources.limits.memory` of "
                   "Kubernetes, `--mem` of Slurm).");
  }
  facts.push_back(std::move(free));
  facts.push_back({.name = "memory_limited_by", .value = memory.limited_by});
}

void add_disk(std::vector<Fact>& facts, const Machine& machine) {
  const std::optional<Space>& disk = machine.disk;
  Fact free{.name = "disk_free_bytes", .label = "disk", .value = disk ? Json(disk->free_bytes) : Json(), .text = "not known"};
  if (disk) {
    free.text = fmt::format("{} free of {} here", size_of(disk->free_bytes), size_of(disk->total_bytes));
    if (disk->free_bytes < kLittleDisk) {
      warn(free, "The disk of the current folder has only " + size_of(disk->free_bytes) +
                     " free. Runs write here unless told otherwise: set `run.output_dir` to a folder on a disk with more room.");
    }
  }
  facts.push_back({.name = "disk_bytes", .value = disk ? Json(disk->total_bytes) : Json()});
  facts.push_back(std::move(free));
  Fact writable{.name = "disk_writable", .value = machine.can_write_here};
  if (!machine.can_write_here) {
    warn(writable, "octet may not write in the current folder. Change to a folder of yours, or set `run.output_dir` to one.");
  }
  facts.push_back(std::move(writable));
}

// NCCL moves data between the GPUs of a machine through /dev/shm if there is no better way.
void add_shared_memory(std::vector<Fact>& facts, const std::optional<Space>& space, std::size_t gpus) {
  facts.push_back({.name = "shared_memory_bytes", .value = space ? Json(space->total_bytes) : Json()});
  Fact free{.name = "shared_memory_free_bytes",
            .label = "/dev/shm",
            .value = space ? Json(space->free_bytes) : Json(),
            .text = "not known"};
  if (space) free.text = fmt::format("{} free of {}", size_of(space->free_bytes), size_of(space->total_bytes));
  const std::string need = "NCCL shares data between GPUs through /dev/shm, ";
  if (gpus > 1 && !space) {
    warn(free, need + "which is not there. Mount a tmpfs of 1 GiB there.");
  } else if (gpus > 1 && space->total_bytes < kSmallSharedMemory) {
    warn(free, need + "which holds only " + size_of(space->total_bytes) +
                   ". Start the container with `--shm-size=1g` or `--ipc=host`, or mount a larger tmpfs.");
  } else if (gpus > 1 && space->free_bytes < kSmallSharedMemory / 2) {
    warn(free,
         need + "which has only " + size_of(space->free_bytes) + " free. Delete files there that ended programs left behind.");
  }
  facts.push_back(std::move(free));
}

void add_limits(std::vector<Fact>& facts, const Machine& machine) {
  const auto soft = [](const std::optional<Limit>& limit) { return limit ? std::optional(limit->soft) : std::nullopt; };
  const auto text = [](const std::optional<std::uint64_t>& limit) {
    if (!limit) return std::string("not known");
    return *limit == Limit::kNone ? std::string("unlimited") : telemetry::format_count(static_cast<std::int64_t>(*limit));
  };
  const std::optional<std::uint64_t> files = soft(machine.open_files), locked = soft(machine.locked_bytes);
  Fact open{.name = "limits.open_files",
            .label = "open files",
            .value = json_of_limit(files),
            .text = text(files) + " at most (nofile)"};
  if (files && *files < kFewFiles) {
    warn(open, fmt::format("This process may have only {} files open at once; runs with many ranks or corpora need more. Run "
                           "`ulimit -n 65536` before octet, or raise `nofile` in /etc/security/limits.conf (`docker run --ulimit "
                           "nofile=65536`).",
                           *files));
  }
  facts.push_back(std::move(open));
  facts.push_back({.name = "limits.open_files_hard",
                   .value = json_of_limit(machine.open_files ? std::optional(machine.open_files->hard) : std::nullopt)});
  Fact lock{.name = "limits.locked_bytes", .label = "locked memory", .value = json_of_limit(locked)};
  lock.text = (locked && *locked != Limit::kNone ? format_bytes(*locked) : text(locked)) + " at most (memlock)";
  if (machine.has_infiniband && locked && *locked != Limit::kNone) {
    warn(lock, "InfiniBand needs locked memory, and this process may lock only " + format_bytes(*locked) +
                   ". Run `ulimit -l unlimited` before octet, or start the container with `--ulimit memlock=-1`.");
  }
  facts.push_back(std::move(lock));
}

}  // namespace

std::vector<Fact> machine_facts(const Machine& machine, int threads, std::size_t gpus) {
  std::vector<Fact> facts;
  add_processor(facts, machine, threads);
  add_memory(facts, machine.memory);
  add_disk(facts, machine);
  add_shared_memory(facts, machine.shared_memory, gpus);
  add_limits(facts, machine);
  return facts;
}

std::vector<Fact> gemm_facts(const Gemm& gemm, const Machine& machine) {
  // OpenBLAS takes Prescott for a processor that it does not know.
  const bool fits = gemm.core != "Prescott" || machine.simd.rfind("AVX", 0) != 0;
  Fact core{.name = "gemm.core", .label = "GEMM", .value = gemm.core};
  core.text = fmt::format("OpenBLAS, {} kernels, {:.0f} GFLOP/s in FP32 on {}", gemm.core, gemm.gflops,
                          telemetry::format_count(gemm.threads, "thread"));
  if (!fits) {
    warn(core, "OpenBLAS runs its " + gemm.core +
                   " kernels, which reach about a tenth of this processor's speed. Unset OPENBLAS_CORETYPE, or "
                   "set it to " +
                   (machine.simd == "AVX2" ? "Haswell." : "SkylakeX."));
  }
  Fact tiles{.name = "gemm.tiles", .label = "BF16 and FP8", .value = gemm.tiles.empty() ? Json() : Json(gemm.tiles)};
  tiles.text =
      fmt::format("{}, {:.0f} GFLOP/s in BF16", gemm.tiles.empty() ? "decoded for OpenBLAS" : gemm.tiles, gemm.bf16_gflops);
  return {{.name = "gemm.library", .value = "OpenBLAS"},
          std::move(core),
          std::move(tiles),
          {.name = "gemm.gflops_bf16", .value = gemm.bf16_gflops},
          {.name = "gemm.gflops_fp32", .value = gemm.gflops},
          {.name = "gemm.core_fits", .value = fits}};
}

Fact self_test_fact(const SelfTest& test) {
  const bool passed = test.failure.empty();
  Fact fact{
      .name = "fp8_self_test", .label = "FP8", .value = {{"passed", passed}, {"checks", test.checks}, {"failure", test.failure}}};
  fact.text = passed ? fmt::format("self-test passed, {} checks", telemetry::format_count(test.checks))
                     : "SELF-TEST FAILED: " + test.failure;
  if (!passed) {
    fact.verdict = Verdict::bad;
    fact.advice =
        "This processor or this build computes wrong FP8 codes. Do not train with it; build octet again on this machine, and if "
        "that does not help, report the line above.";
  }
  return fact;
}

}  // namespace octet::app
