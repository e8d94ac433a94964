// `octet bench checkpoint RUN.toml`: measures how long a save stops a run's training. The same saves are made twice: once while
// the training waits for the copy of its state, and once while the next step computes. Then come snapshots into memory, as a
// supervised run takes them.
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "octet/app/bench.h"
#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/memory_fit.h"
#include "octet/app/threads.h"
#include "octet/base/clock.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/median.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/snapshots.h"
#include "octet/checkpoint/writer.h"
#include "octet/telemetry/format.h"
#include "octet/train/entries.h"
#include "octet/train/setup.h"
#include "octet/train/world.h"

namespace octet::app {
namespace {

namespace fs = std::filesystem;

// A new folder in run.output_dir, on the disk to which the run's checkpoints go. The first rank makes and removes it.
class CheckpointFolder {
 public:
  CheckpointFolder(train::World& world, const fs::path& output) : world_(world) {
    std::string path = (output / "bench-checkpoint-XXXXXX").string();
    if (world.is_first()) {
      create_output([&] {
        make_folders(output);
        if (::mkdtemp(path.data()) == nullptr) fail_errno(ExitCode::internal, path, "cannot create this folder");
      });
    }
    path_ = world.from_first("the folder of the benchmark", path);
  }
  ~CheckpointFolder() {
    std::error_code ignored;
    if (world_.is_first()) fs::remove_all(path_, ignored);
  }
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  train::World& world_;
  fs::path path_;
};

// Makes slots as a supervisor does, but only for this rank.
checkpoint::SnapshotsOptions own_slots(const checkpoint::SnapshotMemory& memory, const train::World& world) {
  return {.slots = {.host = memory.slots(0), .own = memory.slots(0)}, .rank = world.rank(), .size = world.size()};
}

// Seconds of one save or snapshot.
struct SaveTimes {
  double still = 0;  // training waited for the save
  double copy = 0;   // until the snapshot was complete, when nothing ran concurrently
  double write = 0;  // from then until the checkpoint was on the disk
  double step = 0;   // the step after the save, with its wait
  double whole = 0;  // the call that begins a snapshot, and that step
};

double median_of(const std::vector<SaveTimes>& times, double SaveTimes::*part) {
  std::vector<double> values;
  for (const SaveTimes& t : times) values.push_back(t.*part);
  return median(std::move(values));
}

// The run's engine, with random tokens and a writer.
class SavingRun {
 public:
  SavingRun(const train::Config& config, train::World& world, const fs::path& folder)
      : options_(train::engine_options(config, train::recipe_of(config, train::device_of(config)))),
        accumulation_(train::accumulation_of(config, world.mesh().data_coordinates())),
        groups_(world.groups()),
        writer_({.root = folder, .keep_latest_k = 1, .ranks = world.checkpoint_ranks()}),
        snapshots_(own_slots(memory_, world)) {
    options_.layout = train::layout_of(config, world.mesh());
    options_.rank = world.rank();
    engine_ = std::make_unique<train::Engine>(options_, world.device(), world.groups());
    engine_->initialise(config.run.seed);
    engine_->tune(train::gemm_tuning());
    ids_.resize(static_cast<std::size_t>(options_.seq_len * options_.micro_batch_size));
    for (std::size_t i = 0; i < ids_.size(); ++i)
      ids_[i] = static_cast<std::int32_t>(i * 7 % static_cast<std::size_t>(options_.model.vocab));
  }

  train::Engine& engine() { return *engine_; }
  std::size_t bytes() {
    std::size_t sum = 0;
    for (const checkpoint::Entry& entry : entries()) sum += entry.tensor.bytes();
    return sum;
  }

