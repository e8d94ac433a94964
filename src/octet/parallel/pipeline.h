// Pipeline parallelism: which blocks a stage holds, and in which order it works on micro-batches (Huang et al., GPipe, 2019;
// Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021).
//
// The blocks of a model are divided into runs of consecutive blocks, called model chunks. Stage s of P holds the chunks s, s +
// P, s + 2P and so on: one chunk with the 1F1B schedule, several with the interleaved schedule. Here a chunk is numbered on its
// stage, so its number in the model is chunk x P + stage. The model's first chunk begins with the embedding, its last chunk
// ends with the head.
#pragma once

#include <vector>

#include "octet/base/math.h"
#include "octet/parallel/mesh.h"

namespace octet::parallel {

using BlockRange = IndexRange<int>;

// Returns the blocks of chunk number `chunk` of the model. The last chunk has fewer blocks than the others, so that the busiest
// stage finishes earliest; the head counts as stages.head_blocks blocks. The others have equally many. A remainder goes first
// to chunks in the middle, because the first chunk has the embedding, and its stage holds the most passes at a time.
BlockRange blocks_of(int blocks, Stages stages, int chunk);
// Returns the stage that holds a block.
int stage_of_block(int blocks, Stages stages, int block);

// A stage's forward or backward pass of one micro-batch through one of its chunks.
struct Visit {
  bool backward = false;
  int micro_batch = 0, chunk = 0;
  bool operator==(const Visit&) const = default;
};

// Returns the visits of a step in their order. With one chunk on a stage, this is 1F1B: the stage first runs as many forward
// passes as there are stages after it, then alternates forward and backward. With several chunks it is the interleaved schedule
// if the number of stages divides the number of micro-batches; otherwise the micro-batches come one after another. On one
// stage, `lanes` micro-batches may pass through the model together: F0 F1 B0 B1.
std::vector<Visit> visits_of(Stages stages, int stage, int micro_batches, int lanes = 1);

// The largest number of passes of a chunk that are between forward and backward at the same time, and of micro-batches under
// way.
struct InFlight {
  int passes = 0, micro_batches = 0;
};
InFlight in_flight(const std::vector<Visit>& visits);

}  // namespace octet::parallel
