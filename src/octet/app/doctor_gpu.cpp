#include <fmt/format.h>

#include "octet/app/doctor.h"
#include "octet/app/gpu_facts.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

// A power cap below this share of the default is more than rounding.
constexpr double kFullPower = 0.99;
// A context of this program takes about half a GiB.
constexpr double kFreeMemory = 0.9;

std::string cuda_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// The first driver of a major version of CUDA (NVIDIA's table "CUDA Toolkit and Minimum Required Driver Version").
std::string driver_for(int cuda) {
  if (cuda / 1000 == 12) return "525 or newer";
  if (cuda / 1000 == 13) return "580 or newer";
  return "that serves CUDA " + cuda_text(cuda) + " or newer";
}

std::string architecture_text(const std::vector<int>& architectures) {
  return fmt::format("sm_{}", fmt::join(architectures, ", sm_"));
}

// Says why this program cannot use a GPU here, and what to do.
void judge_missing(Fact& fact, const CudaState& cuda, const Machine& machine, bool cuda_build) {
  const bool driver_runs = machine.has_nvidia_device || !machine.nvidia_driver.empty();
  if (!cuda_build) {
    fact.text = "none: this build has no CUDA backend; everything runs on the CPU";
    if (driver_runs) {
      judge(fact, Verdict::warn,
            "This machine has an NVIDIA GPU, and this build of octet cannot use it. Use a build with CUDA "
            "(`cmake --preset cuda` where you build it yourself).");
    }
    return;
  }
  fact.text = "none that CUDA can use; everything runs on the CPU";
  if (machine.visible_gpus.empty() || machine.visible_gpus == "-1") {
    judge(fact, Verdict::warn, "CUDA_VISIBLE_DEVICES hides every GPU. Unset it.");
  } else if (cuda.driver_cuda == 0 && !driver_runs) {
    judge(fact, Verdict::warn,
          "No NVIDIA driver runs here, so that octet computes on the CPU. If the machine has a GPU, install driver " +
              driver_for(cuda.runtime_cuda) + "; in a container, start it with `--gpus all`.");
  } else if (cuda.driver_cuda == 0) {
    judge(fact, Verdict::bad,
          "The NVIDIA driver runs, but its library libcuda.so.1 cannot be loaded. In a container, start it with `--gpus all` "
          "(NVIDIA Container Toolkit); elsewhere, install the driver's libraries of the same version.");
  } else if (cuda.driver_cuda / 1000 < cuda.runtime_cuda / 1000) {
    judge(fact, Verdict::bad,
          "The NVIDIA driver serves CUDA up to " + cuda_text(cuda.driver_cuda) + ", and this program needs CUDA " +
              cuda_text(cuda.runtime_cuda) + ". Install driver " + driver_for(cuda.runtime_cuda) + ".");
  } else {
    judge(
        fact, Verdict::bad,
        "CUDA finds no GPU: " + cuda.error + ". Compare with `nvidia-smi`; after an update of the driver, restart the machine.");
  }
}

void add_gpu(std::vector<Fact>& facts, const CudaState& cuda) {
  const std::vector<GpuState>& gpus = cuda.gpus;
  const auto sick = [](const GpuState& gpu) { return !gpu.error.empty(); };
  Fact error = list_of("gpus.error", gpus, &GpuState::error);
  if (const std::string which = gpus_where(gpus, sick); !which.empty()) {
    judge(error, Verdict::bad,
          which + " cannot be used: " + first_where(gpus, sick).error +
              ". `nvidia-smi -q` shows its state; another process may hold it, or it needs a reset.");
  }
  facts.push_back(std::move(error));

  Fact capability = list_of("gpus.compute_capability", gpus, &GpuState::compute_capability);
  const auto too_old = [](const GpuState& gpu) { return gpu.compute_capability < kOldestWithFp8; };
  if (const std::string which = gpus_where(gpus, too_old); !which.empty()) {
    judge(capability, Verdict::warn,
          fmt::format("FP8 needs sm_{} or newer, and {} has sm_{}. Train with `precision.recipe = \"bf16\"`, or on another GPU.",
                      kOldestWithFp8, which, first_where(gpus, too_old).compute_capability));
  }
  facts.push_back(std::move(capability));

  Fact code = list_of("gpus.has_code", gpus, &GpuState::has_code);
  set_text(code, "GPU code", gpus, [](const GpuState& gpu) { return gpu.has_code ? "yes" : "no"; });
  code.text += ", this program has it for " + architecture_text(cuda.architectures);
  const auto without_code = [](const GpuState& gpu) { return gpu.error.empty() && !gpu.has_code; };
  if (const std::string which = gpus_where(gpus, without_code); !which.empty()) {
    const int wanted = first_where(gpus, without_code).compute_capability;
    const std::string build = wanted >= kOldestWithKernels
                                  ? fmt::format(", or build octet with -DOCTET_CUDA_ARCHITECTURES={}", wanted)
                                  : fmt::format("; octet needs sm_{} or newer", kOldestWithKernels);
    judge(code, Verdict::bad,
          fmt::format("This program has GPU code for {}, and {} has sm_{}. Set `run.device = \"cpu\"` or use another GPU{}.",
                      architecture_text(cuda.architectures), which, wanted, build));
  }
  facts.push_back(std::move(code));
}

