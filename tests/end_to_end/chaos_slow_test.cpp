// A run on four hosts with two spares, hit by one random fault after the other. A scheduler stands by, as it would in a cluster:
// it starts a supervisor again that has ended. Every loss, every weight and every checkpoint must be those of a run that nobody
// disturbed, and the run must say of each fault what it was.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>

#include "chaos_faults.h"

namespace octet::testing {
namespace {

// OCTET_CHAOS_SEED draws other faults.
std::uint64_t seed_of_faults() {
  const char* const text = std::getenv("OCTET_CHAOS_SEED");
  return text ? std::stoull(text) : 21;
}

constexpr int kInterval = 2;  // steps between checkpoints

class Chaos : public ChaosHosts, public ::testing::WithParamInterface<int> {
 protected:
  // The kinds come in random order, but each comes once before any comes again.
  FaultKind next_kind() {
    if (deck_.empty()) {
      for (int kind = 0; kind < kKinds; ++kind) deck_.push_back(static_cast<FaultKind>(kind));
    }
    std::swap(deck_[static_cast<std::size_t>(draw(static_cast<int>(deck_.size())))], deck_.back());
    const FaultKind kind = deck_.back();
    deck_.pop_back();
    return kind;
  }

  // The last lines of all supervisors, and where their threads stand.
  std::string logs() const {
    std::string text;
    for (const auto& supervisor : supervisors_) {
      const std::string tasks = concat("/proc/", only_child_of(supervisor->pid()), "/task");
      std::error_code gone;
      for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
        std::stringstream words;
        for (const char* about : {"comm", "wchan", "syscall"}) words << ' ' << std::ifstream(task.path() / about).rdbuf();
        text += concat("\n", task.path().string(), words.str());
      }
    }
    for (int node = 0; node < kHosts; ++node) {
      const std::string log = node_log(node);
      std::size_t from = log.size();
      for (int lines = 0; lines < 16 && from > 0; ++lines)
        from = log.rfind('\n', from - 1) == log.npos ? 0 : log.rfind('\n', from - 1);
      text += concat("\n---- node", node, log.substr(from));
    }
    return text;
  }

  // What a rank has logged in an attempt.
  std::string log_of(int rank, std::int64_t attempt) const {
    const std::string log = read_file(run_ / fmt::format("out/logs/rank-{:05}.log", rank));
    const std::size_t begin = log.find(concat("==== attempt ", attempt, " ===="));
    if (begin == log.npos) return "";
    return log.substr(begin, log.find("==== attempt ", begin + 1) - begin);
  }

