// A model that consists of parameters only, some of which belong to experts, on ranks that are threads. The gradients of a step
// are sums of small integers. Such sums are exact in any order, so every mesh must give the same bits as one rank.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "octet/base/rng.h"
#include "octet/nn/linear.h"
#include "octet/optim/optimizer.h"
#include "octet/parallel/units.h"
#include "octet/recipes/registry.h"
#include "support/mesh_ranks.h"
#include "support/wholes.h"

namespace octet::testing {

constexpr std::int64_t kExperts = 4;
// A source is a micro-batch of one rank of the data and context axes. A step has eight, however many ranks share them.
constexpr int kSources = 8;

struct PartsOptions {
  std::string recipe = "fp8_delayed";
  parallel::Layout layout = {};
  parallel::Storage storage = {};
  optim::OptimizerOptions optimizer = {.max_grad_norm = 0.5, .seed = 3};
};

using Globals = Wholes<std::uint8_t>;
inline void add_whole(Globals& globals, const std::string& name, const Tensor& tensor) {
  globals.add(name, std::vector<std::uint8_t>(tensor.as_bytes(), tensor.as_bytes() + tensor.bytes()));
}

struct SharedGlobals {
  std::mutex mutex;
  Globals globals;
};

// One rank's model.
class ExpertParts {
 public:
  ExpertParts(Device& device, const parallel::Groups& groups, int rank, const PartsOptions& options)
      : groups_(groups),
        mesh_(options.layout.mesh),
        rank_(rank),
        stream_(device.make_stream()),
        scratch_(device, MemoryCategory::workspace, std::size_t{1} << 22),
        store_({groups.tensor->rank(), groups.tensor->size()}, {groups.expert->rank(), groups.expert->size()}),
        scales_(recipes::make_recipe(options.recipe, {.amax_history_len = 3})) {
    using parallel::Cut;
    const Recipe recipe = recipes::make_recipe(options.recipe, {.amax_history_len = 3});
    const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, Cut along, parallel::Expert expert = {}) {
      linears_.push_back(std::make_unique<nn::LinearWeight>(
          nn::LinearWeight::Options{
              .parts = {name}, .out = out, .in = in, .cut = {.along = along}, .expert = expert, .init_std = 0.3},
          recipe, store_, scales_));
    };
    store_.begin_unit();
    store_.add({.name = "embed", .shape = {36, 24}});
    for (int layer = 0; layer < 3; ++layer) {
      store_.begin_unit();
      linear(concat("layer.", layer, ".attention"), 48, 16, Cut::none);  // of four shards, the last is empty
      for (std::int64_t e = 0; e < kExperts; ++e) {
        linear(concat("layer.", layer, ".", e, ".up"), 96, 48, Cut::rows, {e, kExperts});
        if (layer == 0) linear(concat("layer.", layer, ".", e, ".down"), 48, 96, Cut::columns, {e, kExperts});
      }
      store_.add({.name = concat("layer.", layer, ".norm.weight"), .shape = {48}, .init = parallel::Init::ones, .decay = false});
    }
    store_.begin_unit();
    linear("head", 32, 48, Cut::none);
    store_.materialise(device, options.storage, &groups, options.layout);
    shape_.head = store_.unit_count() - 1;
    units_ = std::make_unique<parallel::Units>(*stream_, store_, groups, options.layout, shape_);
    scales_.materialise(*stream_);
    for (const auto& l : linears_) l->bind();
    units_->prepare_casts();
    optimizer_ = std::make_unique<optim::Optimizer>(device, store_, options.optimizer, units_->update_work());
  }

