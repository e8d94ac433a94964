// Steps of a run whose ranks are threads, and what they leave behind: whole parameters, put together of what all ranks hold.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "octet/base/threads.h"
#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/numerics/bounds.h"
#include "octet/tensor/host_tensor.h"
#include "support/mesh_ranks.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {

template <class T>
using ByName = std::map<std::string, std::vector<T>>;

// Numbers of whole parameters, by name.
template <class T>
class Wholes {
 public:
  // This rank's part of a parameter, `width` numbers an element. What several ranks hold must be the same.
  void add(const parallel::Parameter& p, const std::vector<T>& part, std::size_t width = 1) {
    const std::size_t count = width * static_cast<std::size_t>(p.cut.global().elements());
    std::vector<T>& numbers = numbers_[p.spec.name];
    std::vector<bool>& held = held_[p.spec.name];
    numbers.resize(count);
    held.resize(count);
    std::size_t added = 0, different = 0;
    for (const parallel::TensorPiece& piece : p.pieces()) {
      parallel::for_runs(piece, p.cut.global(), [&](std::int64_t global, std::int64_t local, std::int64_t elements) {
        const std::size_t to = width * static_cast<std::size_t>(global);
        const std::size_t from = width * static_cast<std::size_t>(local - p.first_element);
        for (std::size_t i = 0; i < width * static_cast<std::size_t>(elements); ++i) {
          different += held[to + i] && numbers[to + i] != part.at(from + i);
          numbers[to + i] = part.at(from + i);
          held[to + i] = true;
          ++added;
        }
      });
    }
    EXPECT_EQ(different, 0u) << "not what another rank holds, of " << p.spec.name;
    EXPECT_EQ(added, part.size()) << p.spec.name;
  }
  // Once all ranks have added theirs.
  void expect_whole() const {
    for (const auto& [name, held] : held_) EXPECT_EQ(std::count(held.begin(), held.end(), false), 0) << "nobody's, of " << name;
  }
  const ByName<T>& by_name() const { return numbers_; }
  const std::vector<T>& at(const std::string& name) const { return numbers_.at(name); }
  bool operator==(const Wholes& other) const { return numbers_ == other.numbers_; }

 private:
  ByName<T> numbers_;
  ByName<bool> held_;
};

inline std::vector<double> values_on(train::Engine& engine, const Tensor& tensor) {
  return values_of(to_host(engine.queue(), tensor).view());
}
inline std::vector<std::uint8_t> bytes_on(train::Engine& engine, const Tensor& tensor) {
  return bytes_of_tensor(to_host(engine.queue(), tensor).view());
}

struct Steps {
  int count = 1;
  int micro_batches = 2;  // of a step, over all ranks
  double learning_rate = 1e-3;
};

// Steps repeat after the third, so that there is something to learn.
inline Tokens micro_batch(const train::EngineOptions& options, const Steps& steps, int step, int micro) {
  const auto subject = static_cast<std::uint32_t>(step % 3 * steps.micro_batches + micro);
  const std::int64_t count = options.seq_len * options.micro_batch_size;
  Tokens tokens = random_tokens(count, options.model.vocab, subject);
  tokens.document_starts = random_document_starts(count, options.seq_len, subject);
  return tokens;
}

// What ranks know of the steps they took.
struct Taken {
  std::vector<double> losses;  // by step
  double norm = 0;             // of the last gradient
  bool operator==(const Taken&) const = default;
};

// All ranks take them together, each with the micro-batches of its data coordinate.
inline Taken take(train::Engine& engine, const Steps& steps) {
  const train::EngineOptions& options = engine.options();
  const parallel::Mesh& mesh = options.layout.mesh;
  const int coordinates = mesh.data_coordinates();
  Taken taken;
  for (int step = 1; step <= steps.count; ++step) {
    engine.zero_gradients(steps.micro_batches / coordinates);
    for (int micro = mesh.data_coordinate(options.rank); micro < steps.micro_batches; micro += coordinates) {
      engine.forward_backward(micro_batch(options, steps, step, micro).batch(), options.observer);
    }
    // The last rank asks to stop after every other step.
    const bool stops = step % 2 == 1;
    engine.apply(steps.learning_rate, static_cast<std::uint32_t>(step), stops && options.rank == mesh.ranks() - 1);
    const kernels::StepScalars scalars = engine.optimizer().read(engine.queue());
    engine.check_ranks();
    EXPECT_EQ(engine.stop_asked(), stops) << "rank " << options.rank << ", step " << step;
    taken.losses.push_back(scalars.loss_sum / scalars.token_count);
    taken.norm = scalars.grad_norm;
  }
  return taken;
}

