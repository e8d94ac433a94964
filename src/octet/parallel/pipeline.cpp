#include "octet/parallel/pipeline.h"

#include <algorithm>
#include <map>

#include "octet/base/require.h"

namespace octet::parallel {

BlockRange blocks_of(int blocks, Stages stages, int chunk) {
  const int chunks = stages.count * stages.chunks, each = blocks / chunks, rest = blocks % chunks;
  require(chunk >= 0 && chunk < chunks, "chunk ", chunk, " of ", chunks);
  // Chunks get a block more in this order: 1, 2, ..., chunks - 2, then the last one. The first one never does, because `rest`
  // is smaller than the number of chunks.
  const auto begin = [&](int c) { return c * each + std::clamp(c - 1, 0, rest); };
  return {begin(chunk), chunk + 1 < chunks ? begin(chunk + 1) : blocks};
}

int stage_of_block(int blocks, Stages stages, int block) {
  int chunk = 0;
  while (blocks_of(blocks, stages, chunk).end <= block) ++chunk;
  return chunk % stages.count;
}

namespace {

// The forward and backward passes of a stage, each in its order.
struct Passes {
  std::vector<Visit> forward, backward;
};

// Groups of P micro-batches go through all chunks, one chunk after another; backward passes through the chunks in reverse.
Passes interleaved_passes(Stages stages, int micro_batches) {
  Passes passes;
  for (int group = 0; group < micro_batches; group += stages.count) {
    for (int chunk = 0; chunk < stages.chunks; ++chunk) {
      for (int m = group; m < group + stages.count; ++m) {
        passes.forward.push_back({.backward = false, .micro_batch = m, .chunk = chunk});
        passes.backward.push_back({.backward = true, .micro_batch = m, .chunk = stages.chunks - 1 - chunk});
      }
    }
  }
  return passes;
}

// Runs `ahead` forward passes, then one of each in turn, then the backward passes that are left.
std::vector<Visit> in_turn(const Passes& passes, int ahead) {
  std::vector<Visit> visits;
  const auto count = passes.forward.size(), first = std::min(static_cast<std::size_t>(ahead), count);
  for (std::size_t i = 0; i < count + first; ++i) {
    if (i < count) visits.push_back(passes.forward[i]);
    if (i >= first) visits.push_back(passes.backward[i - first]);
  }
  return visits;
}

}  // namespace

std::vector<Visit> visits_of(Stages stages, int stage, int micro_batches, int lanes) {
  const int behind = stages.count - 1 - stage;
  if (lanes > 1) {
    std::vector<Visit> visits;
    for (int first = 0; first < micro_batches; first += lanes) {
      for (const bool backward : {false, true}) {
        for (int m = first; m < std::min(first + lanes, micro_batches); ++m)
          visits.push_back({.backward = backward, .micro_batch = m, .chunk = 0});
      }
    }
    return visits;
  }
  if (stages.chunks > 1 && micro_batches % stages.count == 0)
    return in_turn(interleaved_passes(stages, micro_batches), 2 * behind + (stages.chunks - 1) * stages.count);
  if (stages.chunks > 1) {
    std::vector<Visit> visits;
    for (int m = 0; m < micro_batches; ++m) {
      for (int c = 0; c < stages.chunks; ++c) visits.push_back({.backward = false, .micro_batch = m, .chunk = c});
      for (int c = stages.chunks; c-- > 0;) visits.push_back({.backward = true, .micro_batch = m, .chunk = c});
    }
    return visits;
  }
  return in_turn(interleaved_passes({.count = 1, .chunks = 1}, micro_batches), behind);
}

InFlight in_flight(const std::vector<Visit>& visits) {
  InFlight most;
  int passes = 0;
  std::map<int, int> left;  // of each micro-batch under way: visits until it is done
  const auto of_first = [](Visit visit) { return visit.micro_batch == 0; };
  const int visits_each = static_cast<int>(std::count_if(visits.begin(), visits.end(), of_first));
  for (const Visit& visit : visits) {
    passes += visit.backward ? -1 : 1;
    const auto at = left.emplace(visit.micro_batch, visits_each).first;
    most.passes = std::max(most.passes, passes);
    most.micro_batches = std::max(most.micro_batches, static_cast<int>(left.size()));
    if (--at->second == 0) left.erase(at);
  }
  return most;
}

}  // namespace octet::parallel
