// `octet bench comm`: measures collectives between ranks that are threads of this process, with a GPU each (NCCL), or on the
// CPU (Gloo). The bus rate is the number of bytes that leave a rank, counted as in comm/group.h, divided by the time of the
// slowest rank. It can be compared between operations and numbers of ranks.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <thread>

#include "octet/app/bench.h"
#include "octet/app/ceilings.h"
#include "octet/app/commands.h"
#include "octet/base/clock.h"
#include "octet/base/require.h"
#include "octet/base/start_thread.h"
#include "octet/comm/multicast.h"
#include "octet/comm/nccl.h"
#include "octet/comm/thread_store.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/telemetry/format.h"
#include "octet/train/setup.h"

namespace octet::app {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr int kRounds = 3;  // of which the shortest counts

// The call of one rank. `whole` is the larger of an operation's tensors, or any of them if they have the same size.
using Operation = void (*)(comm::Group&, Stream&, Arena& scratch, const Tensor& whole, const Tensor& other);
constexpr std::pair<const char*, Operation> kOperations[] = {
    {"all_gather",
     [](comm::Group& group, Stream& stream, Arena& scratch, const Tensor& whole, const Tensor&) {
       const std::int64_t n = whole.elements() / group.size();
       group.all_gather(stream, scratch, {.x = whole.slice_rows(group.rank() * n, (group.rank() + 1) * n), .y = whole});
     }},
    {"reduce_scatter",
     [](comm::Group& group, Stream& stream, Arena& scratch, const Tensor& whole, const Tensor&) {
       const std::int64_t n = whole.elements() / group.size();
       group.reduce_scatter(stream, scratch, {.x = whole, .y = whole.slice_rows(group.rank() * n, (group.rank() + 1) * n)});
     }},
    {"all_reduce", [](comm::Group& group, Stream& stream, Arena& scratch, const Tensor& whole,
                      const Tensor&) { group.all_reduce(stream, scratch, {.x = whole}); }},
    {"all_to_all", [](comm::Group& group, Stream& stream, Arena& scratch, const Tensor& whole,
                      const Tensor& other) { group.all_to_all(stream, scratch, {.x = whole, .y = other}); }},
};

class CommBench {
 public:
  CommBench(DeviceKind kind, int ranks) : kind_(kind), ranks_(ranks) {
    for (std::int64_t mib = 1; mib <= (kind == DeviceKind::cuda ? 1024 : 64); mib *= 4) sizes_.push_back(mib);
    cases_.resize(std::size(kOperations) * sizes_.size());
  }

  std::vector<BenchRow> run() {
    const auto fail_all = [this](std::exception_ptr error) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::move(error);
    };
    const auto body = [&](int rank) {
      try {
        measure(rank);
      } catch (...) {
        fail_all(std::current_exception());
      }
    };
    if (kind_ == DeviceKind::cuda) comm::probe_multicast({.name = "multicast"}, 0);
    std::vector<std::thread> threads =
        start_threads(concat(ranks_, " ranks"), ranks_, body, [&] { fail_all(std::current_exception()); });
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    return rows();
  }
  // The bytes that the group of GPU 0 has taken for itself after all operations have run: the library's buffers and kernels.
  std::size_t group_bytes() const { return group_bytes_; }

 private:
  // Results of all ranks, under the mutex.
  struct Case {
    std::array<double, kRounds> seconds{};  // of the slowest rank
    double bytes = 0;                       // that leave a rank
  };

  std::unique_ptr<comm::Group> make_group(Device& device, int rank) {
    return comm::make_group(
        device, {.name = "bench",
                 .rank = rank,
                 .size = ranks_,
                 .set = [this](const std::string& key, std::string_view value, int reads) { store_.set(key, value, reads); },
                 .get = [this](const std::string& key) { return store_.get(key); },
                 .lost =
                     [this] {
                       const std::lock_guard lock(mutex_);
                       return std::string(error_ ? "another rank has failed" : "");
                     }});
  }

