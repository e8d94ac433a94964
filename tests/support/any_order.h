// Steps whose streams are interleaved at random, as far as their waits permit: what the streams of a GPU may do.
#pragma once

#include <array>
#include <atomic>
#include <initializer_list>

#include "support/deferred_device.h"
#include "support/mesh_run.h"

namespace octet::testing {

// Expects the bits of the order of the program from steps on a DeferredDevice, from an evaluation after them, and from a
// calibration before them if options.calibrates. Does it once for each probability. `reach`: ranks can fetch shared memory of
// other ranks directly.
inline void expect_same_bits_in_any_order(const train::EngineOptions& options, const parallel::Layout& layout, const Steps& steps,
                                          std::initializer_list<double> others_first, bool reach = false) {
  SCOPED_TRACE(text(layout));
  std::array<double, 2> loss{};
  const auto calibrate = [&](train::Engine& engine) {
    const Tokens tokens = micro_batch(options, steps, 0, layout.mesh.data_coordinate(engine.options().rank));
    if (options.calibrates) engine.calibrate(1, [&] { return tokens.batch(); });
  };
  const auto evaluate = [&](train::Engine& engine) {
    EXPECT_FALSE(engine.compare_replicas());
    const std::array<double, 2> result = evaluate_a_row(engine);
    if (engine.options().rank == 0) loss = result;
  };
  const RunState expected =
      run_mesh(options, layout, steps, {.before = calibrate, .after = evaluate, .machine = {.reach = reach}});
  const std::array<double, 2> expected_loss = loss;
  std::atomic<std::int64_t> overtakings = 0;
  for (const double probability : others_first) {
    SCOPED_TRACE(probability);
    const auto finish = [&](train::Engine& engine) {
      evaluate(engine);
      auto& device = dynamic_cast<DeferredDevice&>(engine.device());
      // What nobody waits for may stay undone on a single rank. Several add their states in turn, and cannot exchange meanwhile.
      if (layout.mesh.ranks() > 1) device.finish();
      overtakings += device.overtakings();
    };
    const Machine machine{.device = [&](int) { return std::make_unique<DeferredDevice>(probability); }, .reach = reach};
    expect_same_bits(run_mesh(options, layout, steps, {.before = calibrate, .after = finish, .machine = machine}), expected);
    EXPECT_EQ(loss, expected_loss);
  }
  EXPECT_GT(overtakings, 0) << "all was executed in the order of the program";
}

}  // namespace octet::testing