  parallel::ParameterStore& store() { return store_; }
  recipes::ScaleState& scales() { return scales_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  parallel::Units& units() { return *units_; }
  Stream& stream() { return *stream_; }
  Arena& scratch() { return scratch_; }
  const parallel::Groups& groups() const { return groups_; }
  int rank() const { return rank_; }

  void initialise() {
    store_.initialise(*stream_, 5);
    units_->refresh(scratch_);
  }

  // Does what train::Engine does in a step, with made-up gradients. If `seen` is given, adds to it the weights as the linears
  // would read them, and after the step everything that the rank holds.
  void step(std::uint32_t number, SharedGlobals* seen = nullptr) {
    const int ranks = mesh_.ranks() / mesh_.size(parallel::Axis::tensor);
    optimizer_->reset_sums(*stream_);
    units_->begin_step();
    for (int source = 0; source < kSources; source += ranks) micro_batch(number, source, source + ranks == kSources, seen);
    units_->executor().run(build_update(shape_, units_->slots()), [&](const parallel::Task& task) {
      switch (task.kind) {
        case parallel::Kind::squares:
          units_->sum_over_holders(scratch_, task.units);
          return optimizer_->add_squares(*stream_, scratch_, task.units);
        case parallel::Kind::sums: {
          Stream& params = units_->streams()[task.stream];
          optimizer_->add_up_ranks(scratch_, groups_, *units_);
          return scales_.reduce(params, scratch_, groups_.all_and_of_experts());
        }
        case parallel::Kind::scales:
          optimizer_->prepare(*stream_, {.learning_rate = 0.01, .step = number});
          return scales_.update(*stream_, optimizer_->found_inf());
        case parallel::Kind::update:
          return optimizer_->update(*stream_, static_cast<std::size_t>(task.part >= 0 ? task.part : task.index));
        default:
          return units_->run(scratch_, task);
      }
    });
    if (seen) add_to(*seen);
  }
  void settle_scales() {
    units_->exchange([&](Stream& params) { scales_.reduce(params, scratch_, groups_.all_and_of_experts()); });
  }

  // Adds everything that the rank holds, including the last step's gradient and its norm. All ranks call together.
  void add_to(SharedGlobals& shared) {
    settle_scales();
    const std::lock_guard lock(shared.mutex);
    for (const parallel::Parameter& p : store_.parameters()) {
      const auto add = [&](const char* suffix, const Tensor& part) {
        shared.globals.add(p.spec.name + suffix, p, p.pieces(), p.first_element, part.as_bytes(), size_of(part.dtype));
      };
      add("", p.primary());
      add(".gradient", p.grad_shard);
      add(".moment1", p.moment1);
      add(".moment2", p.moment2);
    }
    for (const auto& [name, tensor, held] : scales_.tensors()) {
      if (held != recipes::HeldBy::elsewhere) add_whole(shared.globals, name, tensor);
    }
    kernels::StepScalars scalars = optimizer_->read(*stream_);
    add_whole(shared.globals, "norm", Tensor(&scalars.grad_norm, DType::f64, {1}));
  }

  // Returns whether source `source` contributes to the gradient of an expert. Expert 3 gets no contribution and expert 2 only
  // that of source 5. All sources contribute to everything else.
  static bool says(const parallel::Expert& expert, int source) {
    return !expert || expert.index < 2 || (expert.index == 2 && source == 5);
  }
  static Rng words_of(const std::string& name, std::uint32_t step) { return {step, RngStream::test, name_id(name)}; }
  // Returns an integer from -3 to 3. Two sources share each of the four random words.
  static double word(const std::array<std::uint32_t, 4>& words, int source) {
    return static_cast<double>((words[static_cast<std::size_t>(source % 4)] >> (16 * (source / 4))) % 0x10000 % 7) - 3;
  }

 private:
  // Returns the sources that contribute to a parameter's gradient on this rank, in a micro-batch whose first source is `first`.
  // For an expert, these are the sources of all ranks that send it tokens.
  std::vector<int> sources_of(const parallel::Parameter& p, int first) const {
    std::vector<int> sources;
    const std::vector<int> ranks = p.spec.expert ? mesh_.expert_group(rank_) : std::vector<int>{rank_};
    for (const int rank : ranks) {
      const int source = first + rank / mesh_.size(parallel::Axis::tensor);
      if (says(p.spec.expert, source)) sources.push_back(source);
    }
    return sources;
  }

  // Calls body() while a unit is open and the next one is gathered.
  void use(parallel::ScheduleBuilder& list, parallel::Need now, parallel::Need next, const std::function<void()>& body) {
    list.open(now);
    list.gather(next);
    units_->run(scratch_, list.finish());
    body();
    list.close(now);
    units_->run(scratch_, list.finish());
  }

  void micro_batch(std::uint32_t step, int first, bool is_last, SharedGlobals* seen) {
    parallel::ScheduleBuilder list(shape_, units_->slots(), is_last);
    const int last = store_.unit_count() - 1;
    const auto see = [&](int unit, auto add) {
      if (!seen) return;
      const std::lock_guard lock(seen->mutex);
      for (const parallel::Parameter& p : store_.parameters()) {
        if (p.unit == unit && p.held) (this->*add)(seen->globals, p);
      }
    };
    for (int unit = 0; unit <= last; ++unit) {
      use(list, {unit}, {unit == last ? -1 : unit + 1}, [&] { see(unit, &ExpertParts::add_forward); });
    }
    for (int unit = last; unit >= 0; --unit) {
      use(list, {unit, parallel::Use::backward}, {unit - 1, parallel::Use::backward}, [&] {
        see(unit, &ExpertParts::add_backward);
        for (parallel::Parameter& p : store_.parameters()) {
          const parallel::Overwrites overwrites = first == 0 ? parallel::Overwrites::all : parallel::Overwrites::slots;
          if (p.unit == unit && p.held) add_gradient(p, step, sources_of(p, first), p.overwrites_grad(overwrites));
        }
      });
    }
    list.reduce_pending(true);
    units_->run(scratch_, list.finish());
    for (const auto& l : linears_) {
      if (l->weight().held) record_amaxes(*l, step, sources_of(l->weight(), first));
    }
    const int own = first + rank_ / mesh_.size(parallel::Axis::tensor);
    optimizer_->loss_total()[0] += own + 1;
    optimizer_->loss_total()[1] += 4;
  }

  // Does what a linear's weight gradient does: overwrites a gradient that begins, and adds to any other. If several ranks of the
  // tensor axis hold the same piece, only the lowest of them gets the sum; the others get zeros.
  void add_gradient(parallel::Parameter& p, std::uint32_t step, const std::vector<int>& sources, bool begins) {
    begins = begins && p.spec.grad_from_product;
    const Rng rng = words_of(p.spec.name, step);
    for (const parallel::TensorPiece& piece : p.cut.pieces(0, p.elements())) {
      parallel::for_runs(piece, p.cut.global(), [&](std::int64_t global, std::int64_t local, std::int64_t run) {
        for (std::int64_t i = 0; i < run; ++i) {
          double sum = 0;
          const auto words = rng.words(static_cast<std::uint64_t>(global + i));
          for (const int source : sources) sum += piece.holder > 0 ? 0 : word(words, source);
          visit_float(p.grad.dtype, [&]<class T>() {
            T& gradient = p.grad.as<T>()[local + i];
            gradient = static_cast<T>(static_cast<float>(sum) + (begins ? 0.0f : static_cast<float>(gradient)));
          });
        }
      });
    }
  }

  // Records the amaxes of the inputs X and of the output gradients G.
  void record_amaxes(const nn::LinearWeight& linear, std::uint32_t step, const std::vector<int>& sources) {
    for (const auto& [name, tensor, held] : scales_.tensors()) {
      if (name != "fp8." + linear.name() + ".x.amax_history" && name != "fp8." + linear.name() + ".g.amax_history") continue;
      for (const int source : sources) {
        float& amax = tensor.as<float>()[0];
        amax = std::max(amax, static_cast<float>(word(words_of(name, step).words(0), source) + 4));
      }
    }
  }

  void add_forward(Globals& globals, const parallel::Parameter& p) {
    const auto pieces = p.cut.pieces(0, p.elements());
    if (!p.spec.quant || p.spec.read_as_values)
      globals.add(p.spec.name + ".value", p, pieces, 0, p.value.as_bytes(), size_of(p.value.dtype));
    if (!p.spec.quant) return;
    globals.add(p.spec.name + ".codes", p, pieces, 0, p.codes.rowwise.as_bytes());
    if (p.codes.tile == ScaleTile::tensor) add_whole(globals, p.spec.name + ".scale_inv", p.codes.rowwise_scale_inv);
  }
  // Adds the codes that backward reads, in the orientation of the weight. If there are no transposed codes, uses the column
  // codes, and if there are none either, the ordinary codes.
  void add_backward(Globals& globals, const parallel::Parameter& p) {
    if (!p.spec.quant) return;
    std::vector<std::uint8_t> turned(static_cast<std::size_t>(p.elements()));
    const std::int64_t rows = p.spec.shape[0], cols = p.spec.shape[1];
    const Tensor& other = p.column_codes ? p.column_codes : p.codes.rowwise;
    for (std::int64_t i = 0; i < p.elements(); ++i) {
      turned[static_cast<std::size_t>(i)] =
          p.codes.columnwise ? p.codes.columnwise.as_bytes()[i % cols * rows + i / cols] : other.as_bytes()[i];
    }
    globals.add(p.spec.name + ".column_codes", p, p.cut.pieces(0, p.elements()), 0, turned.data());
  }

  const parallel::Groups& groups_;
  parallel::Mesh mesh_;
  int rank_;
  std::unique_ptr<Stream> stream_;
  Arena scratch_;
  parallel::ParameterStore store_;
  recipes::ScaleState scales_;
  std::vector<std::unique_ptr<nn::LinearWeight>> linears_;
  parallel::StepShape shape_;
  std::unique_ptr<parallel::Units> units_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

// Runs body(parts) for each rank of the mesh, on a thread of its own.
inline void on_parts(const PartsOptions& options, const std::function<void(ExpertParts&)>& body) {
  ThreadRanks ranks;
  run_ranks(options.layout.mesh.ranks(), [&](int rank) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    const parallel::Groups groups = ranks.groups(options.layout.mesh, rank, *device);
    ExpertParts parts(*device, groups, rank, options);
    body(parts);
  });
}

}  // namespace octet::testing
