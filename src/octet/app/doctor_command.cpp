#include <fmt/format.h>

#include "octet/app/commands.h"
#include "octet/app/machine.h"
#include "octet/app/self_test.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/comm/nccl.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/attention/attention.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/train/version.h"

namespace octet::app {
namespace {

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// g++ gives its number alone.
std::string compiler() {
  const std::string version = __VERSION__;
  return version[0] >= '0' && version[0] <= '9' ? "g++ " + version : version;
}

std::string describe(const CudaProperties& gpu, std::size_t free) {
  if (!kCudaBackend) return "none: this build has no CUDA backend; everything runs on the CPU";
  if (gpu.name.empty()) return "none that CUDA can use; everything runs on the CPU";
  return fmt::format("{}, sm_{}, {:.1f} GiB, {:.1f} GiB free; CUDA {} on a driver for {}, {}, {}, {}{}", gpu.name,
                     gpu.compute_capability, gib(static_cast<std::int64_t>(gpu.memory_bytes)),
                     gib(static_cast<std::int64_t>(free)), gpu.runtime_version, gpu.driver_version,
                     kernels::gemm_library_version(), kernels::attention_library_version(), comm::nccl_version(),
                     gpu.compute_capability < 89 ? "; FP8 needs sm_89 or newer" : "");
}

}  // namespace

int run_doctor(const DoctorArgs& args) {
  const Machine machine = describe_machine();
  const std::string core = kernels::gemm_core_name();
  // OpenBLAS takes this for a processor that it does not know; the same processor does about ten times as much.
  const bool slow_core = core == "Prescott" && machine.simd.rfind("AVX", 0) == 0;
  const double gflops = measure_gemm_gflops();
  SelfTest test = fp8_self_test(DeviceKind::cpu);
  const CudaProperties gpu = cuda_properties();
  const bool cuda = !gpu.name.empty();
  const std::size_t gpu_free = cuda ? cuda_free_memory(0) : 0;
  if (cuda && test.failure.empty()) {
    const SelfTest on_gpu = fp8_self_test(DeviceKind::cuda);
    test.checks += on_gpu.checks;
    if (!on_gpu.failure.empty()) test.failure = "on the GPU: " + on_gpu.failure;
  }
  const bool healthy = test.failure.empty();

  if (args.json) {
    const Json object = {
        {"octet", train::kVersion},
        {"compiler", compiler()},
        {"cpu", {{"name", machine.processor}, {"simd", machine.simd}, {"cores", machine.cores}, {"threads", num_threads()}}},
        {"memory_bytes", machine.memory_bytes},
        {"memory_free_bytes", machine.memory_free_bytes},
        {"disk_free_bytes", machine.disk_free_bytes},
        {"gemm", {{"library", "OpenBLAS"}, {"core", core}, {"gflops_fp32", gflops}, {"core_fits", !slow_core}}},
        {"cuda", cuda},
        {"gpu",
         {{"name", gpu.name},
          {"compute_capability", gpu.compute_capability},
          {"memory_bytes", gpu.memory_bytes},
          {"memory_free_bytes", gpu_free},
          {"cuda_driver", gpu.driver_version},
          {"cuda_runtime", gpu.runtime_version},
          {"gemm", kernels::gemm_library_version()},
          {"attention", kernels::attention_library_version()},
          {"collectives", comm::nccl_version()}}},
        {"fp8_self_test", {{"passed", healthy}, {"checks", test.checks}, {"failure", test.failure}}}};
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print("octet      {}, built by {}\n", train::kVersion, compiler());
    fmt::print("processor  {}, {}, {} core{} for this process\n", machine.processor, machine.simd, machine.cores,
               machine.cores == 1 ? "" : "s");
    fmt::print("memory     {:.1f} GiB, {:.1f} GiB free\n", gib(machine.memory_bytes), gib(machine.memory_free_bytes));
    fmt::print("disk       {:.1f} GiB free here\n", gib(machine.disk_free_bytes));
    fmt::print("GEMM       OpenBLAS, {} kernels, {:.0f} GFLOP/s in FP32 on {} thread{}{}\n", core, gflops, num_threads(),
               num_threads() == 1 ? "" : "s",
               slow_core ? " (too old kernels for this processor: about a tenth of its speed)" : "");
    fmt::print("GPU        {}\n", describe(gpu, gpu_free));
    fmt::print("FP8        {}\n",
               healthy ? fmt::format("self-test passed, {} checks", test.checks) : "SELF-TEST FAILED: " + test.failure);
  }
  demand(healthy, ExitCode::internal, "FP8 self-test failed: ", test.failure);
  return 0;
}

}  // namespace octet::app
