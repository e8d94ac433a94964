// A run on four hosts with two spares, hit by one random fault after the other. A scheduler stands by, as it would in a cluster:
// it starts a supervisor again that has ended. Every loss, every weight and every checkpoint must be those of a run that nobody
// disturbed.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <fstream>

#include "octet/base/rng.h"
#include "support/faults.h"
#include "support/supervised_hosts.h"

namespace octet::testing {
namespace {

constexpr int kHosts = 6, kSpares = 2;

enum class FaultKind {
  kill_rank,
  kill_supervisor,
  freeze,
  power_off,
  unplug,
  cut_one_way,
  cut_both_ways,
  storage_fails,
  disk_full,
  damage
};
constexpr int kKinds = 10;
const char* name_of(FaultKind kind) {
  constexpr const char* kNames[kKinds] = {"kill of rank",
                                          "kill of the supervisor on host",
                                          "freeze of host",
                                          "power loss of host",
                                          "cable out of host",
                                          "one-way cut from host",
                                          "cut at host",
                                          "EIO on host",
                                          "full disk, seen from host",
                                          "damaged checkpoint, for host"};
  return kNames[static_cast<int>(kind)];
}

class Chaos : public SupervisedHosts, public ::testing::WithParamInterface<int> {
 protected:
  // The storage of a host fails while the file eio-host3 exists, and the disk of all hosts is full while the file full exists.
  std::string faults_on(int host) const override {
    return with_faults(concat("read,write,fsync,opendir */out/checkpoints* 1+ EIO while ", (run_ / "eio-host").string(), host,
                              ";write */out/* 1+ ENOSPC while ", (run_ / "full").string()));
  }

  // Draws from 0 to count-1.
  int draw(int count) { return static_cast<int>(rng_.words(draws_++)[0] % static_cast<std::uint32_t>(count)); }

  // Starts supervisors again that have ended.
  void keep_supervisors(const Hosts& hosts) {
    for (int host = 0; host < kHosts; ++host) {
      auto& end = ends_[static_cast<std::size_t>(host)];
      if (!end.valid() || end.wait_for(std::chrono::seconds(0)) != std::future_status::ready) continue;
      const ProgramResult result = end.get();
      last_words_ = concat("host", host, " ended with ", result.code, ": ", result.err);
      all_words_ += result.err;
      start_on(hosts, host);
    }
  }
  bool moves_on(const Hosts& hosts, std::int64_t from) {
    return comes_true(60, [&] {
      keep_supervisors(hosts);
      return step() > from;
    });
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

  void strike(const Hosts& hosts, FaultKind kind, int host, double lasts_s) {
    const int other = (host + 1 + draw(kHosts - 1)) % kHosts;
    switch (kind) {
      case FaultKind::kill_rank:
        if (const pid_t rank = run_.pid_of_rank(host % (kHosts - kSpares)); rank > 0) ::kill(rank, SIGKILL);
        break;
      case FaultKind::kill_supervisor:
        ::kill(only_child_of(supervisors_[static_cast<std::size_t>(host)]->pid()), SIGKILL);
        break;
      case FaultKind::freeze:
        hosts.freeze(host);
        sleep_s(lasts_s);
        hosts.thaw(host);
        break;
      case FaultKind::power_off:
        hosts.power_off(host);
        sleep_s(lasts_s);
        hosts.plug(host);
        break;
      case FaultKind::unplug:
        hosts.unplug(host);
        sleep_s(lasts_s);
        hosts.plug(host);
        break;
      case FaultKind::cut_one_way:
        hosts.cut(host, other);
        sleep_s(lasts_s);
        hosts.heal(host, other);
        break;
      case FaultKind::cut_both_ways:
        hosts.cut(host, other);
        hosts.cut(other, host);
        sleep_s(lasts_s);
        hosts.heal(host, other);
        hosts.heal(other, host);
        break;
      case FaultKind::storage_fails:
      case FaultKind::disk_full: {
        const std::filesystem::path on = run_ / (kind == FaultKind::disk_full ? "full" : "eio-" + name_of_one_that_trains(host));
        write_text(on, "");
        sleep_s(lasts_s);
        std::filesystem::remove(on);
        break;
      }
      case FaultKind::damage:
        damage_newest(hosts);
        break;
    }
  }

  // A spare would not notice that its storage fails.
  std::string name_of_one_that_trains(int host) const {
    const Json names = attempts().back()["nodes"];
    return names[static_cast<std::size_t>(host) % names.size()].get<std::string>();
  }

  // Flips a bit in the newest checkpoint, while rank 0 stands still, so that there is no newer one. Then it kills the supervisor
  // of rank 0, with which the snapshots in its memory go. Otherwise the run would go on from them.
  void damage_newest(const Hosts& hosts) {
    ASSERT_TRUE(moves_on(hosts, step())) << last_words_ << logs();  // or a rank might read the checkpoint just now
    const pid_t first = run_.pid_of_rank(0);
    if (first <= 0) return;
    ::kill(first, SIGSTOP);
    const std::filesystem::path newest = last_checkpoint(run_ / "out"), file = newest / "rank-00000.safetensors";
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(file) / 2);
    const int byte = bytes.seekg(middle).get();
    bytes.seekp(middle).put(static_cast<char>(byte ^ 4));
    bytes.close();
    ::kill(parent_of(first), SIGKILL);
    damaged_.push_back(newest.filename());
  }