  // Returns the seconds that the step waited for a snapshot.
  double step() {
    double waited = 0;
    engine_->begin_step(accumulation_);
    for (std::int64_t micro = 0; micro < accumulation_; ++micro)
      engine_->forward_backward({.tokens = ids_, .targets = ids_}, nullptr);
    engine_->apply(1e-5, ++step_, {}, [&] {
      const Clock::time_point start = Clock::now();
      writer_.wait_for_snapshot();
      snapshots_.wait_for_copy();
      waited = seconds_since(start);
    });
    engine_->optimizer().read(engine_->stream());
    engine_->check_ranks();
    return waited;
  }

  SaveTimes save_standing_still() {
    SaveTimes times;
    Clock::time_point start = Clock::now();
    begin_save();
    writer_.wait_for_snapshot();
    times.still = times.copy = seconds_since(start);
    start = Clock::now();
    writer_.wait();
    times.write = seconds_since(start);
    return times;
  }

  SaveTimes save_beside_a_step() {
    SaveTimes times;
    Clock::time_point start = Clock::now();
    begin_save();
    times.still = seconds_since(start);
    start = Clock::now();
    times.still += step();
    times.step = seconds_since(start);
    writer_.wait();
    return times;
  }

  void prepare_snapshots() {
    snapshots_.go_on("bench", step_);
    snapshots_.prepare(engine_->device(), engine_->entries());
    wait_for_snapshots();
  }
  SaveTimes snapshot_beside_a_step() {
    SaveTimes times;
    const Clock::time_point start = Clock::now();
    engine_->settle();
    snapshots_.save(step_, engine_->stream(), engine_->entries(), nlohmann::json::object());
    times.still = seconds_since(start);
    times.still += step();
    times.whole = seconds_since(start);
    wait_for_snapshots();
    times.copy = snapshots_.took_s();
    return times;
  }
  std::size_t bytes_of_snapshot() {
    std::size_t sum = 0;
    for (const checkpoint::Entry& entry : engine_->entries()) sum += entry.tensor.bytes();
    return sum;
  }