// Of one row, which is less than a micro-batch, on the first data coordinate; the others' rows count nothing. All ranks call
// together.
inline std::array<double, 2> evaluate_a_row(train::Engine& engine) {
  const train::EngineOptions& options = engine.options();
  Tokens one = random_tokens(options.seq_len, options.model.vocab, 77);
  if (options.layout.mesh.data_coordinate(options.rank) > 0) one.targets.assign(one.targets.size(), kernels::kIgnoredTarget);
  return engine.evaluate(one.tokens, one.targets, random_document_starts(options.seq_len, options.seq_len, 77));
}

// What all ranks hold after their steps.
struct RunState {
  Wholes<double> gradients;      // of the last step
  Wholes<std::uint8_t> weights;  // primaries
  ByName<std::uint8_t> scales;
  Taken taken;
  int ranks = 0;  // that have added theirs

  // What all ranks have alike must be the same. One rank at a time.
  void add(train::Engine& engine, const Taken& of_rank) {
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      gradients.add(p, values_on(engine, p.grad_part));
      weights.add(p, bytes_on(engine, p.primary()), size_of(p.primary().dtype));
    }
    for (const auto& [name, tensor, held] : engine.model().scales().tensors()) {
      if (held == recipes::HeldBy::elsewhere) continue;
      const std::vector<std::uint8_t> bytes = bytes_on(engine, tensor);
      const auto [at, first] = scales.try_emplace(name, bytes);
      EXPECT_TRUE(first || at->second == bytes) << "rank " << engine.options().rank << " has another " << name;
    }
    EXPECT_TRUE(ranks == 0 || taken == of_rank) << "rank " << engine.options().rank << " has other losses or norms";
    ++ranks;
    taken = of_rank;
  }
};

// Of all that it saves, by name; nothing on ranks other than the first. All ranks call together.
inline ByName<std::uint8_t> exported_weights(train::Engine& engine) {
  ByName<std::uint8_t> exported;
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    const Tensor whole = engine.whole(p);
    EXPECT_EQ(static_cast<bool>(whole), engine.options().rank == 0) << p.spec.name;
    if (whole) exported[p.spec.name] = bytes_of_tensor(whole);
  }
  return exported;
}

// body(engine, groups) on a thread of its own for each rank of the layout, from random weights. What it does fits the memory plan
// to the byte.
inline void on_engines(const train::EngineOptions& of_all, const parallel::Layout& layout,
                       const std::function<void(train::Engine&, const parallel::Groups&)>& body,
                       DeviceKind kind = DeviceKind::cpu) {
  ThreadStore store;
  run_ranks(layout.mesh.ranks(), [&](int rank) {
    train::EngineOptions options = of_all;
    options.layout = layout;
    options.rank = rank;
    const std::unique_ptr<Device> device = make_device(kind, kind == DeviceKind::cuda ? rank : 0);
    const parallel::Groups groups = thread_groups(store, layout.mesh, rank, *device);
    train::Engine engine(options, *device, groups);
    engine.model().parameters().initialise(engine.queue(), 7);
    engine.refresh();
    body(engine, groups);
    EXPECT_EQ(device->memory().total_peak, train::measure(options, kind).total()) << "rank " << rank;
  });
}

// Other weights, of a parameter's whole values in F64. For one rank.
inline void set_values(train::Engine& engine, const Wholes<double>& values) {
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    std::copy(values.at(p.spec.name).begin(), values.at(p.spec.name).end(), p.value.as<double>());
  }
  engine.refresh();
}

// The sum over the micro-batches of the first step of the magnitude of each element of their gradients, on one rank.
inline ByName<double> gradient_magnitudes(const train::EngineOptions& options, const Steps& steps,
                                          DeviceKind kind = DeviceKind::cpu) {
  ByName<double> result;
  for (int micro = 0; micro < steps.micro_batches; ++micro) {
    const auto engine = make_engine(options, 7, kind);
    engine->zero_gradients();
    engine->forward_backward(micro_batch(options, steps, 1, micro).batch(), nullptr);
    for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
      const std::vector<double> gradient = values_on(*engine, p.grad);
      std::vector<double>& sum = result[p.spec.name];
      sum.resize(gradient.size());
      for (std::size_t e = 0; e < gradient.size(); ++e) sum[e] += std::abs(gradient[e]);
    }
  }
  return result;
}

// Each element within `relative` of the magnitudes that were added up.
inline void expect_near_gradients(const RunState& actual, const RunState& expected, const ByName<double>& magnitudes,
                                  double relative) {
  for (const auto& [name, gradient] : expected.gradients.by_name()) {
    const std::vector<double>& magnitude = magnitudes.at(name);
    EXPECT_TRUE(near(actual.gradients.at(name), gradient, [&](std::size_t e) { return relative * magnitude[e]; })) << name;
  }
}

