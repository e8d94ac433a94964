// The time of an op on a GPU, predicted from its work alone.
//   product   launch + max(2 M N K / (rate x fill), bytes / copy)
//             fill   = units / (S x ceil(units / S)), S multiprocessors: the last wave of tiles fills only a part of them
//             units  = tiles x pieces, tiles = ceil(M / 128) x ceil(N / 256)
//             pieces = floor(S / tiles), from 1 to floor(K / 512): a product of few tiles is cut along K
//   other     kernels x launch + bytes / copy
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "octet/plan/linear_run.h"

namespace octet::plan {

struct Machine {
  double (*flops)(
      std::string_view op);  // operations per second of large products by an op's name in profiles; 0: memory bounds it
  double copy_bytes_per_s = 0;
  int multiprocessors = 132;  // of Hopper
  // Start and end of a kernel with the gap before the next. An estimate: what it decides is small products, and a GPU measures
  // those.
  double launch_s = 4e-6;
};

// The share of the multiprocessors that a product [M, N, K] keeps busy.
double fill_of(const std::array<std::int64_t, 3>& shape, std::int64_t multiprocessors);

// Of all calls of an op together. `kernels`: how many one call starts, where memory bounds it.
double predicted_seconds(const Machine& machine, const OpTime& op, int kernels);

// Of one linear and one micro-batch.
struct LinearTime {
  double products_s = 0;  // forward, dgrad and wgrad
  double others_s = 0;    // the ops that make the operands, and the casts of the weight shared by the micro-batches of a step
};
LinearTime predicted_time(const Machine& machine, const LinearOps& ops, const LinearKind& kind, const Recipe& recipe,
                          const LinearSetting& setting);
// Of profiles whose seconds a device has measured.
LinearTime measured_time(const LinearOps& ops, const LinearKind& kind, const LinearSetting& setting);

}  // namespace octet::plan
