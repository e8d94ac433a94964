#include <fmt/format.h>

#include <iterator>

#include "octet/app/commands.h"
#include "octet/app/doctor.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/comm/nccl.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/attention/attention.h"
#include "octet/kernels/gemm/gemm.h"

namespace octet::app {
namespace {

SelfTest self_test(const CudaState& cuda) {
  SelfTest test = fp8_self_test(DeviceKind::cpu);
  const bool usable = !cuda.gpus.empty() && cuda.gpus[0].error.empty() && cuda.gpus[0].has_code;
  if (!usable || !test.failure.empty()) return test;
  try {
    const SelfTest on_gpu = fp8_self_test(DeviceKind::cuda);
    test.checks += on_gpu.checks;
    if (!on_gpu.failure.empty()) test.failure = "on the GPU: " + on_gpu.failure;
  } catch (const Error& error) {  // the other facts may say why
    test.failure = concat("on the GPU: ", error.what());
  }
  return test;
}

// A version without the library's name before it: "cuDNN 9.19.0".
std::string number_of(const std::string& version) { return version.substr(version.find(' ') + 1); }

std::vector<LibraryState> libraries() {
  const auto library = [](const char* name, const char* file, const std::string& version = "") {
    return LibraryState{.name = name, .version = number_of(version), .path = loaded_library(file)};
  };
  return {library("cublaslt", "libcublasLt.so", kernels::gemm_library_version()),
          library("cudnn", "libcudnn.so", kernels::attention_library_version()),
          library("nccl", "libnccl.so", comm::nccl_version()),
          library("libcuda", "libcuda.so"),
          library("nvml", "libnvidia-ml.so"),
          library("gloo", "libgloo.so")};
}

}  // namespace

int run_doctor(const DoctorArgs& args) {
  const Machine machine = describe_machine();
  const CudaState cuda = cuda_state();
  const SelfTest test = self_test(cuda);
  std::vector<Fact> facts;
  const auto add = [&](std::vector<Fact> more) {
    facts.insert(facts.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  add(build_facts());
  add(machine_facts(machine, num_threads(), cuda.gpus.size()));
  add(gemm_facts({.core = kernels::gemm_core_name(),
                  .gflops = measure_gemm_gflops(DType::f32),
                  .tiles = kernels::gemm_tiles_name(),
                  .bf16_gflops = measure_gemm_gflops(DType::bf16),
                  .threads = num_threads()},
                 machine));
  add(cuda_facts(cuda, machine, kCudaBackend));
  add(library_facts(libraries()));
  add({self_test_fact(test)});
  fmt::print("{}", args.json ? json_text(facts_json(facts)) + "\n" : facts_text(facts));
  demand(test.failure.empty(), ExitCode::internal, "FP8 self-test failed: ", test.failure);
  return 0;
}

}  // namespace octet::app