inline std::string text(const parallel::Layout& layout) {
  std::string result;
  for (std::size_t i = 0; i < parallel::kAxes; ++i) {
    const auto axis = static_cast<parallel::Axis>(i);
    if (layout.mesh.size(axis) > 1) result += concat(name_of(axis), " ", layout.mesh.size(axis), ", ");
  }
  return result + (layout.weights == parallel::Weights::kept ? "weights kept, " : "weights resharded, ") +
         (layout.gradients == parallel::Gradients::whole ? "gradients whole" : "gradients sharded");
}

// The same losses of so many tokens, added up in F64 in another order.
inline void expect_same_loss(const RunState& actual, const RunState& one, std::int64_t tokens) {
  const double loss = one.taken.losses.at(0);
  EXPECT_NEAR(actual.taken.losses.at(0), loss, 2 * gamma(static_cast<double>(tokens), kUnitRoundoffF64) * loss);
}

// The step of one rank, from the same weights; `bound`: relative, of gradients by their norm.
inline void expect_same_step(const RunState& actual, const RunState& expected, double bound) {
  EXPECT_NEAR(actual.taken.losses.at(0), expected.taken.losses.at(0), bound * expected.taken.losses.at(0));
  EXPECT_NEAR(actual.taken.norm, expected.taken.norm, bound * expected.taken.norm) << "every parameter counts once";
  for (const auto& [name, gradient] : expected.gradients.by_name()) {
    EXPECT_TRUE(near_norm(actual.gradients.at(name), gradient, bound)) << name;
  }
}

// `truth`: the step in FP64 from the weights of `one`, which is one rank's. Wherever that rounds, several ranks do, and some
// numbers once or twice more: on average a gradient is off by less than twice as much.
inline void expect_hardly_more_rounding(const RunState& actual, const RunState& one, const RunState& truth) {
  for (const auto& [name, gradient] : truth.gradients.by_name()) {
    EXPECT_TRUE(near_norm(actual.gradients.at(name), gradient, 2 * relative_frobenius(one.gradients.at(name), gradient))) << name;
  }
}

// A step of one micro-batch has nothing to add a part of a gradient to: it loses nothing where it stays as it crossed. `run`: of a
// layout, from the same weights.
template <class Run>
void expect_parts_may_stay_as_they_came(parallel::Layout layout, const Run& run) {
  layout.accumulates = true;
  const RunState added = run(layout);
  layout.accumulates = false;
  const RunState stayed = run(layout);
  EXPECT_TRUE(stayed.weights == added.weights);
  EXPECT_TRUE(stayed.gradients == added.gradients);
  EXPECT_TRUE(stayed.scales == added.scales);
  EXPECT_TRUE(stayed.taken == added.taken);
}

// Scales that follow from operands which no sum in another order has touched: weights, and the input of the first linear.
inline void expect_scales_of_one(const RunState& actual, const RunState& one, std::int64_t layers) {
  std::int64_t compared = 0;
  for (const auto& [name, bytes] : one.scales) {
    if (name.find(".w.") == std::string::npos && name.find("layers.0.self_attn.q_proj.fused.x.") == std::string::npos) continue;
    EXPECT_TRUE(actual.scales.at(name) == bytes) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 2 * (layers * 4 + 1)) << "scale and history of four weights a layer, and of one input";
}

// Of 16-bit weights, rounded stochastically: the same gradient gives the same bits, whoever holds the element. Gives back how
// many elements of each parameter had the same.
inline std::map<std::string, std::size_t> expect_weights_of_same_gradients(const RunState& actual, const RunState& one) {
  std::map<std::string, std::size_t> same;
  for (const auto& [name, gradient] : one.gradients.by_name()) {
    const std::vector<std::uint8_t>&weights = actual.weights.at(name), &expected = one.weights.at(name);
    std::size_t different = 0;
    same[name] = 0;
    for (std::size_t e = 0; e < gradient.size(); ++e) {
      if (actual.gradients.at(name)[e] != gradient[e]) continue;
      ++same[name];
      different += weights[2 * e] != expected[2 * e] || weights[2 * e + 1] != expected[2 * e + 1];
    }
    EXPECT_EQ(different, 0u) << name;
  }
  return same;
}

// The curve of one rank. Codes differ where scales are those of a rank's own operands: with weights small enough (an init_std of
// 0.1) FP8's rounding parts two runs by less than 1 %.
inline void expect_same_curve(const RunState& actual, const RunState& one) {
  ASSERT_EQ(actual.taken.losses.size(), one.taken.losses.size());
  for (std::size_t step = 0; step < one.taken.losses.size(); ++step) {
    EXPECT_NEAR(actual.taken.losses[step], one.taken.losses[step], 0.01 * one.taken.losses[step]) << "step " << step + 1;
  }
}

// A fixture whose ranks are threads and need no more of them.
class MeshTest : public ::testing::Test {
 protected:
  MeshTest() { set_num_threads(1); }
  ~MeshTest() override { set_num_threads(available_cores()); }
};

}  // namespace octet::testing