void add_memory(std::vector<Fact>& facts, const std::vector<GpuState>& gpus) {
  const auto bytes = [](std::size_t count) { return telemetry::format_bytes(count); };
  Fact free = list_of("gpus.memory_free_bytes", gpus, &GpuState::memory_free_bytes);
  set_text(free, "GPU memory", gpus,
           [&](const GpuState& gpu) { return bytes(gpu.memory_free_bytes) + " free of " + bytes(gpu.memory_bytes); });
  const auto shared = [](const GpuState& gpu) {
    return gpu.error.empty() && static_cast<double>(gpu.memory_free_bytes) < kFreeMemory * static_cast<double>(gpu.memory_bytes);
  };
  if (const std::string which = gpus_where(gpus, shared); !which.empty()) {
    judge(free, Verdict::warn,
          "Other processes hold memory of " + which + ", of which " + bytes(first_where(gpus, shared).memory_free_bytes) +
              " are free. `nvidia-smi` shows them; end them, or choose GPUs with CUDA_VISIBLE_DEVICES.");
  }
  facts.push_back(list_of("gpus.memory_bytes", gpus, &GpuState::memory_bytes));
  facts.push_back(std::move(free));
}

// Adds the facts about power and clocks.
void add_speed(std::vector<Fact>& facts, const std::vector<GpuState>& gpus) {
  Fact cap = list_of("gpus.power_cap_w", gpus, &GpuState::power_cap_w);
  const auto watts = [](const std::optional<double>& power) { return power ? fmt::format("{:.0f} W", *power) : "not known"; };
  set_text(cap, "GPU power cap", gpus,
           [&](const GpuState& gpu) { return watts(gpu.power_cap_w) + " of " + watts(gpu.power_default_w); });
  const auto capped = [](const GpuState& gpu) {
    return gpu.power_cap_w && gpu.power_default_w && *gpu.power_cap_w < kFullPower * *gpu.power_default_w;
  };
  if (const std::string which = gpus_where(gpus, capped); !which.empty()) {
    const GpuState& gpu = first_where(gpus, capped);
    judge(cap, Verdict::warn,
          fmt::format("The power of {} is capped at {}, where {} is the default, and a training step runs as fast as its "
                      "power allows. Raise it with `nvidia-smi -pl {:.0f}` (as root).",
                      which, watts(gpu.power_cap_w), watts(gpu.power_default_w), *gpu.power_default_w));
  }
  facts.push_back(std::move(cap));
  facts.push_back(list_of("gpus.power_default_w", gpus, &GpuState::power_default_w));

  Fact clock = list_of("gpus.clock_mhz", gpus, &GpuState::clock_mhz);
  const auto megahertz = [](const std::optional<int>& value) { return value ? fmt::format("{} MHz", *value) : "not known"; };
  set_text(clock, "GPU clock", gpus,
           [&](const GpuState& gpu) { return megahertz(gpu.clock_mhz) + " now, " + megahertz(gpu.clock_max_mhz) + " at most"; });
  facts.push_back(std::move(clock));
  facts.push_back(list_of("gpus.clock_max_mhz", gpus, &GpuState::clock_max_mhz));
  Fact slowed = list_of("gpus.slowed_by", gpus, &GpuState::slowed_by);
  const auto slow = [](const GpuState& gpu) { return !gpu.slowed_by.value_or("").empty(); };
  if (const std::string which = gpus_where(gpus, slow); !which.empty()) {
    judge(slowed, Verdict::warn,
          "The driver slows " + which + " down because of " + *first_where(gpus, slow).slowed_by +
              ". Look at the machine's cooling and power supply; `nvidia-smi -q -d PERFORMANCE` shows more.");
  }
  facts.push_back(std::move(slowed));
}

