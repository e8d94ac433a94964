// The gate: checks that make a host unfit to take part in a run. `octet doctor --gate` runs it, also for the supervisor, which
// starts it as a child before ranks. The gate judges only faults that make a run fail, slow or wrong on this host. Everything
// that is merely not optimal is for `octet doctor` without --gate. Facts are judged from plain values, so that tests can judge
// made-up hosts.
//
// The names of the JSON are a contract; `null` is a value that is not known.
//   octet  version
//   gate.kind .seconds  "quick" or "full"; how long it took
//   gate.fault .check  what is wrong with this host, and the name of the fact that says so; "" if the host is fit
//   links.to .bytes_per_s .latency_s .trouble  lists with an element for each host to which the supervisor had the link measured
//   storage.folder .free_bytes  the folder of the run, and the room that is left there
//   storage.write_seconds  for a synced write of a MiB and reading it; null if that failed
//   storage.trouble .may_pass  why the folder cannot be written or read; whether that may go away by itself
//   cpu_gemm.wrong .gemms  the first wrong element of the CPU's GEMMs, or ""; how many there were
//   cpu_gemm.fp8_gflops .bf16_gflops  median of the repeats; null without any
//   gpu_gemm.wrong .gemms .fp8_gflops .bf16_gflops  the same of the GPUs; rates are lists with an element for each GPU
//   gpu_gemm.slow  which GPU is slower than is usual on this host; "" if none is, and in a quick gate
//   shared_memory_free_bytes  of /dev/shm; judged if ranks use several GPUs
//   limits.locked_bytes  of this process; "unlimited" without one
//   gpus.wanted  how many GPUs the ranks use
//   gpus.name .bus_id .error .slowed_by .ecc_uncorrected .rows_pending .rows_failed  lists with an element for each GPU, as are
//   gpus.pcie_generation .pcie_generation_max .pcie_width .pcie_width_max  these
//   gpus.nvlinks .nvlinks_active .nvlink_recoveries  and these
//   verdict problems  as facts.h says
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "octet/app/facts.h"
#include "octet/app/gemm_check.h"
#include "octet/app/links.h"
#include "octet/app/machine.h"
#include "octet/device/cuda/gpu_state.h"

namespace octet::app {

enum class GateKind : std::uint8_t { quick, full };
inline const char* name_of(GateKind kind) { return kind == GateKind::quick ? "quick" : "full"; }

struct StorageState {
  std::filesystem::path folder;
  std::optional<Space> space;
  std::optional<double> write_s;
  std::string trouble;    // a sentence with file and reason; "" if the folder can be written and read
  bool may_pass = false;  // the storage may be at fault, and not this host
  bool no_room = false;   // the disk or the quota is full
};
// Writes a file in the folder, reads it and removes it.
StorageState try_storage(const std::filesystem::path& folder);
// A full disk is bad only in a full gate. Before a later attempt it is a warning, because the run can continue from memory.
std::vector<Fact> storage_facts(const StorageState& storage, GateKind kind);

std::vector<Fact> cpu_gemm_facts(const GemmCheck& check);
// Checks of all GPUs; their rates are judged in a full gate.
std::vector<Fact> gpu_gemm_facts(const std::vector<GemmCheck>& checks, GateKind kind);

std::vector<Fact> link_facts(const std::vector<LinkRate>& links);

// `wanted` is the number of GPUs that ranks of this host use.
std::vector<Fact> gate_limit_facts(const Machine& machine, int wanted);
std::vector<Fact> gate_gpu_facts(const CudaState& cuda, int wanted);

}  // namespace octet::app
