// Whether a run that has ended starts again, and when.
//
// A code says whether starting again can help. Restarts without progress are counted: an attempt that has saved a later
// step than all attempts before clears the count. Each of them waits longer than the one before.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace octet::app {

struct RestartLimits {
  int restarts = 3;   // in a row without progress
  int per_hour = 20;  // 0: no limit
};

class RestartBudget {
 public:
  explicit RestartBudget(RestartLimits limits) : limits_(limits) {}

  // How an attempt ended.
  struct End {
    int code = 0;                 // as ProcessGroup::run() returns it
    bool asked = false;           // a person or a scheduler asked it to end
    std::int64_t saved_step = 0;  // of the last checkpoint that the attempt has saved; 0: none
    double at_s = 0;              // the time, on any clock that goes on
  };
  struct Decision {
    bool restarts = false;
    double wait_s = 0;
    std::string why;  // a clause: "it has used up ..."; "" if the code itself says why
  };
  Decision judge(const End& end);

 private:
  RestartLimits limits_;
  int without_progress_ = 0;
  std::int64_t latest_step_ = 0;  // that any attempt has saved
  std::deque<double> restarts_;   // of the last hour
};

// Whether starting again can help after this exit code: after a crash, a kill, a lost peer and an internal error, but not after
// success, a request, an invalid configuration, missing data, a model that does not fit, or a loss that is not finite.
bool may_pass(int code);

}  // namespace octet::app