  // Compares what the run says about a fault, and how long it took to go on, with what it should.
  void judge(const Fault& fault) {
    const Expected expected = expected_of(fault);
    const std::int64_t number = fault.attempt["number"].get<std::int64_t>();
    const std::vector<Json> all = attempts();
    const auto hit = std::find_if(all.begin(), all.end(), [&](const Json& attempt) { return attempt["number"] == number; });
    ASSERT_NE(hit, all.end()) << number;
    const bool ended = *hit != all.back() || !hit->value("ended", "").empty();
    Tally& tally = tallies_[fault.kind];
    ++tally.judged;
    if (expected.end != Expected::End::maybe) {
      EXPECT_EQ(ended, expected.end == Expected::End::always) << *hit;
    }
    if (!ended) return;
    ++tally.ended;
    if ((*hit)["code"].is_null()) {
      ADD_FAILURE() << "nobody has written down how the attempt ended: " << *hit << logs();
      return;
    }
    EXPECT_TRUE(expected.codes.contains((*hit)["code"].get<int>())) << *hit;
    // The host that was cut off may miss the coordinator first. It then says so itself, and closes the connection.
    const std::string silent = concat(" for ", kSilenceS, " s");
    const bool told_there = expected.words == silent && says((*hit)["what"], concat("node", fault.host, " (")) &&
                            says((*hit)["what"], "closed its connection") && says(node_log(fault.host), silent);
    EXPECT_TRUE(told_there || says((*hit)["what"], expected.words)) << *hit;
    if (recovered_s()) {
      tally.seconds.push_back(*recovered_s());
      if (expected.within_s > 0) {
        EXPECT_LT(*recovered_s(), expected.within_s + fault.lasts_s) << *hit;
      }
    }
    if (fault.kind == FaultKind::stop_rank) {
      const bool stalled = (*hit)["code"] == 80;
      const std::string who = concat("rank ", fault.rank);
      const std::string text = (*hit)["what"].get<std::string>();
      // A slow machine may report for another rank too late.
      const std::regex frozen(concat("ranks? [0-9, and]*", fault.rank, "[0-9, and]* (is|are) frozen and holds? up"));
      EXPECT_TRUE(stalled ? std::regex_search(text, frozen) : static_cast<bool>(says(text, who))) << text;
    }
    if (fault.kind == FaultKind::flip_bit) {
      const std::string log = log_of(fault.rank, number);
      const std::string name = fault.tensor.substr(0, fault.tensor.find(".moment"));
      EXPECT_TRUE(says(log, concat(" hold different bits of ", name))) << log;
      EXPECT_TRUE(says(log, "no majority tells which of them is wrong")) << log;
      EXPECT_FALSE(says(log_of(0, number + 1), " from memory")) << "its bits may be wrong";
    }
    if (fault.kind == FaultKind::damage_snapshot) {
      const auto next = hit + 1;
      const std::string log = log_of(0, number + 1), own_log = log_of(fault.rank, number + 1);
      if (next == all.end() || (*next)["nodes"] != (*hit)["nodes"]) return;  // another host may run the rank now
      const bool replaced = own_log.find("; takes the replica at ") != std::string::npos;
      EXPECT_EQ(static_cast<bool>(says(log, concat("resuming after step ", fault.step, " from memory"))), replaced) << log;
      if (!replaced) {
        EXPECT_TRUE(says(log, concat("the snapshot of step ", fault.step, " in memory cannot be used: rank ", fault.rank, ": ")))
            << log;
      }
      EXPECT_TRUE(says(replaced ? own_log : log, "its bytes are damaged (XXH3 sum ")) << log;
      ++told_snapshots_;
    }
    if (fault.kind == FaultKind::damage_checkpoint) damaged_.push_back(fmt::format("step-{:08}", fault.step));
  }

  // Checks the sentences that docs/guides/keep-running.md shows for storage that fails.
  void tells_of_storage() const {
    std::set<std::string> faults;  // "write EIO"
    std::ifstream log(run_ / "faults.log");
    for (std::string call, path, error; log >> call >> path >> error;) faults.insert(concat(call, " ", error));
    for (const std::string& fault : faults) std::printf("%s; ", fault.c_str());
    std::printf("%zu damaged checkpoints; %d damaged snapshots that were told\n", damaged_.size(), told_snapshots_);
    const auto told = [&](const std::string& words) { EXPECT_TRUE(says(all_words_, words)); };
    if (faults.contains("write EIO") || faults.contains("fsync EIO"))
      told("Input/output error; training goes on with the older ones (failed save 1 of 3); a checkpoint takes ");
    if (faults.contains("write ENOSPC")) told("No space left on device");
    if (!damaged_.empty()) told(": its bytes are damaged (XXH3 sum ");
    for (const std::filesystem::path& step : damaged_) {
      EXPECT_TRUE(std::filesystem::exists(run_ / "out/checkpoints/damaged" / step)) << step;
      told(concat("; the damaged one is now out/checkpoints/damaged/", step.string()));
    }
    for (const Json& attempt : attempts()) EXPECT_NE(attempt["code"], 76) << attempt;
  }

  void print_tallies() {
    for (auto& [kind, tally] : tallies_) {
      std::sort(tally.seconds.begin(), tally.seconds.end());
      const std::size_t count = tally.seconds.size();
      std::printf("%-30s %3d times alone, %3d ended an attempt", name_of(kind), tally.judged, tally.ended);
      if (count > 0)
        std::printf("; further than before in %.1f s, at most %.1f s", tally.seconds[count / 2], tally.seconds.back());
      std::printf("\n");
    }
  }

  // How many attempts went on from a snapshot.
  int from_memory() const {
    const std::string log = read_file(run_ / "out/logs/rank-00000.log");
    int count = 0;
    for (std::size_t at = 0; (at = log.find(" from memory\n", at)) != log.npos; ++at) ++count;
    return count;
  }