void add_links(std::vector<Fact>& facts, const std::vector<GpuState>& gpus) {
  Fact active = list_of("gpus.nvlinks_active", gpus, &GpuState::nvlinks_active);
  set_text(active, "NVLink", gpus, [](const GpuState& gpu) {
    return gpu.nvlinks ? fmt::format("{} of {} links up", gpu.nvlinks_active.value_or(0), *gpu.nvlinks) : "none known";
  });
  const auto down = [](const GpuState& gpu) { return gpu.nvlinks && gpu.nvlinks_active.value_or(0) < *gpu.nvlinks; };
  if (const std::string which = gpus_where(gpus, down); gpus.size() > 1 && !which.empty()) {
    const GpuState& gpu = first_where(gpus, down);
    judge(active, Verdict::warn,
          fmt::format("Of {} only {} of {} NVLinks are up, so that GPUs exchange data slowly. `nvidia-smi nvlink -s` shows "
                      "the links; on machines with NVSwitch the service nvidia-fabricmanager must run.",
                      which, gpu.nvlinks_active.value_or(0), *gpu.nvlinks));
  }
  facts.push_back(list_of("gpus.nvlinks", gpus, &GpuState::nvlinks));
  facts.push_back(std::move(active));
  Fact multicast = list_of("gpus.multicast", gpus, &GpuState::multicast);
  set_text(multicast, "NVLink multicast", gpus, [](const GpuState& gpu) {
    return !gpu.multicast ? "not known" : *gpu.multicast ? "supported" : "not supported";
  });
  facts.push_back(std::move(multicast));
}

}  // namespace

std::vector<Fact> cuda_facts(const CudaState& cuda, const Machine& machine, bool cuda_build) {
  std::vector<Fact> facts = {{.name = "cuda_build", .value = cuda_build}};
  Fact usable{.name = "cuda", .label = "GPU", .value = !cuda.gpus.empty()};
  Fact name = list_of("gpus.name", cuda.gpus, &GpuState::name);
  if (cuda.gpus.empty()) {
    judge_missing(usable, cuda, machine, cuda_build);
  } else {
    set_text(usable, "GPU", cuda.gpus,
             [](const GpuState& gpu) { return fmt::format("{}, sm_{}", gpu.name, gpu.compute_capability); });
  }
  facts.push_back(std::move(usable));

  const std::string version = cuda.driver.empty() ? machine.nvidia_driver : cuda.driver;
  Fact driver{.name = "driver.version", .label = "GPU driver", .value = version.empty() ? Json() : Json(version)};
  driver.text = version.empty() ? "none found" : version;
  if (cuda.driver_cuda != 0) driver.text += ", serves CUDA " + cuda_text(cuda.driver_cuda);
  if (!cuda.gpus.empty() && !cuda.nvml_error.empty()) {
    judge(driver, Verdict::warn,
          "Power, clocks and NVLink are not known, as the driver's library for them does not answer: " + cuda.nvml_error +
              ". In a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility.");
  }
  facts.push_back(std::move(driver));
  facts.push_back({.name = "driver.cuda", .value = cuda.driver_cuda == 0 ? Json() : Json(cuda_text(cuda.driver_cuda))});
  Fact toolkit{.name = "toolkit.cuda", .value = cuda_build ? Json(cuda_text(cuda.runtime_cuda)) : Json()};
  if (cuda_build) {
    toolkit.label = "CUDA";
    toolkit.text =
        cuda_text(cuda.runtime_cuda) + ", built into this program, with code for " + architecture_text(cuda.architectures);
  }
  facts.push_back(std::move(toolkit));
  facts.push_back({.name = "toolkit.architectures", .value = cuda.architectures});
  facts.push_back({.name = "gpus.visible", .value = machine.visible_gpus});
  facts.push_back(std::move(name));
  add_gpu(facts, cuda);
  add_memory(facts, cuda.gpus);
  add_speed(facts, cuda.gpus);
  add_links(facts, cuda.gpus);
  return facts;
}

std::vector<Fact> library_facts(const std::vector<LibraryState>& libraries) {
  std::vector<Fact> facts;
  for (const LibraryState& library : libraries) {
    const auto known = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
    Fact fact{.name = "libraries." + library.name, .value = {{"version", known(library.version)}, {"path", known(library.path)}}};
    if (!library.version.empty() || !library.path.empty()) {
      fact.label = library.name;
      fact.text = library.version + (library.version.empty() || library.path.empty() ? "" : ", ") + library.path;
    }
    facts.push_back(std::move(fact));
  }
  return facts;
}

}  // namespace octet::app
