// The faults of chaos_slow_test.cpp: what each one does to the hosts of a run, and what the run must say about it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "octet/base/clock.h"
#include "octet/base/rng.h"
#include "support/faults.h"
#include "support/rank_memory.h"
#include "support/supervised_hosts.h"

namespace octet::testing {

enum class FaultKind {
  kill_rank,
  stop_rank,
  kill_supervisor,
  lose_coordinator,
  freeze,
  power_off,
  unplug,
  cut_one_way,
  cut_both_ways,
  slow_link,
  lossy_link,
  storage_fails,
  disk_full,
  damage_checkpoint,
  damage_snapshot,
  flip_bit
};
inline constexpr int kKinds = 16;
inline const char* name_of(FaultKind kind) {
  constexpr const char* kNames[kKinds] = {
      "killed rank", "stopped rank",       "killed supervisor", "power loss of the coordinator",
      "frozen host", "power loss",         "pulled cable",      "one-way cut",
      "cut",         "slow links",         "lossy links",       "EIO",
      "full disk",   "damaged checkpoint", "damaged snapshot",  "flipped bit"};
  return kNames[static_cast<int>(kind)];
}

struct Fault {
  FaultKind kind;
  int host, other;  // `other`: the other end of a cut
  double lasts_s;
  // Known when it has struck:
  Json attempt;  // that ran then, as its file said
  int rank = -1;
  std::int64_t step = -1;  // of the damaged checkpoint or snapshot
  std::string tensor;      // of which a bit has flipped
};

// What the file of an attempt must say after a fault that struck while all ranks trained.
struct Expected {
  enum class End { never, maybe, always } end = End::maybe;
  std::set<int> codes = {};
  std::string words = {};  // of `what`
  double within_s = 0;     // until the run is further than before; 0: the fault has no such limit
};

class ChaosHosts : public SupervisedHosts {
 protected:
  static constexpr int kHosts = 6, kSpares = 2, kRanks = kHosts - kSpares;
  static constexpr double kSilenceS = 1, kStallS = 3;
  static constexpr double kProcessS = 13, kHostS = 23;  // the design's times from a fault to the next step

  // The storage of a host fails while the file eio-host3 exists, and the disk of all hosts is full while the file full exists.
  std::string faults_on(int host) const override {
    return with_faults(concat("read,write,fsync,opendir */out/checkpoints* 1+ EIO while ", (run_ / "eio-host").string(), host,
                              ";write */out/* 1+ ENOSPC while ", (run_ / "full").string()));
  }

  // Draws from 0 to count-1.
  int draw(int count) { return static_cast<int>(rng_->words(draws_++)[0] % static_cast<std::uint32_t>(count)); }

  // Starts supervisors again that have ended, as a scheduler does.
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
  void wait_s(double seconds) {
    for (const Clock::time_point start = Clock::now(); seconds_since(start) < seconds; sleep_s(0.02)) watch();
  }
  // Whether the run comes past a step, and past a checkpoint.
  bool moves_on(const Hosts& hosts, std::int64_t from, std::int64_t saved = -1) {
    return comes_true(60, [&] {
      keep_supervisors(hosts);
      watch();
      return step() > from && checkpoint_step() > saved;
    });
  }

  void strike(const Hosts& hosts, Fault& fault) {
    fault.attempt = newest_attempt();
    struck_ = fault.attempt["number"].get<std::int64_t>();
    struck_at_ = Clock::now();
    recovered_s_.reset();
    lost_step_.reset();
    const int host = fault.host, other = fault.other;
    switch (fault.kind) {
      case FaultKind::kill_rank:
        fault.rank = host % kRanks;
        if (const pid_t rank = run_.pid_of_rank(fault.rank); rank > 0) signal_process(rank, SIGKILL);
        break;
      case FaultKind::stop_rank:
        fault.rank = host % kRanks;
        if (const pid_t rank = run_.pid_of_rank(fault.rank); rank > 0) signal_process(rank, SIGSTOP);
        break;
      case FaultKind::kill_supervisor:
        kill_supervisor_of(host);
        break;
      case FaultKind::lose_coordinator:
        fault.host = fault.attempt["coordinator"]["node"].get<int>();
        [[fallthrough]];
      case FaultKind::power_off:
        hosts.power_off(fault.host);
        wait_s(fault.lasts_s);
        hosts.plug(fault.host);
        break;
      case FaultKind::freeze:
        hosts.freeze(host);
        wait_s(fault.lasts_s);
        hosts.thaw(host);
        break;
      case FaultKind::unplug:
        hosts.unplug(host);
        wait_s(fault.lasts_s);
        hosts.plug(host);
        break;
      case FaultKind::cut_one_way:
      case FaultKind::cut_both_ways:
        hosts.cut(host, other);
        if (fault.kind == FaultKind::cut_both_ways) hosts.cut(other, host);
        wait_s(fault.lasts_s);
        hosts.heal(host, other);
        hosts.heal(other, host);
        break;
      case FaultKind::slow_link:
        worsen(hosts, fault, {.delay_s = 0.01, .bytes_per_s = 16e6});
        break;
      case FaultKind::lossy_link:
        worsen(hosts, fault, {.loss = 0.02});
        break;
      case FaultKind::storage_fails:
      case FaultKind::disk_full: {
        // A spare would not notice that its storage fails.
        const std::string name = fault.attempt["nodes"][static_cast<std::size_t>(host % kRanks)].get<std::string>();
        const std::filesystem::path on = run_ / (fault.kind == FaultKind::disk_full ? "full" : "eio-" + name);
        write_text(on, "");
        wait_s(1.5 + fault.lasts_s);  // some saves fall into it
        std::filesystem::remove(on);
        break;
      }
      case FaultKind::damage_checkpoint:
        damage_newest_checkpoint(fault);
        break;
      case FaultKind::damage_snapshot:
        damage_newest_snapshot(fault);
        break;
      case FaultKind::flip_bit:
        flip_bit_of_weight(fault);
        break;
    }
  }

