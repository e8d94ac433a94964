#include <fmt/format.h>

#include <algorithm>

#include "octet/app/gate.h"
#include "octet/app/gpu_facts.h"
#include "octet/base/median.h"

namespace octet::app {
namespace {

// Another process may hold up one repeat, but not a tenth of them.
constexpr std::size_t kSlowPart = 10;
// GPUs run faster while they warm up.
constexpr std::size_t kWarmPart = 4;
constexpr double kLeastShare = 0.9;

constexpr const char* kReset = "Reset the GPU or restart the host";

using Holds = std::function<bool(const GpuState&)>;

std::string number(const std::optional<int>& value) { return value ? std::to_string(*value) : "?"; }

// Judges the fact bad if `holds` is true for some GPUs: "GPUs 0, 3 WHAT. ADVICE."
void judge_those(Fact& fact, const std::vector<GpuState>& gpus, const Holds& holds,
                 const std::function<std::string(const GpuState&)>& what, const std::string& advice) {
  if (const std::string which = gpus_where(gpus, holds); !which.empty())
    judge(fact, Verdict::bad, fmt::format("{}: {}. {}.", which, what(first_where(gpus, holds)), advice));
}

void add_memory_errors(std::vector<Fact>& facts, const std::vector<GpuState>& gpus) {
  Fact ecc = list_of("gpus.ecc_uncorrected", gpus, &GpuState::ecc_uncorrected);
  set_text(ecc, "ECC errors", gpus, [](const GpuState& gpu) {
    return gpu.ecc_uncorrected ? fmt::format("{} uncorrected", *gpu.ecc_uncorrected) : "not known";
  });
  judge_those(
      ecc, gpus, [](const GpuState& gpu) { return gpu.ecc_uncorrected.value_or(0) > 0; },
      [](const GpuState& gpu) { return fmt::format("{} errors of memory that ECC could not correct", *gpu.ecc_uncorrected); },
      std::string(kReset) + "; have the GPU replaced if they come again");
  facts.push_back(std::move(ecc));
  Fact pending = list_of("gpus.rows_pending", gpus, &GpuState::rows_pending);
  judge_those(
      pending, gpus, [](const GpuState& gpu) { return gpu.rows_pending.value_or(false); },
      [](const GpuState&) { return "bad rows of memory wait to be replaced"; }, kReset);
  facts.push_back(std::move(pending));
  Fact failed = list_of("gpus.rows_failed", gpus, &GpuState::rows_failed);
  judge_those(
      failed, gpus, [](const GpuState& gpu) { return gpu.rows_failed.value_or(false); },
      [](const GpuState&) { return "bad rows of memory could not be replaced"; }, "Have the GPU replaced");
  facts.push_back(std::move(failed));
}

// Call it right after GEMMs, because an idle link saves power at a lower generation.
void add_pcie(std::vector<Fact>& facts, const std::vector<GpuState>& gpus) {
  const auto link = [](const GpuState& gpu) {
    return fmt::format("PCIe {} x{}", number(gpu.pcie_generation), number(gpu.pcie_width));
  };
  const std::string advice = "Look at the GPU's seat and cable, and at the slot in the BIOS; `nvidia-smi -q` shows the link";
  const auto below = [&](const GpuState& gpu) {
    return fmt::format("the link is {}, and {} x{} is possible", link(gpu), number(gpu.pcie_generation_max),
                       number(gpu.pcie_width_max));
  };
  Fact generation = list_of("gpus.pcie_generation", gpus, &GpuState::pcie_generation);
  set_text(generation, "PCIe", gpus, link);
  judge_those(
      generation, gpus,
      [](const GpuState& gpu) {
        return gpu.pcie_generation && gpu.pcie_generation_max && *gpu.pcie_generation < *gpu.pcie_generation_max;
      },
      below, advice);
  facts.push_back(std::move(generation));
  facts.push_back(list_of("gpus.pcie_generation_max", gpus, &GpuState::pcie_generation_max));
  Fact width = list_of("gpus.pcie_width", gpus, &GpuState::pcie_width);
  judge_those(
      width, gpus,
      [](const GpuState& gpu) { return gpu.pcie_width && gpu.pcie_width_max && *gpu.pcie_width < *gpu.pcie_width_max; }, below,
      advice);
  facts.push_back(std::move(width));
  facts.push_back(list_of("gpus.pcie_width_max", gpus, &GpuState::pcie_width_max));
}

void add_nvlink(std::vector<Fact>& facts, const std::vector<GpuState>& gpus) {
  const std::string advice =
      "`nvidia-smi nvlink -s` and `-e` show the links; nvidia-fabricmanager must run where there is NVSwitch";
  facts.push_back(list_of("gpus.nvlinks", gpus, &GpuState::nvlinks));
  Fact active = list_of("gpus.nvlinks_active", gpus, &GpuState::nvlinks_active);
  set_text(active, "NVLink", gpus, [](const GpuState& gpu) {
    return gpu.nvlinks ? fmt::format("{} of {} links up", gpu.nvlinks_active.value_or(0), *gpu.nvlinks) : "none known";
  });
  // Links of a GPU may lead nowhere by design, but then they do so on all GPUs of the host.
  int most = 0;
  for (const GpuState& gpu : gpus) most = std::max(most, gpu.nvlinks_active.value_or(0));
  judge_those(
      active, gpus, [&](const GpuState& gpu) { return gpu.nvlinks && gpu.nvlinks_active.value_or(0) < most; },
      [&](const GpuState& gpu) {
        return fmt::format("only {} NVLinks are up, and {} on other GPUs of this host", gpu.nvlinks_active.value_or(0), most);
      },
      advice);
  facts.push_back(std::move(active));
  Fact recoveries = list_of("gpus.nvlink_recoveries", gpus, &GpuState::nvlink_recoveries);
  judge_those(
      recoveries, gpus, [](const GpuState& gpu) { return gpu.nvlink_recoveries.value_or(0) > 0; },
      [](const GpuState& gpu) {
        return fmt::format("NVLinks had to be trained again {} times after errors", *gpu.nvlink_recoveries);
      },
      advice);
  facts.push_back(std::move(recoveries));
}

// Describes a slow GPU, or returns "" if there is none.
std::string slow_gpu(const std::vector<GemmCheck>& checks, const char* kind, std::vector<double> GemmCheck::*rates) {
  std::vector<std::vector<double>> warm;
  std::vector<double> all;
  for (const GemmCheck& check : checks) {
    const std::vector<double>& list = check.*rates;
    warm.emplace_back(list.begin() + static_cast<std::ptrdiff_t>(list.size() / kWarmPart), list.end());
    all.insert(all.end(), warm.back().begin(), warm.back().end());
  }
  const double usual = median(all);
  for (std::size_t gpu = 0; gpu < warm.size(); ++gpu) {
    std::vector<double>& list = warm[gpu];
    if (list.size() < kSlowPart) continue;
    const auto slow = list.begin() + static_cast<std::ptrdiff_t>(list.size() / kSlowPart);
    std::nth_element(list.begin(), slow, list.end());
    if (*slow < kLeastShare * usual)
      return fmt::format("GPU {}: a tenth of its {} GEMMs ran at {:.0f} TFLOP/s or less, and {:.0f} are usual on this host",
                         gpu, kind, *slow * 1e-3, usual * 1e-3);
  }
  return "";
}

Json medians(const std::vector<GemmCheck>& checks, std::vector<double> GemmCheck::*rates) {
  Json list = Json::array();
  for (const GemmCheck& check : checks) list.push_back((check.*rates).empty() ? Json() : Json(median(check.*rates)));
  return list;
}

}  // namespace

std::vector<Fact> gpu_gemm_facts(const std::vector<GemmCheck>& checks, GateKind kind) {
  Fact wrong{.name = "gpu_gemm.wrong", .value = ""};
  std::int64_t gemms = 0;
  for (std::size_t gpu = 0; gpu < checks.size(); ++gpu) {
    gemms += checks[gpu].gemms;
    if (checks[gpu].wrong.empty() || wrong.verdict == Verdict::bad) continue;
    const std::string what = fmt::format("GPU {}: {}", gpu, checks[gpu].wrong);
    wrong.value = what;
    judge(wrong, Verdict::bad, what + ". " + kReset + "; have the GPU replaced if this comes again.");
  }
  if (!checks.empty()) {
    wrong.label = "GPU GEMM";
    wrong.text = wrong.verdict == Verdict::ok ? fmt::format("{} right on {} GPUs", gemms, checks.size()) : "wrong";
  }
  std::string slow;
  if (kind == GateKind::full) slow = slow_gpu(checks, "FP8", &GemmCheck::fp8_gflops);
  if (kind == GateKind::full && slow.empty()) slow = slow_gpu(checks, "BF16", &GemmCheck::bf16_gflops);
  Fact slower{.name = "gpu_gemm.slow", .value = slow};
  if (!slow.empty())
    judge(slower, Verdict::bad,
          slow + ". Look at its cooling, power and other processes; `nvidia-smi -q -d PERFORMANCE` shows more.");
  return {std::move(wrong),
          {.name = "gpu_gemm.gemms", .value = gemms},
          {.name = "gpu_gemm.fp8_gflops", .value = medians(checks, &GemmCheck::fp8_gflops)},
          {.name = "gpu_gemm.bf16_gflops", .value = medians(checks, &GemmCheck::bf16_gflops)},
          std::move(slower)};
}

std::vector<Fact> gate_gpu_facts(const CudaState& cuda, int wanted) {
  const std::vector<GpuState> gpus(
      cuda.gpus.begin(), cuda.gpus.begin() + std::min(static_cast<std::ptrdiff_t>(cuda.gpus.size()), std::ptrdiff_t{wanted}));
  Fact count{.name = "gpus.wanted", .value = wanted};
  if (wanted > 0) {
    count.label = "GPUs";
    count.text = fmt::format("{}, and ranks use {}", cuda.gpus.size(), wanted);
  }
  if (static_cast<int>(gpus.size()) < wanted)
    judge(count, Verdict::bad,
          fmt::format(
              "{} ranks need a GPU each, and CUDA shows {}{}{}. A GPU that has failed is missing in `nvidia-smi -L`: restart "
              "the host; or start fewer ranks with -n.",
              wanted, cuda.gpus.size(), cuda.error.empty() ? "" : ": ", cuda.error));
  std::vector<Fact> facts = {std::move(count), list_of("gpus.name", gpus, &GpuState::name),
                             list_of("gpus.bus_id", gpus, &GpuState::bus_id)};
  Fact error = list_of("gpus.error", gpus, &GpuState::error);
  judge_those(
      error, gpus, [](const GpuState& gpu) { return !gpu.error.empty(); }, [](const GpuState& gpu) { return gpu.error; },
      std::string("`nvidia-smi -q` shows its state. ") + kReset);
  facts.push_back(std::move(error));
  add_memory_errors(facts, gpus);
  Fact slowed = list_of("gpus.slowed_by", gpus, &GpuState::slowed_by);
  judge_those(
      slowed, gpus, [](const GpuState& gpu) { return !gpu.slowed_by.value_or("").empty(); },
      [](const GpuState& gpu) { return "the driver holds its clock down because of " + *gpu.slowed_by; },
      "Look at the host's cooling and power supply; `nvidia-smi -q -d PERFORMANCE` shows more");
  facts.push_back(std::move(slowed));
  add_pcie(facts, gpus);
  add_nvlink(facts, gpus);
  return facts;
}

}  // namespace octet::app
