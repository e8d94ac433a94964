// The share of time in which a run makes progress although its machines sometimes fail.
//
// A run alternates between `interval_s` seconds of training and `save_s` seconds in which training pauses for a save.
// Failures are random, with a mean time M = `mtbf_s` between them, also while the run recovers. A failure costs `recover_s`
// seconds and the work since the newest durable save. A save is durable `write_s` seconds after it was taken. On average, a
// segment then takes
//
//     M exp((recover_s + write_s) / M) (exp((interval_s + save_s) / M) - 1)
//
// seconds. A save begins when the previous one is durable: if write_s is longer than interval_s, training also pauses for
// the difference. Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
// Generation Computer Systems 22 (2006), equation 13. There, saves are durable at once, so that write_s is 0.
#pragma once

#include <cstdint>

namespace octet::plan {

// What saves and failures cost a run, in seconds.
struct Upkeep {
  double mtbf_s = 0;     // mean time between two failures, whichever GPU of the run fails; above 0
  double save_s = 0;     // in which training pauses for a save
  double write_s = 0;    // from there until the save is durable
  double recover_s = 0;  // from a failure to the first step after it, without the work that is repeated
};

// Shares of time, which add up to 1.
struct Goodput {
  double productive = 0;
  double saves = 0;     // training pauses for them
  double recovery = 0;  // failures are noticed, processes start, checkpoints are read
  double repeated = 0;  // steps that were done before
};

// interval_s is above 0.
Goodput goodput_of(const Upkeep& upkeep, double interval_s);

// Returns the number of steps between saves that gives the most productive time. A save is durable before the next one begins.
// With `slack`, returns the largest number whose productive share is smaller by at most that much, because it writes less.
std::int64_t best_interval(const Upkeep& upkeep, double step_s, double slack = 0);

}  // namespace octet::plan
