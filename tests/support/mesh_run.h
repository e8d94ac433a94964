// Runs training steps on ranks that are threads, and assembles whole parameters from the shards of all ranks to compare them.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <mutex>

#include "octet/base/threads.h"
#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/tensor/host_tensor.h"
#include "support/bounds.h"
#include "support/mesh_ranks.h"
#include "support/near.h"
#include "support/tiny_model.h"
#include "support/wholes.h"

namespace octet::testing {

std::vector<double> values_on(train::Engine& engine, const Tensor& tensor);
std::vector<std::uint8_t> bytes_on(train::Engine& engine, const Tensor& tensor);

struct Steps {
  int count = 1;
  int micro_batches = 2;  // number in a step, over all ranks
  double learning_rate = 1e-3;
};

// Makes the tokens of a micro-batch. The data repeat after three steps, so that the model can learn them.
Tokens micro_batch(const train::EngineOptions& options, const Steps& steps, int step, int micro);

// The results of steps that every rank knows.
struct Taken {
  std::vector<double> losses;  // one for each step
  double norm = 0;             // of the last step's gradient
  bool operator==(const Taken&) const = default;
};

// Takes the steps. All ranks call it together; each reads the micro-batches of its data coordinate.
Taken take(train::Engine& engine, const Steps& steps);

// Evaluates a single row, which is less than a micro-batch. Only ranks with data coordinate 0 have targets; the targets of the
// others are ignored. Returns {sum of losses, tokens}. All ranks call it together.
std::array<double, 2> evaluate_a_row(train::Engine& engine);

// What all ranks hold after their steps, assembled.
struct RunState {
  Wholes<double> gradients;      // of the last step
  Wholes<std::uint8_t> weights;  // primary weights
  ByName<std::uint8_t> scales;
  Taken taken;
  std::vector<comm::Traffic> over_context, over_tensor;  // sent by each rank in all steps
  int ranks = 0;                                         // number of ranks that have added their state

  // Adds the state of one rank. Fails the test if a value that ranks share differs from the other ranks'. One rank calls at a
  // time.
  void add(train::Engine& engine, const Taken& of_rank);
};

// Returns all saved parameters by name on rank 0, and nothing on other ranks. All ranks call it together.
ByName<std::uint8_t> exported_weights(train::Engine& engine);

// The devices of ranks that are threads.
struct Machine {
  std::function<std::unique_ptr<Device>(int rank)> device = [](int) { return make_device(DeviceKind::cpu); };
  bool reach = false;  // ranks on CPUs can fetch shared memory of other ranks directly
};

// Calls body(engine, groups) for each rank of the layout, on a thread of its own, with random initial weights. Then expects that
// the rank's peak memory equals the memory plan to the byte.
void on_engines(const train::EngineOptions& of_all, const parallel::Layout& layout,
                const std::function<void(train::Engine&, const parallel::Groups&)>& body, const Machine& machine = {});
void on_engines(const train::EngineOptions& of_all, const parallel::Layout& layout,
                const std::function<void(train::Engine&, const parallel::Groups&)>& body, DeviceKind kind);

// Calls that each rank makes on its own thread before and after its steps, and where it takes them.
struct Beside {
  std::function<void(train::Engine&)> before = {}, after = {};
  Machine machine = {};
};
// Takes the steps on all ranks of a layout, from the same random weights.
RunState run_mesh(const train::EngineOptions& options, const parallel::Layout& layout, const Steps& steps, const Beside& beside = {});

// Expects equal bits.
void expect_same_bits(const RunState& actual, const RunState& expected);

// Replaces the weights by values in F64. For a single rank.
void set_values(train::Engine& engine, const Wholes<double>& values);

// Returns, for each element, the sum of the magnitudes of its gradients over the micro-batches of the first step, on one rank.
ByName<double> gradient_magnitudes(const train::EngineOptions& options, const Steps& steps,
                                   DeviceKind kind = DeviceKind::cpu);

// Expects every gradient within `relative` times its element's magnitude.
void expect_near_gradients(const RunState& actual, const RunState& expected, const ByName<double>& magnitudes,
                           double relative);

std::string text(const parallel::Layout& layout);

// Expects the same loss. `tokens` losses were added in F64, in another order.
void expect_same_loss(const RunState& actual, const RunState& one, std::int64_t tokens);

// Expects losses, norms and gradients within the relative error `bound` of those of one rank, from the same weights. Gradients
// are compared by the norm of each parameter.
void expect_same_step(const RunState& actual, const RunState& expected, double bound);

// `truth` is the step in FP64 from the weights of `one`, which is the state of one rank. Several ranks round everything that one
// rank rounds, and some numbers once or twice more. Expects that each gradient's error is less than twice the error on one rank.
void expect_hardly_more_rounding(const RunState& actual, const RunState& one, const RunState& truth);

// Expects the same bits whether ranks add received gradient parts to a sum or leave them in the form in which they were received.
// A step of one micro-batch has no earlier part to add to, so nothing may be lost. `run` takes a layout and runs the step from
// the same weights.
template <class Run>
void expect_parts_may_stay_as_they_came(parallel::Layout layout, const Run& run) {
  layout.accumulates = true;
  const RunState added = run(layout);
  layout.accumulates = false;
  expect_same_bits(run(layout), added);
}

// Compares only the scales of the weights and of the first linear's input. They depend on no sum that the mesh computes in
// another order.
void expect_scales_of_one(const RunState& actual, const RunState& one, std::int64_t layers);

// For 16-bit weights, which are rounded stochastically: expects that elements with equal gradients get equal bits, whichever rank
// holds them. Returns the number of elements with equal gradients for each parameter.
std::map<std::string, std::size_t> expect_weights_of_same_gradients(const RunState& actual, const RunState& one);

// Expects the loss curve of one rank within 1%. Codes differ if the scales come from a rank's own operands. With an init_std of
// 0.1 the weights are small enough that FP8's rounding parts two runs by less than 1%.
void expect_same_curve(const RunState& actual, const RunState& one);

// A fixture that gives kernels one thread, because its ranks are threads themselves.
class MeshTest : public ::testing::Test {
 protected:
  MeshTest() { set_num_threads(1); }
  ~MeshTest() override { set_num_threads(available_cores()); }
};

}  // namespace octet::testing
