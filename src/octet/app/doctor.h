// The facts of `octet doctor`, with advice about problems. Facts are judged from plain values, so that tests can judge made-up
// machines.
//
// The names of the JSON are a contract; `null` is a value that is not known. Sizes are in bytes unless the name says otherwise.
//   octet  version
//   build.name .compiler .simd  which build this is: its name (devices and processor), compiler, and the widest
//          vector instructions that the compiler was allowed
//   build.program  the program's file
//   build.commit  of the sources, or "unknown"
//   cpu.name .simd .cores .threads  cores of the affinity mask; threads that octet starts
//   cpu.quota  processors' worth of time that the control groups grant; null also without a limit
//   memory_bytes memory_free_bytes  the machine's, or what its control groups leave of it
//   memory_limited_by  folder of the control group that sets memory_free_bytes; "" without one
//   disk_bytes disk_free_bytes disk_writable  of the current folder
//   shared_memory_bytes shared_memory_free_bytes  of /dev/shm
//   limits.open_files .open_files_hard .locked_bytes  of this process; "unlimited" without one
//   gemm.library .core .core_fits .gflops_fp32  the CPU's matrix products; whether the kernels fit the processor
//   gemm.tiles .gflops_bf16  the kernel that multiplies BF16 and FP8 operands on the processor's matrix tiles; null without one
//   cuda_build cuda  whether this build has the CUDA backend, and whether it can use a GPU here
//   driver.version .cuda  NVIDIA's driver, and the newest CUDA that it serves
//   toolkit.cuda .architectures  the CUDA of this build, and the GPU architectures that it has code for
//   libraries.cublaslt .cudnn .nccl .libcuda .nvml .gloo  {"version", "path"} of the file that is loaded
//   gpus.visible  CUDA_VISIBLE_DEVICES, or "all"
//   gpus.name .compute_capability .has_code .error .memory_bytes .memory_free_bytes  lists with an element for each GPU, as are
//   gpus.power_cap_w .power_default_w .clock_mhz .clock_max_mhz .slowed_by .nvlinks .nvlinks_active .multicast  these
//   fp8_self_test.passed .checks .failure  "" when it passed
//   verdict problems  as facts.h says
#pragma once

#include <string>
#include <vector>

#include "octet/app/facts.h"
#include "octet/app/machine.h"
#include "octet/app/self_test.h"
#include "octet/device/cuda/gpu_state.h"

namespace octet::app {

// This program.
std::vector<Fact> build_facts();

// Returns facts about processor, memory, disk and limits. `threads` is the number of threads that octet starts; some of them
// serve the machine's `gpus` GPUs.
std::vector<Fact> machine_facts(const Machine& machine, int threads, std::size_t gpus);

struct Gemm {
  std::string core;    // OpenBLAS's
  double gflops = 0;   // in FP32
  std::string tiles = {};  // the kernel that multiplies BF16 and FP8 in place of OpenBLAS, or ""
  double bf16_gflops = 0;
  int threads = 1;
};
std::vector<Fact> gemm_facts(const Gemm& gemm, const Machine& machine);

struct LibraryState {
  std::string name, version, path;  // "" where not known
};
std::vector<Fact> cuda_facts(const CudaState& cuda, const Machine& machine, bool cuda_build);
std::vector<Fact> library_facts(const std::vector<LibraryState>& libraries);

Fact self_test_fact(const SelfTest& test);

}  // namespace octet::app
