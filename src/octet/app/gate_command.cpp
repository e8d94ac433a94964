#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>

#include "octet/app/commands.h"
#include "octet/app/gate.h"
#include "octet/app/gpu_facts.h"
#include "octet/base/clock.h"
#include "octet/base/median.h"
#include "octet/base/require.h"
#include "octet/base/start_thread.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/telemetry/format.h"
#include "octet/train/version.h"

namespace octet::app {
namespace {

// A quick gate may take 3 s in all. Most of them go into the start of CUDA.
constexpr GemmLoad kQuickOnCpu = {.shape = {.m = 512, .n = 512, .k = 512}, .seconds = 0.5};
constexpr GemmLoad kFullOnCpu = {.shape = {.m = 2048, .n = 2048, .k = 1024}, .seconds = 3, .repeat_s = 0.1};
constexpr GemmLoad kQuickOnGpu = {.shape = {.m = 4096, .n = 4096, .k = 1024}, .seconds = 0.5, .repeat_s = 0.05};
constexpr GemmLoad kFullOnGpu = {.shape = {.m = 8192, .n = 4096, .k = 1024}, .seconds = 50, .repeat_s = 0.2};

// NCCL needs some shared memory for each pair of GPUs, even if they have NVLink.
constexpr std::int64_t kLeastSharedMemory = std::int64_t{32} << 20;

// Checks all GPUs at the same time, as in training, because they share heat and power.
std::vector<GemmCheck> check_gpus(int gpus, const GemmLoad& load) {
  std::vector<GemmCheck> checks(static_cast<std::size_t>(gpus));
  std::vector<std::thread> threads = start_threads(
      "a check of a GPU", gpus,
      [&](int gpu) { checks[static_cast<std::size_t>(gpu)] = check_gemm(DeviceKind::cuda, gpu, load); }, [] {});
  for (std::thread& thread : threads) thread.join();
  return checks;
}

// A rank's number identifies its connection to ReplicaServer. Gates must have other numbers.
constexpr std::uint64_t kFirstGate = 1'000'000;

std::vector<LinkRate> measure_links() {
  const std::optional<LinkPlaces> places = inherited_link_places();
  std::vector<LinkRate> links;
  if (!places) return links;
  const comm::Claim claim{kFirstGate + static_cast<std::uint64_t>(places->node), 1, train::version_text()};
  for (const std::string& to : places->to)
    links.push_back(measure_link(to, comm::find_token(&::getenv), claim, kLinksS / static_cast<double>(places->to.size())));
  return links;
}

}  // namespace

std::vector<Fact> cpu_gemm_facts(const GemmCheck& check) {
  const auto rate = [](const std::vector<double>& rates) { return rates.empty() ? Json() : Json(median(rates)); };
  Fact wrong{.name = "cpu_gemm.wrong", .label = "CPU GEMM", .value = check.wrong};
  wrong.text = fmt::format("{} right, {:.0f} GFLOP/s in FP8, {:.0f} in BF16", check.gemms, median(check.fp8_gflops),
                           median(check.bf16_gflops));
  if (!check.wrong.empty()) {
    wrong.text = "wrong";
    judge(wrong, Verdict::bad,
          "On the CPU: " + check.wrong + ". Its processor or memory computes wrongly; test both, or have them replaced.");
  }
  return {std::move(wrong),
          {.name = "cpu_gemm.gemms", .value = check.gemms},
          {.name = "cpu_gemm.fp8_gflops", .value = rate(check.fp8_gflops)},
          {.name = "cpu_gemm.bf16_gflops", .value = rate(check.bf16_gflops)}};
}

std::vector<Fact> link_facts(const std::vector<LinkRate>& links) {
  Fact to{.name = "links.to", .label = links.empty() ? "" : "links", .value = Json::array()};
  Fact rate{.name = "links.bytes_per_s", .value = Json::array()}, latency{.name = "links.latency_s", .value = Json::array()};
  Fact trouble{.name = "links.trouble", .value = Json::array()};
  for (const LinkRate& link : links) {
    to.text += concat(to.text.empty() ? "" : "; ", text_of(link));
    to.value.push_back(link.to);
    rate.value.push_back(link.bytes_per_s);
    latency.value.push_back(link.latency_s);
    trouble.value.push_back(link.trouble);
  }
  return {std::move(to), std::move(rate), std::move(latency), std::move(trouble)};
}

std::vector<Fact> gate_limit_facts(const Machine& machine, int wanted) {
  const std::optional<Space>& shared = machine.shared_memory;
  const auto bytes = [](std::int64_t count) { return telemetry::format_bytes(static_cast<std::uint64_t>(count)); };
  Fact room{.name = "shared_memory_free_bytes", .label = "/dev/shm", .value = shared ? Json(shared->free_bytes) : Json()};
  room.text = shared ? bytes(shared->free_bytes) + " free" : "not there";
  if (wanted > 1 && (!shared || shared->free_bytes < kLeastSharedMemory))
    judge(room, Verdict::bad,
          "/dev/shm: " + room.text +
              ", and NCCL needs at least 32 MiB. Delete what ended programs left there, or start the "
              "container with `--shm-size=1g`.");
  const std::optional<Limit>& locked = machine.locked_bytes;
  const bool unlimited = locked && locked->soft == Limit::kNone;
  Fact lock{.name = "limits.locked_bytes", .label = "locked memory"};
  lock.value = !locked ? Json() : unlimited ? Json("unlimited") : Json(locked->soft);
  lock.text = !locked ? "not known" : unlimited ? "unlimited" : telemetry::format_bytes(locked->soft) + " at most";
  // Ranks of one host need no locked memory, and this process does not know about other hosts.
  if (wanted > 0 && machine.has_infiniband && locked && !unlimited)
    judge(lock, Verdict::warn,
          "Locked memory: " + lock.text +
              ", and InfiniBand between hosts needs more. Run `ulimit -l unlimited` before octet, or "
              "start the container with `--ulimit memlock=-1`.");
  return {std::move(room), std::move(lock)};
}

int run_gate(const DoctorArgs& args) {
  // A supervisor passes on the signals that schedulers send to ranks. It ends the gate itself.
  for (const int signal : {SIGUSR1, SIGUSR2}) std::signal(signal, SIG_IGN);
  const Clock::time_point start = Clock::now();
  // Before anything else, because the gates of the other hosts begin at the same time and do the same.
  const std::vector<LinkRate> links = measure_links();
  const GateKind kind = args.gate == "full" ? GateKind::full : GateKind::quick;
  const int gpus = args.gpus.value_or(cuda_device_count()), there = std::min(gpus, cuda_device_count());
  std::vector<Fact> facts = {{.name = "octet", .label = "octet", .value = train::version(), .text = train::version_text()},
                             {.name = "gate.kind", .label = "gate", .value = name_of(kind), .text = name_of(kind)}};
  const auto add = [&](std::vector<Fact> more) {
    facts.insert(facts.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  add(link_facts(links));
  const StorageState storage = try_storage(args.folder);
  add(gate_limit_facts(describe_machine(), gpus));
  add(cpu_gemm_facts(check_gemm(DeviceKind::cpu, 0, kind == GateKind::full ? kFullOnCpu : kQuickOnCpu)));
  add(gpu_gemm_facts(check_gpus(there, kind == GateKind::full ? kFullOnGpu : kQuickOnGpu), kind));
  add(gate_gpu_facts(gpus > 0 ? cuda_state() : CudaState(), gpus));
  // Comes last, so that storage which may be at fault for all hosts does not hide a fault of this one.
  add(storage_facts(storage, kind));

  const auto fault = std::find_if(facts.begin(), facts.end(), [](const Fact& fact) { return fact.verdict == Verdict::bad; });
  const bool is_fit = fault == facts.end();
  const std::string sentence = is_fit ? "" : fault->advice, check = is_fit ? "" : fault->name;
  const double seconds = seconds_since(start);
  add({{.name = "gate.seconds", .label = "took", .value = seconds, .text = telemetry::format_duration(seconds)},
       {.name = "gate.fault", .value = sentence},
       {.name = "gate.check", .value = check}});
  fmt::print("{}", args.json ? json_text(facts_json(facts)) + "\n" : facts_text(facts));
  if (is_fit) return 0;
  const bool may_pass = storage.may_pass && check == "storage.trouble";
  fail(may_pass ? ExitCode::data : ExitCode::unfit, "gate: ", sentence);
}

}  // namespace octet::app