  void measure(int rank) {
    const auto device = make_device(kind_, kind_ == DeviceKind::cuda ? rank : 0);
    const auto stream = device->make_stream();
    const auto most = static_cast<std::size_t>(sizes_.back() * kMiB);
    Arena tensors(*device, MemoryCategory::workspace, 2 * most + 1024), scratch(*device, MemoryCategory::workspace, most + kMiB);
    const std::size_t free_before = free_memory(rank);
    const auto group = make_group(*device, rank);
    std::size_t at = 0;
    for (const auto& [name, operation] : kOperations) {
      for (const std::int64_t mib : sizes_) {
        const ArenaScope scope(tensors);
        // BF16, as gradients and gathered weights are.
        const std::int64_t elements = mib * kMiB / 2 / ranks_ * ranks_;
        const Tensor whole = allocate(tensors, DType::bf16, {elements}), other = allocate(tensors, DType::bf16, {elements});
        time(cases_[at++], *group, *stream, mib, [&, &run = operation] { run(*group, *stream, scratch, whole, other); });
      }
    }
    const std::size_t free_after = free_memory(rank);
    if (rank == 0 && free_after < free_before) group_bytes_ = free_before - free_after;
  }
  std::size_t free_memory(int rank) const { return kind_ == DeviceKind::cuda ? cuda_free_memory(rank) : 0; }
  // All ranks make the same number of calls, so that about as many bytes are sent for every size.
  void time(Case& result, comm::Group& group, Stream& stream, std::int64_t mib, const std::function<void()>& operation) {
    const std::int64_t calls =
        kind_ == DeviceKind::cuda ? std::clamp<std::int64_t>(8192 / mib, 10, 100) : std::clamp<std::int64_t>(64 / mib, 1, 20);
    const double before = group.traffic().bytes;
    operation();  // connects the ranks
    const double bytes = group.traffic().bytes - before;
    for (int round = 0; round < kRounds; ++round) {
      group.barrier(stream);
      const auto begin = Clock::now();
      for (std::int64_t call = 0; call < calls; ++call) operation();
      stream.synchronize();
      group.check();
      const double seconds = seconds_since(begin) / static_cast<double>(calls);
      const std::lock_guard lock(mutex_);
      double& slowest = result.seconds[static_cast<std::size_t>(round)];
      slowest = std::max(slowest, seconds);
      result.bytes = bytes;
    }
  }

  std::vector<BenchRow> rows() const {
    std::vector<BenchRow> rows;
    for (const auto& [name, operation] : kOperations) {
      for (const std::int64_t mib : sizes_) {
        const Case& measured = cases_[rows.size()];
        const double seconds = *std::min_element(measured.seconds.begin(), measured.seconds.end());
        rows.push_back({.name = fmt::format("{} {} MiB", name, mib),
                        .seconds = seconds,
                        .rate = measured.bytes / seconds * 1e-9,
                        .unit = "GB/s",
                        .ceiling = kind_ == DeviceKind::cuda ? kNvlinkBytesPerSecond * 1e-9 : 0,
                        .against = "NCCL's best over NVLink"});
      }
    }
    return rows;
  }

  const DeviceKind kind_;
  const int ranks_;
  std::vector<std::int64_t> sizes_;  // MiB of the larger tensor
  comm::ThreadStore store_;
  std::mutex mutex_;
  std::exception_ptr error_;  // the first
  std::vector<Case> cases_;   // operations, sizes within
  std::size_t group_bytes_ = 0;
};

}  // namespace

int run_bench_comm(const BenchArgs& args) {
  train::Config config;
  config.run.device = args.device;
  const DeviceKind kind = train::device_of(config);
  const int gpus = cuda_device_count();
  demand(kind == DeviceKind::cpu || gpus >= 2, ExitCode::config, "this benchmark needs two GPUs, and this machine has ", gpus,
         "; --device cpu measures Gloo instead");
  const int ranks = args.ranks != 0 ? args.ranks : kind == DeviceKind::cuda ? gpus : 2;
  const int most = kind == DeviceKind::cuda ? gpus : 64;
  demand(ranks >= 2 && ranks <= most, ExitCode::config, "-n ", ranks, ": must be 2 to ", most);
  CommBench bench(kind, ranks);
  const std::vector<BenchRow> rows = bench.run();
  fmt::print("collectives of {} ranks over {}, BF16; size: of the larger tensor of a rank; rate: bytes that leave a rank\n",
             ranks, kind == DeviceKind::cuda ? comm::nccl_version() : "Gloo on this host");
  show_bench(rows, args.json);
  if (bench.group_bytes() > 0) fmt::print("NCCL took {} of GPU 0\n", telemetry::format_bytes(bench.group_bytes()));
  return 0;
}

}  // namespace octet::app
