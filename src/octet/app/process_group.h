// Processes of this machine that work together as ranks 0 to N-1. They are started together, read line by line, and ended
// together.
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octet/app/line_splitter.h"
#include "octet/app/signal_pipe.h"
#include "octet/base/clock.h"

namespace octet::app {

enum class StandardStream { out, err };

// Returns this process's environment with these variables, each "NAME=value", which replace those of the same names.
std::vector<std::string> environment_with(const std::vector<std::string>& own);
// Returns pointers to the texts, with a null at the end, as exec requires.
std::vector<char*> pointers(std::vector<std::string>& texts);

struct ProcessGroupOptions {
  std::string program;                 // path of what every rank runs
  std::vector<std::string> arguments;  // its argv, the name included
  bool trains =
      false;  // `octet train`: a rank that SIGTERM, SIGINT or SIGHUP kills when it was asked to end counts as pre-empted
  std::vector<std::vector<std::string>> environment;  // of each rank, "NAME=value", over this process's own
  int first_rank = 0;                                 // the number of the first; lower ones run on other hosts
  double grace_s = 20;                                // from a failure to the SIGKILL
  double killed_s = 10;                               // how long the destructor waits for ranks after the SIGKILL
  // A line that a rank wrote, with its end; without one: part of a very long line, or the last of the stream.
  std::function<void(int rank, StandardStream stream, std::string_view line)> output;
  std::function<void(std::string_view sentence)> note;  // which rank failed, and how; once
};

// Rank 0 has this process's stdin, all others have /dev/null. Each rank is its own process group, so that a terminal's Ctrl-C
// reaches it once, through this object; processes that a rank has started end with it. All ranks die with this process, however
// it ends. Therefore the main thread must call run(), because PR_SET_PDEATHSIG is bound to the thread.
class ProcessGroup {
 public:
  // A caller that starts several groups in turn gives them its own `signals`, so that none is lost in between.
  explicit ProcessGroup(ProcessGroupOptions options, SignalPipe* signals = nullptr);
  // Kills the ranks that still run, and waits for their end. A rank that waits for a device or a file server may not end in
  // time and is left behind.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Starts all ranks and returns when the last one has ended: 0, or the exit code of the first that failed (128 + the signal
  // that killed it). Code 78, a lost peer, counts only if no rank ended for another reason, because the rank that is missed may
  // end later than those that miss it. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to every rank, SIGINT as
  // SIGTERM if the ranks train. When a rank fails, the others get SIGTERM, unless it failed because it missed one of them, and
  // SIGKILL after the grace period.
  int run();
  // The same in steps, for a caller that also has other work:
  //     start(); while (running()) turn(...); return conclude();
  void start();
  bool running() const;
  // Waits until something happens to the ranks, `also` can be read (-1: nothing) or at_most_s have passed. Deals with the ranks.
  void turn(int also, double at_most_s);
  int conclude();
  int code() const { return code_; }  // so far
  // The number of the rank that the last note was about; -1: there was none.
  int noted_rank() const { return noted_rank_; }
  // The process of the i-th rank here; -1: it does not run.
  pid_t pid(int i) const { return ranks_[static_cast<std::size_t>(i)].pid; }
  // Ends the ranks because of an event on another host: SIGTERM now, SIGKILL after the grace period. Their ends then do not
  // count as failures, except by a signal that was not sent here; conclude() then returns 78.
  void end(double grace_s);
  // Whether one of train::kStopSignals was passed on. The ranks may have finished nevertheless.
  bool asked_to_end() const { return asked_to_end_; }
  // When the first rank failed, if one did.
  std::optional<Clock::time_point> failed_at() const { return failed_at_; }

 private:
  struct Pipe {
    int fd = -1;  // -1: at its end
    LineSplitter lines;
  };
  struct Rank {
    pid_t pid = -1;  // -1: not running
    std::array<Pipe, 2> pipes;
  };
  struct End {
    std::size_t rank;
    int status, code;
  };

  void start(std::size_t rank);
  // Reads once. Returns false if there is nothing to read now or the stream has ended.
  bool read(std::size_t rank, StandardStream stream);
  void close(std::size_t rank, StandardStream stream);
  void reap();
  int code_of(int status) const;  // of a rank, by what waitpid() says
  void judge(const End& end);
  void note(const End& end);
  void signal_all(int signal) const;
  void kill_after(double grace_s);

  ProcessGroupOptions options_;
  std::optional<SignalPipe> own_signals_;
  SignalPipe& signals_;
  std::vector<Rank> ranks_;
  std::vector<char> buffer_;
  std::optional<Clock::time_point> failed_at_, kill_at_;
  bool asked_to_end_ = false;       // SIGTERM, SIGINT or SIGHUP has been passed on
  bool ending_ = false;             // end() was called
  bool killed_ = false;             // the grace is over
  int code_ = 0;                    // of the failure
  std::optional<End> misses_peer_;  // the first end, if it was for want of a peer
  bool noted_ = false;              // the sentence about the failure has been said
  int noted_rank_ = -1;
};

}  // namespace octet::app
