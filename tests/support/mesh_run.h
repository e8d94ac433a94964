// Steps of a run whose ranks are threads, and what they leave behind: whole parameters, put together of what all ranks hold.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <mutex>

#include "octet/base/threads.h"
#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/numerics/bounds.h"
#include "octet/tensor/host_tensor.h"
#include "support/mesh_ranks.h"
#include "support/near.h"
#include "support/tiny_model.h"
#include "support/wholes.h"

namespace octet::testing {

std::vector<double> values_on(train::Engine& engine, const Tensor& tensor);
std::vector<std::uint8_t> bytes_on(train::Engine& engine, const Tensor& tensor);

struct Steps {
  int count = 1;
  int micro_batches = 2;  // of a step, over all ranks
  double learning_rate = 1e-3;
};

// Steps repeat after the third, so that there is something to learn.
Tokens micro_batch(const train::EngineOptions& options, const Steps& steps, int step, int micro);

// What ranks know of the steps they took.
struct Taken {
  std::vector<double> losses;  // by step
  double norm = 0;             // of the last gradient
  bool operator==(const Taken&) const = default;
};

// All ranks take them together, each with the micro-batches of its data coordinate.
Taken take(train::Engine& engine, const Steps& steps);

// Of one row, which is less than a micro-batch, on the first data coordinate; the others' rows count nothing. All ranks call
// together.
std::array<double, 2> evaluate_a_row(train::Engine& engine);

// What all ranks hold after their steps.
struct RunState {
  Wholes<double> gradients;      // of the last step
  Wholes<std::uint8_t> weights;  // primaries
  ByName<std::uint8_t> scales;
  Taken taken;
  std::vector<comm::Traffic> over_context, over_tensor;  // of each rank in all steps
  int ranks = 0;                                         // that have added theirs

  // What all ranks have alike must be the same. One rank at a time.
  void add(train::Engine& engine, const Taken& of_rank);
};

// Of all that it saves, by name; nothing on ranks other than the first. All ranks call together.
ByName<std::uint8_t> exported_weights(train::Engine& engine);

// body(engine, groups) on a thread of its own for each rank of the layout, from random weights. What it does fits the memory plan
// to the byte.
void on_engines(const train::EngineOptions& of_all, const parallel::Layout& layout,
                const std::function<void(train::Engine&, const parallel::Groups&)>& body,
                DeviceKind kind = DeviceKind::cpu);

// What ranks do beside their steps, each on its own thread.
struct Beside {
  std::function<void(train::Engine&)> before = {}, after = {};
};
// The steps of all ranks of a layout, from the same random weights.
RunState run_mesh(const train::EngineOptions& options, const parallel::Layout& layout, const Steps& steps, const Beside& beside = {});

// The same bits from both.
void expect_same_bits(const RunState& actual, const RunState& expected);

// Other weights, of a parameter's whole values in F64. For one rank.
void set_values(train::Engine& engine, const Wholes<double>& values);

// The sum over the micro-batches of the first step of the magnitude of each element of their gradients, on one rank.
ByName<double> gradient_magnitudes(const train::EngineOptions& options, const Steps& steps,
                                   DeviceKind kind = DeviceKind::cpu);

// Each element within `relative` of the magnitudes that were added up.
void expect_near_gradients(const RunState& actual, const RunState& expected, const ByName<double>& magnitudes,
                           double relative);

std::string text(const parallel::Layout& layout);

// The same losses of so many tokens, added up in F64 in another order.
void expect_same_loss(const RunState& actual, const RunState& one, std::int64_t tokens);

// The step of one rank, from the same weights; `bound`: relative, of gradients by their norm.
void expect_same_step(const RunState& actual, const RunState& expected, double bound);

// `truth`: the step in FP64 from the weights of `one`, which is one rank's. Wherever that rounds, several ranks do, and some
// numbers once or twice more: on average a gradient is off by less than twice as much.
void expect_hardly_more_rounding(const RunState& actual, const RunState& one, const RunState& truth);

// A step of one micro-batch has nothing to add a part of a gradient to: it loses nothing where it stays as it crossed. `run`: of a
// layout, from the same weights.
template <class Run>
void expect_parts_may_stay_as_they_came(parallel::Layout layout, const Run& run) {
  layout.accumulates = true;
  const RunState added = run(layout);
  layout.accumulates = false;
  expect_same_bits(run(layout), added);
}

// Scales that follow from operands which no sum in another order has touched: weights, and the input of the first linear.
void expect_scales_of_one(const RunState& actual, const RunState& one, std::int64_t layers);

// Of 16-bit weights, rounded stochastically: the same gradient gives the same bits, whoever holds the element. Gives back how
// many elements of each parameter had the same.
std::map<std::string, std::size_t> expect_weights_of_same_gradients(const RunState& actual, const RunState& one);

// The curve of one rank. Codes differ where scales are those of a rank's own operands: with weights small enough (an init_std of
// 0.1) FP8's rounding parts two runs by less than 1 %.
void expect_same_curve(const RunState& actual, const RunState& one);

// A fixture whose ranks are threads and need no more of them.
class MeshTest : public ::testing::Test {
 protected:
  MeshTest() { set_num_threads(1); }
  ~MeshTest() override { set_num_threads(available_cores()); }
};

}  // namespace octet::testing