  // Checks the sentences that docs/guides/keep-running.md shows for storage that fails.
  void tells_of_storage() const {
    std::set<std::string> faults;  // "write EIO"
    std::ifstream log(run_ / "faults.log");
    for (std::string call, path, error; log >> call >> path >> error;) faults.insert(concat(call, " ", error));
    std::printf("%zu damaged checkpoints;", damaged_.size());
    for (const std::string& fault : faults) std::printf(" %s;", fault.c_str());
    std::printf("\n");
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

  // How many attempts went on from a snapshot.
  int from_memory() const {
    const std::string log = read_file(run_ / "out/logs/rank-00000.log");
    int count = 0;
    for (std::size_t at = 0; (at = log.find(" from memory\n", at)) != log.npos; ++at) ++count;
    return count;
  }
  std::int64_t checkpoint_step() const { return std::stoll(last_checkpoint(run_ / "out").filename().string().substr(5)); }

  const Rng rng_{1006, RngStream::test};  // 20 faults are of all kinds
  std::uint64_t draws_ = 0;
  std::string last_words_, all_words_;  // of supervisors that have ended
  std::vector<std::filesystem::path> damaged_;
};

TEST_P(Chaos, ChangesNothing) {
  const int faults = GetParam();
  const std::string options =
      "--training.steps=1000000 --lr_scheduler.decay=constant --training.global_batch_size=8 --training.micro_batch_size=1 "
      "--model.hidden_size=128 --model.intermediate_size=512 --model.num_hidden_layers=4 --parallel.shard=2 "
      "--parallel.replicate=2 "
      "--parallel.gradients=sharded --checkpoint.interval=2 --checkpoint.keep_every=50 ";
  const Hosts hosts(kHosts);
  start(hosts, 1, concat("--spares ", kSpares, " --restarts 1000 --restarts-per-hour 0"), options);
  ASSERT_TRUE(reaches(3));
  int struck = 0;
  for (; struck < faults; ++struck) {
    const std::int64_t before = step();
    const auto kind = static_cast<FaultKind>(draw(kKinds));
    const int host = draw(kHosts);
    const double lasts_s = 0.2 + 0.1 * draw(40);  // some end before the silence counts
    std::printf("fault %d at step %lld: %s %d, %.1f s\n", struck + 1, static_cast<long long>(before), name_of(kind), host,
                lasts_s);
    std::fflush(stdout);
    keep_supervisors(hosts);
    strike(hosts, kind, host, lasts_s);
    // The next one may come during the recovery, but it must not silence the ranks before they have told about their disks.
    if (draw(3) == 0 && kind < FaultKind::storage_fails) continue;
    // A new checkpoint, so that the supervisor does not wait before it starts again.
    ASSERT_TRUE(moves_on(hosts, std::max(before, step()) + 2)) << "stuck after step " << step() << "; " << last_words_ << logs();
  }
  EXPECT_EQ(struck, faults);
  ASSERT_TRUE(moves_on(hosts, step()));
  for (const auto& supervisor : supervisors_) ::kill(only_child_of(supervisor->pid()), SIGTERM);
  for (int host = 0; host < kHosts; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 75) << host << "\n" << result.err;
    all_words_ += result.err;
  }
  tells_of_storage();
  const std::int64_t last = checkpoint_step();
  make_reference(kHosts - kSpares, concat(options, "--until ", last));
  EXPECT_TRUE(is_reference());
  for (std::int64_t kept = 50; kept < last; kept += 50) {
    if (says(all_words_, concat("the checkpoint of step ", kept, " is not saved"))) continue;  // for a fault of the storage
    EXPECT_TRUE(std::filesystem::exists(run_ / "out/checkpoints" / fmt::format("step-{:08}", kept))) << kept;
  }
  std::printf("%zu attempts, %d of them from memory\n", attempts().size(), from_memory());
}

INSTANTIATE_TEST_SUITE_P(Few, Chaos, ::testing::Values(20));
INSTANTIATE_TEST_SUITE_P(Long, Chaos, ::testing::Values(220));

}  // namespace
}  // namespace octet::testing