  // Whether a fault needs ranks that train, and nothing else that fails at the same time.
  static bool needs_training(FaultKind kind) { return kind >= FaultKind::storage_fails || kind == FaultKind::stop_rank; }

  static Expected expected_of(const Fault& fault) {
    using End = Expected::End;
    const std::string name = concat("host", fault.host), node = concat("node", fault.host, " (");
    const Json& nodes = fault.attempt["nodes"];
    const bool trains = std::find(nodes.begin(), nodes.end(), name) != nodes.end();
    const bool coordinates = fault.attempt["coordinator"]["node"] == fault.host, takes_part = trains || coordinates;
    const std::string rank = concat("rank ", fault.rank);
    // Either end may be the first to miss the other: "has been silent for 1 s" or "has heard nothing from node2 (host2) for 1 s".
    const std::string silent = concat(" for ", kSilenceS, " s");
    const std::string killed = rank + " was killed by signal 9 (SIGKILL)";
    switch (fault.kind) {
      case FaultKind::kill_rank:
      case FaultKind::damage_snapshot:
        return {.end = End::always, .codes = {128 + SIGKILL}, .words = killed, .within_s = kProcessS};
      case FaultKind::stop_rank:
        // If ten steps take longer, the other ranks miss it first.
        return {.end = End::always, .codes = {80, 78}};
      case FaultKind::kill_supervisor:
      case FaultKind::power_off:
      case FaultKind::lose_coordinator:
        if (!takes_part) return {.end = End::never};
        return {.end = End::always, .codes = {78}, .words = node, .within_s = kHostS};
      case FaultKind::freeze:
      case FaultKind::unplug:
        if (!takes_part) return {.end = End::never};
        return {.end = fault.lasts_s > kSilenceS + 1 ? End::always : End::maybe,
                .codes = {78},
                .words = coordinates ? "node" : silent,  // when it moves again, it sees that the others have left it
                .within_s = kHostS};
      case FaultKind::cut_one_way:
      case FaultKind::cut_both_ways:
        return {.codes = {78, 80}, .within_s = kHostS};
      case FaultKind::slow_link:  // heartbeats may be lost, or late, for a second
      case FaultKind::lossy_link:
        return {.codes = {78}, .words = silent, .within_s = kHostS};
      case FaultKind::storage_fails:
      case FaultKind::disk_full:
        return {.codes = {1, 3, 78}};
      case FaultKind::damage_checkpoint:
        return {.end = End::always, .codes = {78}, .words = "node", .within_s = kHostS};
      case FaultKind::flip_bit:
        return {.end = End::always, .codes = {78}, .words = " ended with code 78", .within_s = kProcessS};
    }
    return {};
  }

  // How long the run took after the fault to get further than it was. Nothing if no other attempt did.
  std::optional<double> recovered_s() const { return recovered_s_; }

  // The step of the newest checkpoint; 0 if there is none.
  std::int64_t checkpoint_step() const {
    const std::filesystem::path newest = last_checkpoint(run_ / "out");
    return newest.empty() ? 0 : std::stoll(newest.filename().string().substr(5));
  }

  std::optional<Rng> rng_;
  std::string last_words_, all_words_;  // of the supervisor that ended last, and of all that have ended

 private:
  void kill_supervisor_of(int host) {
    signal_process(only_child_of(supervisors_[static_cast<std::size_t>(host)]->pid()), SIGKILL);
  }

  void watch() {
    if (struck_ == 0 || recovered_s_) return;
    if (!lost_step_) {
      if (newest_attempt()["number"] > struck_) lost_step_ = step();
    } else if (step() > *lost_step_) {
      recovered_s_ = seconds_since(struck_at_);
    }
  }

  // All links of a host, in both directions, and for long enough that steps are slower.
  void worsen(const Hosts& hosts, const Fault& fault, const Link& link) {
    for (int other = 0; other < kHosts; ++other) {
      hosts.set_link(fault.host, other, link);
      hosts.set_link(other, fault.host, link);
    }
    wait_s(2 + fault.lasts_s);
    for (int other = 0; other < kHosts; ++other) {
      hosts.heal(fault.host, other);
      hosts.heal(other, fault.host);
    }
  }