 private:
  void wait_for_snapshots() const {
    while (snapshots_.busy()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<checkpoint::Entry> entries() {
    models::Decoder& model = engine_->model();
    return train::written_entries(model.parameters(), model.scales(), engine_->optimizer(), groups_);
  }
  void begin_save() {
    engine_->settle();
    writer_.save(step_, engine_->stream(), entries(), nlohmann::json::object());
  }

  train::EngineOptions options_;
  std::int64_t accumulation_;
  const parallel::Groups& groups_;
  std::unique_ptr<train::Engine> engine_;
  std::vector<std::int32_t> ids_;
  std::uint32_t step_ = 0;
  checkpoint::SnapshotMemory memory_{1};
  // Declared after the engine, because their threads read its memory until they end.
  checkpoint::Writer writer_;
  checkpoint::Snapshots snapshots_;
};

}  // namespace

int run_bench_checkpoint(const BenchArgs& args) {
  train::Config config = load_run(args.run);
  config.checkpoint.async = true;
  const comm::RankEnvironment where = comm::rank_environment([](const char* name) -> const char* { return std::getenv(name); });
  train::check_config(config, where.size);
  use_threads(config, where.local_size);
  if (where.rank > 0) set_log(Log::own_warnings);
  train::World world(where, config);
  config = fitting_together(world, config, where);
  const CheckpointFolder folder(world, config.run.output_dir);
  SavingRun run(config, world, folder.path());

  // The first step and the first save touch their memory.
  run.step();
  run.save_beside_a_step();
  run.prepare_snapshots();
  run.snapshot_beside_a_step();
  std::vector<SaveTimes> standing, beside, snapshots, alone;
  for (int i = 0; i < args.saves; ++i) {
    standing.push_back(run.save_standing_still());
    beside.push_back(run.save_beside_a_step());
    snapshots.push_back(run.snapshot_beside_a_step());
    const Clock::time_point start = Clock::now();
    run.step();
    alone.push_back({.step = seconds_since(start)});
  }
  run.engine().close();
  world.barrier("measured");
  if (!world.is_first()) return 0;

  const auto bytes = static_cast<double>(run.bytes());
  const double step = median_of(alone, &SaveTimes::step), step_beside = median_of(beside, &SaveTimes::step);
  const double still = median_of(beside, &SaveTimes::still), still_before = median_of(standing, &SaveTimes::still);
  const double copy = median_of(standing, &SaveTimes::copy), write = median_of(standing, &SaveTimes::write);
  fmt::print("{} on {}{}: {}{} in a checkpoint, medians of {} saves\n", config.run.name, name_of(world.device().kind()),
             world.size() == 1 ? "" : fmt::format(" x {}", world.size()),
             telemetry::format_bytes(static_cast<std::uint64_t>(bytes)), world.size() == 1 ? "" : " of the first rank",
             args.saves);
  const auto line = [](const char* name, double seconds, const std::string& note) {
    fmt::print("  {:<47} {:>10.2f} ms{}\n", name, 1e3 * seconds, note);
  };
  const auto rate = [&](double seconds) { return fmt::format("  {:.2f} GB/s", 1e-9 * bytes / seconds); };
  const auto of_step = [&](double seconds) { return fmt::format("  {:.2f}% of a step", 100 * seconds / step); };
  line("a step without a save", step, "");
  line("training stands still, copy beside the step", still, of_step(still));
  line("training stands still, if it waits for the copy", still_before, of_step(still_before));
  line("the step beside copy and write", step_beside, fmt::format("  {:+.1f}%", 100 * (step_beside / step - 1)));
  line("copy to host memory, nothing beside it", copy, rate(copy));
  line("write to the disk, nothing beside it", write, rate(write));

  // A snapshot costs the time that training waits, and the time that the step loses to the concurrent copy. The difference of
  // two medians may be less than the wait itself.
  const double waits = median_of(snapshots, &SaveTimes::still),
               snapshot = std::max(waits, median_of(snapshots, &SaveTimes::whole) - step);
  const double taken = median_of(snapshots, &SaveTimes::copy);
  const auto bytes_held = static_cast<double>(run.bytes_of_snapshot());
  const auto share = [&](double steps) { return 100 * snapshot / (steps * step + snapshot); };
  fmt::print("{} in a snapshot in memory, medians of {}\n", telemetry::format_bytes(static_cast<std::uint64_t>(bytes_held)),
             args.saves);
  line("training stands still for a snapshot", waits, of_step(waits));
  line("a snapshot and its step take longer by", snapshot, of_step(snapshot));
  line("until the snapshot counts, beside the step", taken, fmt::format("  {:.2f} GB/s", 1e-9 * bytes_held / taken));
  for (const std::int64_t steps : {1, 10, 100}) {
    const std::string every = steps == 1 ? "step" : telemetry::format_count(steps, "step");
    fmt::print("  {:<47} {:>10.2f} %\n", concat("share of the time, if every ", every, steps == 1 ? " has one" : " have one"),
               share(static_cast<double>(steps)));
  }
  fmt::print("  {:<47} {:>10}\n", "steps between snapshots that cost 1%",
             telemetry::format_count(std::max(1.0, std::ceil(snapshot / (0.01 * step) - 1))));
  if (!args.json.empty()) {
    const Json result = {{"bytes", run.bytes()},
                         {"step_seconds", step},
                         {"stands_still_seconds", still},
                         {"stands_still_seconds_waiting_for_copy", still_before},
                         {"step_seconds_beside_save", step_beside},
                         {"copy_bytes_per_s", bytes / copy},
                         {"write_bytes_per_s", bytes / write},
                         {"snapshot_bytes", run.bytes_of_snapshot()},
                         {"snapshot_stands_still_seconds", waits},
                         {"snapshot_costs_seconds", snapshot},
                         {"snapshot_seconds", taken}};
    write_output(args.json, result.dump(2) + "\n");
  }
  return 0;
}

}  // namespace octet::app
