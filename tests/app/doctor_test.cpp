#include "octet/app/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

#include "octet/app/machine.h"
#include "octet/base/json.h"
#include "octet/base/threads.h"
#include "octet/device/cuda/cuda_device.h"
#include "support/errors.h"
#include "support/facts.h"
#include "support/paths.h"
#include "support/program.h"

namespace octet::app {
namespace {

using octet::testing::ProgramResult;
using octet::testing::run_program;
using octet::testing::TemporaryFolder;

constexpr std::int64_t kGib = std::int64_t{1} << 30;

// Returns a machine without faults.
Machine good_machine() {
  return {.processor = "A Processor",
          .simd = "AVX-512",
          .cores = 8,
          .group_cores = {},
          .memory = {.total_bytes = 64 * kGib, .available_bytes = 60 * kGib, .limited_by = "", .unread = {}},
          .disk = Space{.total_bytes = 100 * kGib, .free_bytes = 50 * kGib},
          .shared_memory = Space{.total_bytes = 32 * kGib, .free_bytes = 32 * kGib},
          .can_write_here = true,
          .open_files = Limit{.soft = 1024, .hard = 4096},
          .locked_bytes = Limit{.soft = 8 << 20, .hard = 8 << 20},
          .has_infiniband = false,
          .has_nvidia_device = true,
          .nvidia_driver = "580.95.05",
          .visible_gpus = "all"};
}

GpuState good_gpu() {
  return {.name = "NVIDIA H100 80GB HBM3",
          .bus_id = "0000:1A:00.0",
          .compute_capability = 90,
          .has_code = true,
          .error = "",
          .memory_bytes = std::size_t{80} << 30,
          .memory_free_bytes = std::size_t{79} << 30,
          .multicast = true,
          .power_cap_w = 700,
          .power_default_w = 700,
          .clock_mhz = 1980,
          .clock_max_mhz = 1980,
          .slowed_by = "",
          .nvlinks = 18,
          .nvlinks_active = 18};
}

CudaState good_cuda() {
  return {.driver_cuda = 13000,
          .runtime_cuda = 13000,
          .driver = "580.95.05",
          .nvml_error = "",
          .error = "",
          .architectures = {90},
          .gpus = {good_gpu(), good_gpu()}};
}

CudaState cuda_without_gpus(int driver_cuda, const std::string& error) {
  CudaState cuda = good_cuda();
  cuda.gpus.clear();
  cuda.driver_cuda = driver_cuda;
  cuda.error = error;
  return cuda;
}

// Returns the names that doctor.h documents, in lines of "//   group.name .name  description".
std::vector<std::string> documented_names(const std::string& name) {
  std::vector<std::string> names;
  std::ifstream header(testing::source_dir() + "/src/octet/app/" + name);
  for (std::string line; std::getline(header, line) && line != "#pragma once";) {
    if (line.rfind("//   ", 0) != 0 || line[5] == ' ') continue;
    std::istringstream words(line.substr(5, line.find("  ", 5) - 5));
    std::string group;
    for (std::string word; words >> word;) {
      if (word[0] != '.') group = word.substr(0, word.find('.'));
      names.push_back(word[0] == '.' ? group + word : word);
    }
  }
  return names;
}

TEST(Doctor, FindsNothingWrongWithAGoodMachine) {
  EXPECT_TRUE(all_ok(machine_facts(good_machine(), 8, 2)));
  EXPECT_TRUE(all_ok(gemm_facts({.core = "SkylakeX", .gflops = 500, .threads = 8}, good_machine())));
  EXPECT_TRUE(all_ok(cuda_facts(good_cuda(), good_machine(), true)));
  Machine without_gpu = good_machine();
  without_gpu.has_nvidia_device = false;
  without_gpu.nvidia_driver = "";
  EXPECT_TRUE(all_ok(cuda_facts({}, without_gpu, false)));
}

TEST(Doctor, AdvisesOnLimits) {
  Machine machine = good_machine();
  machine.open_files = Limit{.soft = 256, .hard = 256};
  EXPECT_TRUE(advises(machine_facts(machine, 8, 0), "limits.open_files", Verdict::warn, {"only 256 files", "`ulimit -n 65536`"}));
  machine.has_infiniband = true;
  EXPECT_TRUE(advises(machine_facts(machine, 8, 0), "limits.locked_bytes", Verdict::warn, {"8.00 MiB", "`ulimit -l unlimited`"}));
  machine.locked_bytes = Limit{.soft = Limit::kNone, .hard = Limit::kNone};
  const std::vector<Fact> facts = machine_facts(machine, 8, 0);
  EXPECT_EQ(fact_of(facts, "limits.locked_bytes").verdict, Verdict::ok);
  EXPECT_EQ(fact_of(facts, "limits.locked_bytes").value, "unlimited");
}

TEST(Doctor, AdvisesOnSharedMemoryWhereGpusShareIt) {
  Machine machine = good_machine();
  machine.shared_memory = Space{.total_bytes = 64 << 20, .free_bytes = 64 << 20};
  EXPECT_TRUE(
      advises(machine_facts(machine, 8, 2), "shared_memory_free_bytes", Verdict::warn, {"only 64.0 MiB", "`--shm-size=1g`"}));
  EXPECT_TRUE(all_ok(machine_facts(machine, 8, 1)));
  machine.shared_memory = Space{.total_bytes = 8 * kGib, .free_bytes = 1 << 20};
  EXPECT_TRUE(
      advises(machine_facts(machine, 8, 2), "shared_memory_free_bytes", Verdict::warn, {"only 1.00 MiB free", "Delete files"}));
  machine.shared_memory.reset();
  EXPECT_TRUE(advises(machine_facts(machine, 8, 2), "shared_memory_free_bytes", Verdict::warn, {"not there"}));
}

TEST(Doctor, AdvisesOnMemory) {
  Machine machine = good_machine();
  machine.memory = {.total_bytes = 4 * kGib, .available_bytes = kGib / 4, .limited_by = "/sys/fs/cgroup/job", .unread = {}};
  EXPECT_TRUE(advises(machine_facts(machine, 8, 0), "memory_free_bytes", Verdict::warn,
                      {"/sys/fs/cgroup/job has only 256 MiB of 4.00 GiB left", "`docker run --memory`"}));
  machine.memory.limited_by = "";
  EXPECT_TRUE(advises(machine_facts(machine, 8, 0), "memory_free_bytes", Verdict::warn, {"Only 256 MiB", "End other programs"}));
  machine.memory = {.total_bytes = 64 * kGib, .available_bytes = 60 * kGib, .limited_by = "", .unread = {"/x/memory.max: No"}};
  EXPECT_TRUE(
      advises(machine_facts(machine, 8, 0), "memory_bytes", Verdict::warn, {"is not known: /x/memory.max: No", "`octet plan`"}));
}

TEST(Doctor, AdvisesOnCoresAndDisk) {
  Machine machine = good_machine();
  machine.group_cores.quota = 1.5;
  EXPECT_TRUE(advises(machine_facts(machine, 8, 0), "cpu.quota", Verdict::warn, {"1.5 cores", "8 threads", "`run.threads = 2`"}));
  EXPECT_TRUE(all_ok(machine_facts(machine, 2, 0)));
  machine.group_cores = {.quota = {}, .unread = {"/x/cpu.max: No"}};
  EXPECT_TRUE(advises(machine_facts(machine, 8, 0), "cpu.quota", Verdict::warn, {"/x/cpu.max: No", "`run.threads`"}));

  machine = good_machine();
  machine.disk = Space{.total_bytes = 100 * kGib, .free_bytes = 5 << 20};
  machine.can_write_here = false;
  EXPECT_TRUE(advises(machine_facts(machine, 8, 0), "disk_free_bytes", Verdict::warn, {"only 5.00 MiB", "`run.output_dir`"}));
  EXPECT_TRUE(advises(machine_facts(machine, 8, 0), "disk_writable", Verdict::warn, {"may not write", "`run.output_dir`"}));
}

TEST(Doctor, AdvisesOnKernelsForAnotherProcessor) {
  EXPECT_TRUE(advises(gemm_facts({.core = "Prescott", .gflops = 5}, good_machine()), "gemm.core", Verdict::warn,
                      {"Prescott", "SkylakeX"}));
  Machine old = good_machine();
  old.simd = "SSE4.2";
  EXPECT_TRUE(all_ok(gemm_facts({.core = "Prescott", .gflops = 5}, old)));
}

TEST(Doctor, NamesTheKernelOfBf16AndFp8) {
  const Gemm blas{.core = "SkylakeX", .gflops = 280, .bf16_gflops = 270};
  Gemm tiles = blas;
  tiles.tiles = "AMX-BF16";
  tiles.bf16_gflops = 1850;
  EXPECT_TRUE(testing::contains(facts_text(gemm_facts(blas, good_machine())), "decoded for OpenBLAS, 270 GFLOP/s in BF16"));
  EXPECT_TRUE(testing::contains(facts_text(gemm_facts(tiles, good_machine())), "AMX-BF16, 1850 GFLOP/s in BF16"));
  EXPECT_EQ(facts_json(gemm_facts(blas, good_machine()))["gemm"]["tiles"], Json());
  EXPECT_EQ(facts_json(gemm_facts(tiles, good_machine()))["gemm"]["tiles"], "AMX-BF16");
}

TEST(Doctor, SaysWhyNoGpuIsUsed) {
  Machine machine = good_machine();
  EXPECT_TRUE(advises(cuda_facts({}, machine, false), "cuda", Verdict::warn, {"this build of octet cannot use it", "CUDA"}));

  const CudaState too_old = cuda_without_gpus(12040, "CUDA driver version is insufficient for CUDA runtime version");
  EXPECT_TRUE(advises(cuda_facts(too_old, machine, true), "cuda", Verdict::bad,
                      {"up to 12.4", "needs CUDA 13.0", "Install driver 580 or newer"}));
  const CudaState no_library = cuda_without_gpus(0, "CUDA driver version is insufficient for CUDA runtime version");
  EXPECT_TRUE(
      advises(cuda_facts(no_library, machine, true), "cuda", Verdict::bad, {"libcuda.so.1 cannot be loaded", "`--gpus all`"}));
  const CudaState broken = cuda_without_gpus(13000, "system has unsupported display driver / cuda driver combination");
  EXPECT_TRUE(advises(cuda_facts(broken, machine, true), "cuda", Verdict::bad, {"unsupported display driver", "restart"}));

  machine.has_nvidia_device = false;
  machine.nvidia_driver = "";
  EXPECT_TRUE(advises(cuda_facts(no_library, machine, true), "cuda", Verdict::warn,
                      {"No NVIDIA driver runs here", "driver 580 or newer", "`--gpus all`"}));
  machine = good_machine();
  machine.visible_gpus = "";
  EXPECT_TRUE(advises(cuda_facts(cuda_without_gpus(13000, "no CUDA-capable device is detected"), machine, true), "cuda",
                      Verdict::warn, {"CUDA_VISIBLE_DEVICES"}));
}

TEST(Doctor, AdvisesOnGpus) {
  const auto facts_with = [](const std::function<void(GpuState&)>& change) {
    CudaState cuda = good_cuda();
    change(cuda.gpus[1]);
    return cuda_facts(cuda, good_machine(), true);
  };
  std::vector<Fact> facts = facts_with([](GpuState& gpu) {
    gpu.compute_capability = 120;
    gpu.has_code = false;
  });
  EXPECT_TRUE(advises(facts, "gpus.has_code", Verdict::bad,
                      {"GPU code for sm_90, and GPU 1 has sm_120", "`run.device = \"cpu\"`", "-DOCTET_CUDA_ARCHITECTURES=120"}));
  const std::vector<Fact> old = facts_with([](GpuState& gpu) {
    gpu.compute_capability = 80;
    gpu.has_code = false;
  });
  EXPECT_TRUE(advises(old, "gpus.has_code", Verdict::bad, {"GPU 1 has sm_80", "octet needs sm_90 or newer"}));
  EXPECT_EQ(fact_of(facts, "gpus.has_code").value, Json({true, false}));
  facts = facts_with([](GpuState& gpu) { gpu.compute_capability = 80; });
  EXPECT_TRUE(advises(facts, "gpus.compute_capability", Verdict::warn, {"GPU 1 has sm_80", "`precision.recipe = \"bf16\"`"}));
  facts = facts_with([](GpuState& gpu) { gpu.error = "uncorrectable ECC error encountered"; });
  EXPECT_TRUE(advises(facts, "gpus.error", Verdict::bad, {"GPU 1 cannot be used", "uncorrectable ECC error", "nvidia-smi -q"}));
  facts = facts_with([](GpuState& gpu) { gpu.memory_free_bytes /= 2; });
  EXPECT_TRUE(advises(facts, "gpus.memory_free_bytes", Verdict::warn, {"GPU 1", "39.5 GiB are free", "CUDA_VISIBLE_DEVICES"}));
  facts = facts_with([](GpuState& gpu) { gpu.power_cap_w = 400; });
  EXPECT_TRUE(advises(facts, "gpus.power_cap_w", Verdict::warn, {"GPU 1 is capped at 400 W", "`nvidia-smi -pl 700`"}));
  EXPECT_EQ(fact_of(facts, "gpus.power_cap_w").text, "0: 700 W of 700 W; 1: 400 W of 700 W");
  facts = facts_with([](GpuState& gpu) { gpu.slowed_by = "heat"; });
  EXPECT_TRUE(advises(facts, "gpus.slowed_by", Verdict::warn, {"GPU 1", "heat", "cooling"}));
  facts = facts_with([](GpuState& gpu) { gpu.nvlinks_active = 12; });
  EXPECT_TRUE(advises(facts, "gpus.nvlinks_active", Verdict::warn, {"GPU 1 only 12 of 18", "nvidia-fabricmanager"}));

  CudaState cuda = good_cuda();
  cuda.nvml_error = "libnvidia-ml.so.1: not found";
  for (GpuState& gpu : cuda.gpus) {
    gpu.power_cap_w.reset();
    gpu.nvlinks.reset();
  }
  facts = cuda_facts(cuda, good_machine(), true);
  EXPECT_TRUE(advises(facts, "driver.version", Verdict::warn, {"libnvidia-ml.so.1", "NVIDIA_DRIVER_CAPABILITIES"}));
  EXPECT_EQ(fact_of(facts, "gpus.power_cap_w").value, Json({nullptr, nullptr}));
}

TEST(Doctor, ReadsWhatLinuxSaysOfAMadeUpMachine) {
  const TemporaryFolder root;
  root.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu avx2 fma sse4_2\n");
  root.write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  x\n");
  root.write("dev/nvidiactl", "");
  root.write("sys/class/infiniband/mlx5_0/x", "");
  const Machine machine = describe_machine(root.path());
  EXPECT_EQ(machine.processor, "A Processor");
  EXPECT_EQ(machine.simd, "AVX2");
  EXPECT_EQ(machine.nvidia_driver, "550.54.15");
  EXPECT_TRUE(machine.has_nvidia_device);
  EXPECT_TRUE(machine.has_infiniband);
  EXPECT_FALSE(machine.shared_memory.has_value());
  EXPECT_FALSE(machine.memory.total_bytes.has_value());
  EXPECT_FALSE(machine.memory.unread.empty());

  const TemporaryFolder other;
  other.write("proc/driver/nvidia/version",
              "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@)  \n");
  const Machine second = describe_machine(other.path());
  EXPECT_EQ(second.nvidia_driver, "580.159.04");
  EXPECT_FALSE(second.has_nvidia_device);
  EXPECT_FALSE(second.has_infiniband);
  EXPECT_EQ(second.processor, "unknown");
}

TEST(Doctor, PrintsFactsAsTextAndAsJson) {
  const std::vector<Fact> facts = {
      {.name = "octet", .label = "octet", .value = "1", .text = "one"},
      {.name = "a.x", .value = 3},
      {.name = "a.long",
       .label = "a long one",
       .value = nullptr,
       .text = "not known",
       .verdict = Verdict::warn,
       .advice = "Do this."},
      {.name = "b", .label = "b", .value = true, .text = "yes", .verdict = Verdict::bad, .advice = "Do that."}};
  EXPECT_EQ(facts_text(facts), "octet       one\na long one  not known\nb           yes\n\nwarning: Do this.\nwrong: Do that.\n");
  EXPECT_EQ(
      facts_json(facts).dump(),
      R"({"octet":"1","a":{"x":3,"long":null},"b":true,"verdict":"bad","problems":[{"name":"a.long","verdict":"warn","advice":"Do this."},)"
      R"({"name":"b","verdict":"bad","advice":"Do that."}]})");
}

TEST(Doctor, AFailedSelfTestIsWrong) {
  EXPECT_EQ(self_test_fact({.checks = 5, .failure = ""}).verdict, Verdict::ok);
  const Fact failed = self_test_fact({.checks = 5, .failure = "E4M3 code 3"});
  EXPECT_EQ(failed.verdict, Verdict::bad);
  EXPECT_EQ(failed.value["passed"], false);
  EXPECT_NE(failed.text.find("E4M3 code 3"), std::string::npos);
}

TEST(Doctor, SelfTestPassesHere) {
  const ProgramResult text = run_program("doctor");
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part :
       {"octet ", "processor ", "memory free", "/dev/shm", "open files", "GEMM", "GPU", "gloo", "self-test passed"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  }
  const ProgramResult result = run_program("doctor --json");
  EXPECT_EQ(result.code, 0) << result.err;
  const Json object = json_of(result.out);
  EXPECT_TRUE(object["fp8_self_test"]["passed"]);
  EXPECT_GT(object["fp8_self_test"]["checks"], 260000);
  EXPECT_GT(object["gemm"]["gflops_fp32"], 0.0);
  EXPECT_TRUE(object["gemm"]["core_fits"]);
  EXPECT_GE(object["cpu"]["cores"], 1);
  EXPECT_GT(object["memory_bytes"], object["memory_free_bytes"]);
  EXPECT_EQ(object["cuda_build"], kCudaBackend);
  EXPECT_EQ(object["build"]["program"], std::filesystem::canonical(testing::program_path()).string());
  EXPECT_TRUE(std::filesystem::exists(object["libraries"]["gloo"]["path"].get<std::string>())) << result.out;
  EXPECT_GT(object["shared_memory_bytes"], 0);
}

// Every printed name is documented, and every documented name is printed.
void expect_names(const std::string& command, const std::string& header) {
  const Json object = json_of(run_program(command).out);
  std::vector<std::string> names;
  for (const auto& [group, members] : object.items()) {
    if (!members.is_object()) {
      names.push_back(group);
    } else {
      for (const auto& [name, value] : members.items()) names.push_back(group + "." + name);
    }
  }
  std::vector<std::string> documented = documented_names(header);
  std::sort(names.begin(), names.end());
  std::sort(documented.begin(), documented.end());
  EXPECT_EQ(names, documented) << command;
}

TEST(Doctor, TheNamesOfTheJsonAreThoseOfTheHeader) {
  expect_names("doctor --json", "doctor.h");
  expect_names("doctor --json --gate quick", "gate.h");
}

TEST(Doctor, RefusesAnUnknownChoiceOfProducts) {
  EXPECT_TRUE(refused(run_program("doctor", ".", "OCTET_TILES=fast exec"), 2, "OCTET_TILES=fast", "on or off"));
  EXPECT_EQ(json_of(run_program("doctor --json", ".", "OCTET_TILES=off exec").out)["gemm"]["tiles"], Json());
}

TEST(Doctor, SeesTheLimitsOfItsProcess) {
  const Json object = json_of(run_program("doctor --json", ".", "ulimit -n 256; exec").out);
  EXPECT_EQ(object["limits"]["open_files"], 256);
  EXPECT_EQ(object["limits"]["open_files_hard"], 256);
  EXPECT_NE(object["verdict"], "ok");
  bool advised = false;
  for (const Json& problem : object["problems"]) {
    advised = advised || (problem["name"] == "limits.open_files" &&
                          problem["advice"].get<std::string>().find("ulimit -n") != std::string::npos);
  }
  EXPECT_TRUE(advised) << object["problems"];
  EXPECT_NE(run_program("doctor", ".", "ulimit -n 256; exec").out.find("warning: This process may have only 256 files"),
            std::string::npos);
}

TEST(Doctor, FindsLoadedLibraries) {
  EXPECT_EQ(std::filesystem::path(loaded_library("libgloo.so")).filename().string().rfind("libgloo.so", 0), 0u);
  EXPECT_EQ(loaded_library("libnothing.so"), "");
}

// The scratch of a product grows with the number of threads.
TEST(Doctor, MeasuresProductsOnManyCores) {
  const int before = num_threads();
  set_num_threads(64);
  EXPECT_GT(measure_gemm_gflops(DType::f32), 0);
  EXPECT_GT(measure_gemm_gflops(DType::bf16), 0);
  set_num_threads(before);
}

}  // namespace
}  // namespace octet::app