  // Flips a bit in the newest checkpoint, while rank 0 stands still, so that there is no newer one. Then it kills the supervisors
  // of rank 0 and of the rank that holds the same state, with which the snapshots in their memory go. Otherwise the run would go
  // on from them.
  void damage_newest_checkpoint(Fault& fault) {
    const pid_t first = run_.pid_of_rank(0);
    ASSERT_GT(first, 1);
    signal_process(first, SIGSTOP);
    const std::filesystem::path newest = last_checkpoint(run_ / "out"), file = newest / "rank-00000.safetensors";
    flip_bit(file, std::filesystem::file_size(file) / 2, 2);
    fault.step = std::stoll(newest.filename().string().substr(5));
    const pid_t other = run_.pid_of_rank(kRanks / 2);
    ASSERT_GT(other, 1);
    for (const pid_t supervisor : {parent_of(first), parent_of(other)}) signal_process(supervisor, SIGKILL);
  }

  // Flips a bit in the newest snapshot of a rank and kills the rank, if the run would go on from it: no checkpoint is newer or
  // being written, the rank that holds the same state has no newer snapshot, and the rank's host will run it again.
  void damage_newest_snapshot(Fault& fault) {
    const std::set<std::string> blamed = blamed_lately();
    fault.rank = fault.host % kRanks;
    while (blamed.contains(fault.attempt["nodes"][static_cast<std::size_t>(fault.rank)].get<std::string>()))
      fault.rank = (fault.rank + 1) % kRanks;
    const bool damaged = comes_true(20, [&] {
      const pid_t pid = run_.pid_of_rank(fault.rank), twin = run_.pid_of_rank((fault.rank + kRanks / 2) % kRanks);
      if (pid <= 1 || twin <= 1) return false;
      const Stopped stopped(pid);
      wait_s(0.3);  // the others finish what they write
      const std::vector<HeldSnapshot> held = snapshots_of(pid), of_twin = snapshots_of(twin);
      const std::int64_t on_disk = checkpoint_step();
      if (held.empty() || held[0].step < on_disk || (held[0].saved_step > on_disk && held[0].saved_step != held[0].step))
        return false;
      if (of_twin.empty() || of_twin[0].step > held[0].step) return false;
      flip_bit(held[0].data, std::filesystem::file_size(held[0].data) / 2, 2);
      fault.step = held[0].step;
      signal_process(pid, SIGKILL);
      return true;
    });
    ASSERT_TRUE(damaged);
  }
  // The hosts that failed in the last two attempts. Another host may take the place of one that fails again.
  std::set<std::string> blamed_lately() const {
    const std::vector<Json> all = attempts();
    std::set<std::string> hosts;
    for (std::size_t i = all.size() < 3 ? 0 : all.size() - 3; i < all.size(); ++i) {
      const std::string what = all[i].value("what", "");
      for (std::size_t rank = 0; rank < all[i]["nodes"].size(); ++rank) {
        const std::string host = all[i]["nodes"][rank].get<std::string>();
        if (what.starts_with(concat("rank ", rank, " ")) || what.find("(" + host + ")") != what.npos) hosts.insert(host);
      }
    }
    return hosts;
  }

  // Flips a bit of a weight, or of a moment, of a rank that writes no checkpoint. Its snapshot tells what it holds.
  void flip_bit_of_weight(Fault& fault) {
    fault.rank = kRanks / 2 + fault.host % (kRanks / 2);
    const int one = draw(1000);
    const bool flipped = comes_true(20, [&] {
      const pid_t pid = run_.pid_of_rank(fault.rank);
      if (pid <= 1) return false;
      Stopped stopped(pid);
      const std::vector<HeldSnapshot> held = snapshots_of(pid);
      if (held.empty()) return false;
      std::vector<std::pair<std::string, std::string>> tensors;
      for (const auto& [name, bytes] : tensors_of(held[0].data)) {
        // The moments of a token that never occurs are zero, as much of the memory is.
        const std::string some = bytes.size() < 4096 ? "" : bytes.substr(bytes.size() / 8 * 4 + 1, 64);
        if (std::set<char>(some.begin(), some.end()).size() > 16) tensors.emplace_back(name, some);
      }
      const auto& [name, some] = tensors[static_cast<std::size_t>(one) % tensors.size()];
      fault.tensor = name;
      fault.step = held[0].step;
      return stopped.flip(some, 2) > 0;
    });
    ASSERT_TRUE(flipped);
  }
  std::uint64_t draws_ = 0;
  Clock::time_point struck_at_;
  std::int64_t struck_ = 0;                // the number of the attempt
  std::optional<std::int64_t> lost_step_;  // the last step before another attempt
  std::optional<double> recovered_s_;
};

}  // namespace octet::testing
