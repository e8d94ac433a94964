// The gate of this host (gate.h) as a child of the supervisor. A child can be killed when a driver hangs, and it keeps the
// supervisor free of contexts on the GPUs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "octet/app/gate.h"
#include "octet/app/links.h"
#include "octet/app/process_group.h"
#include "octet/app/restart_budget.h"
#include "octet/base/clock.h"

namespace octet::app {

// A gate is killed after this time, which is many times its usual duration, because a host may be busy. The kernel cannot kill
// a process that waits for a device; the supervisor waits for such a gate at most another kGateKillS.
inline constexpr double kQuickGateLimitS = 120, kFullGateLimitS = 300, kGateKillS = 10;

struct GateEnd {
  int code = 0;  // 0: the host is fit
  std::string what;
  Cause cause = Cause::unknown;  // storage: perhaps not the host is to blame, but what several hosts share
  std::vector<LinkRate> links;   // to other hosts, if the gate was told to measure some
};

class GateProcess {
 public:
  // Starts `octet doctor --gate`, which writes in the folder and checks `gpus` GPUs. `environment` has further variables.
  GateProcess(GateKind kind, const std::filesystem::path& folder, int gpus, std::vector<std::string> environment,
              SignalPipe& signals);

  GateKind kind() const { return kind_; }
  bool running() const { return group_.running() && seconds() < limit_s() + kGateKillS; }
  // Like ProcessGroup::turn(). Kills a gate that takes too long.
  void turn(int also, double at_most_s);
  // Whether a signal has asked this host to leave the run.
  bool asked_to_end() const { return group_.asked_to_end(); }
  double seconds() const { return seconds_since(start_); }
  GateEnd conclude();

 private:
  double limit_s() const;

  GateKind kind_;
  std::string json_, last_words_;
  bool late_ = false;
  Clock::time_point start_ = Clock::now();
  ProcessGroup group_;
};

}  // namespace octet::app
