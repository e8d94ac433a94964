#include "octet/parallel/pipeline.h"

#include <algorithm>
#include <map>

#include "octet/base/require.h"

namespace octet::parallel {

namespace {

// The chunks of a model whose last one has `last` blocks.
struct Chunks {
  int blocks, count, last;

  int begin(int chunk) const {
    if (chunk >= count - 1) return chunk == count ? blocks : blocks - last;
    // Chunks 1, 2, ... get a block more. Chunk 0 never does, because `rest` is smaller than the number of these chunks.
    const int each = (blocks - last) / (count - 1), rest = (blocks - last) % (count - 1);
    return chunk * each + std::clamp(chunk - 1, 0, rest);
  }
  // The work of the busiest stage, in blocks.
  int most(Stages stages) const {
    std::vector<int> work(static_cast<std::size_t>(stages.count));
    for (int chunk = 0; chunk < count; ++chunk)
      work[static_cast<std::size_t>(chunk % stages.count)] += begin(chunk + 1) - begin(chunk);
    work.back() += stages.head_blocks;
    return *std::max_element(work.begin(), work.end());
  }
};

}  // namespace

BlockRange blocks_of(int blocks, Stages stages, int chunk) {
  const int chunks = stages.count * stages.chunks;
  require(chunk >= 0 && chunk < chunks, "chunk ", chunk, " of ", chunks);
  if (chunks == 1) return {0, blocks};
  // Every stage needs a block, and so does every chunk if there are enough.
  Chunks best{.blocks = blocks, .count = chunks, .last = blocks / chunks + (blocks % chunks == chunks - 1)};
  for (Chunks fewer = best; fewer.last > 1;) {
    --fewer.last;
    if (fewer.most(stages) < best.most(stages)) best = fewer;
  }
  return {best.begin(chunk), best.begin(chunk + 1)};
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

// Adds a group of micro-batches that go through all chunks, one chunk after another; backward passes through them in reverse.
void add_group(Passes& passes, int begin, int end, int chunks) {
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int m = begin; m < end; ++m) {
      passes.forward.push_back({.backward = false, .micro_batch = m, .chunk = chunk});
      passes.backward.push_back({.backward = true, .micro_batch = m, .chunk = chunks - 1 - chunk});
    }
  }
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
  const bool interleaves = stages.chunks > 1 && micro_batches % stages.count == 0;
  const bool one_by_one = lanes > 1 || (stages.chunks > 1 && !interleaves);  // a group goes backward before the next begins
  const int size = interleaves ? stages.count : lanes;
  Passes passes;
  std::vector<Visit> visits;
  for (int begin = 0; begin < micro_batches; begin += size) {
    add_group(passes, begin, std::min(begin + size, micro_batches), stages.chunks);
    if (!one_by_one) continue;
    for (const auto* each : {&passes.forward, &passes.backward}) visits.insert(visits.end(), each->begin(), each->end());
    passes = {};
  }
  if (one_by_one) return visits;
  return in_turn(passes, interleaves ? 2 * behind + (stages.chunks - 1) * stages.count : behind);
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
