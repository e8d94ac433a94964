// Shapes of steps whose lists of tasks are tested.
#pragma once

#include "octet/parallel/schedule.h"

namespace octet::testing {

// Units: the embedding (0), `blocks` blocks, the head.
inline parallel::StepShape shape_of(int blocks, bool tied) {
  using parallel::Beside;
  parallel::StepShape s;
  s.embedding = 0;
  s.first_block = 1;
  s.blocks = blocks;
  s.head = tied ? 0 : blocks + 1;
  s.block_parts.assign(static_cast<std::size_t>(blocks), {.forward = {{"qkv"}, {"attention"}, {"feed"}},
                                                          .backward = {{"feed"}, {"attention", Beside::reduce}, {"qkv"}}});
  s.two_copies.assign(static_cast<std::size_t>(tied ? blocks + 1 : blocks + 2), 0);
  return s;
}

// A mixture of experts whose rows are exchanged beside the computation.
inline parallel::StepShape shape_of_lanes(int blocks, bool tied) {
  using parallel::Beside;
  using parallel::StreamId;
  parallel::StepShape s = shape_of(blocks, tied);
  s.lanes = 2;
  s.sharded = s.reduced = true;
  constexpr Beside kNothing = Beside::nothing;
  s.block_parts.assign(static_cast<std::size_t>(blocks), {.forward = {{"qkv"},
                                                                      {"attention"},
                                                                      {"route"},
                                                                      {"dispatch", kNothing, StreamId::experts},
                                                                      {"experts"},
                                                                      {"collect", kNothing, StreamId::experts},
                                                                      {"combine"}},
                                                          .backward = {{"combine"},
                                                                       {"dispatch", kNothing, StreamId::experts},
                                                                       {"experts"},
                                                                       {"collect", kNothing, StreamId::experts},
                                                                       {"route"},
                                                                       {"attention", Beside::reduce},
                                                                       {"qkv"}}});
  return s;
}

// Adds the exchanges of a context axis to the blocks of a shape.
inline void add_context(parallel::StepShape& s) {
  using parallel::Beside;
  using parallel::StreamId;
  s.sharded = s.reduced = true;
  for (auto& [forward, backward] : s.block_parts) {
    forward.insert(forward.begin() + 1, {"keys"});
    forward[2].beside = Beside::gather;
    backward.insert(backward.begin(),
                    {.name = "keys", .stream = StreamId::params, .keys = true, .rest = false, .after_compute = true});
    backward.back().keys = true;
    backward.insert(backward.end() - 1, {{.name = "attention_rest", .keys = true},
                                         {.name = "key_sums", .stream = StreamId::context, .keys = true, .rest = false},
                                         {.name = "output_wgrad"}});
  }
}

// Forward and backward of a micro-batch, the last one of its step or not.
inline std::vector<parallel::Task> build_micro_batch(const parallel::StepShape& s, parallel::Slots& slots, bool last) {
  const int count = last ? 1 : 2;
  const std::vector<parallel::Visit> visits = visits_of(s.stages, s.stage, count);
  return build_visits(s, slots, visits, 0, 2, count);
}

}  // namespace octet::testing