 private:
  struct Tally {
    int judged = 0, ended = 0;
    std::vector<double> seconds;
  };
  std::vector<FaultKind> deck_;
  std::map<FaultKind, Tally> tallies_;
  std::vector<std::filesystem::path> damaged_;
  int told_snapshots_ = 0;
};

TEST_P(Chaos, ChangesNothing) {
  const int faults = GetParam();
  const std::uint64_t seed = seed_of_faults();
  rng_.emplace(seed, RngStream::test);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const std::string options = concat(
      "--training.steps=1000000 --lr_scheduler.decay=constant --training.global_batch_size=8 --training.micro_batch_size=1 "
      "--model.hidden_size=128 --model.intermediate_size=512 --model.num_hidden_layers=4 --parallel.shard=2 "
      "--parallel.replicate=2 --parallel.gradients=sharded --checkpoint.keep_every=50 "
      "--checkpoint.memory_every=1 --health.replicas_every=3 --comm.stall_s=",
      kStallS, " --checkpoint.interval=", kInterval, " ");
  const Hosts hosts(kHosts);
  start(hosts, 1, concat("--spares ", kSpares, " --restarts 1000 --restarts-per-hour 0"), options);
  ASSERT_TRUE(reaches(3));
  bool calm = true;  // all ranks train, and nothing is left of the fault before
  for (int struck = 0; struck < faults; ++struck) {
    Fault fault{.kind = next_kind(), .host = draw(kHosts), .other = 0, .lasts_s = 0.2 + 0.1 * draw(40)};  // some end unnoticed
    fault.other = (fault.host + 1 + draw(kHosts - 1)) % kHosts;
    keep_supervisors(hosts);
    if (!calm && needs_training(fault.kind)) {
      ASSERT_TRUE(moves_on(hosts, step() + 2)) << last_words_ << logs();
      calm = true;
    }
    const std::int64_t before = step();
    std::printf("fault %d at step %lld: %s, host %d, %.1f s%s\n", struck + 1, static_cast<long long>(before), name_of(fault.kind),
                fault.host, fault.lasts_s, calm ? "" : ", while the run recovers");
    std::fflush(stdout);
    strike(hosts, fault);
    if (HasFatalFailure()) FAIL() << logs();
    // The next one may come during the recovery.
    if (!needs_training(fault.kind) && draw(3) == 0) {
      calm = false;
      continue;
    }
    // A new checkpoint, so that the supervisor does not wait before it starts again, and saves that have failed end no attempt
    // any more. While a disk is full no metrics are written, so the run is further than step() says: of the saves that have begun
    // by now, all three that an attempt may lose in a row can still fail.
    const bool of_storage = fault.kind == FaultKind::storage_fails || fault.kind == FaultKind::disk_full;
    const std::int64_t saved = checkpoint_step() + (of_storage ? 3 * kInterval : 0);
    ASSERT_TRUE(moves_on(hosts, std::max(before, step()) + 2, saved))
        << "stuck after step " << step() << "; " << last_words_ << logs();
    if (calm) judge(fault);
    calm = true;
  }
  wait_s(kSilenceS + 1);  // the last fault may still end an attempt, whose code would be the run's
  ASSERT_TRUE(moves_on(hosts, step()));
  for (const auto& supervisor : supervisors_) signal_process(only_child_of(supervisor->pid()), SIGTERM);
  for (int host = 0; host < kHosts; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 75) << host << "\n" << result.err;
    all_words_ += result.err;
  }
  print_tallies();
  tells_of_storage();
  const std::int64_t last = checkpoint_step();
  make_reference(kRanks, concat(options, "--until ", last));
  EXPECT_TRUE(is_reference());
  for (std::int64_t kept = 50; kept < last; kept += 50) {
    if (says(all_words_, concat("the checkpoint of step ", kept, " is not saved"))) continue;  // for a fault of the storage
    EXPECT_TRUE(std::filesystem::exists(run_ / "out/checkpoints" / fmt::format("step-{:08}", kept))) << kept;
  }
  std::printf("%zu attempts, %d of them from memory, %lld steps\n", attempts().size(), from_memory(),
              static_cast<long long>(last));
}

INSTANTIATE_TEST_SUITE_P(Few, Chaos, ::testing::Values(20));
INSTANTIATE_TEST_SUITE_P(Long, Chaos, ::testing::Values(220));

}  // namespace
}  // namespace octet::testing
