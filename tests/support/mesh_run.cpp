#include "support/mesh_run.h"

namespace octet::testing {

std::vector<double> values_on(train::Engine& engine, const Tensor& tensor) {
  return values_of(to_host(engine.stream(), tensor).view());
}

std::vector<std::uint8_t> bytes_on(train::Engine& engine, const Tensor& tensor) {
  return bytes_of_tensor(to_host(engine.stream(), tensor).view());
}

Tokens micro_batch(const train::EngineOptions& options, const Steps& steps, int step, int micro) {
  const auto subject = static_cast<std::uint32_t>(step % 3 * steps.micro_batches + micro);
  const std::int64_t count = options.seq_len * options.micro_batch_size;
  Tokens tokens = random_tokens(count, options.model.vocab, subject);
  tokens.document_starts = random_document_starts(count, options.seq_len, subject);
  return tokens;
}

Taken take(train::Engine& engine, const Steps& steps) {
  const train::EngineOptions& options = engine.options();
  const parallel::Mesh& mesh = options.layout.mesh;
  const int coordinates = mesh.data_coordinates();
  Taken taken;
  for (int step = 1; step <= steps.count; ++step) {
    engine.set_step(static_cast<std::uint32_t>(step));
    engine.begin_step(steps.micro_batches / coordinates);
    for (int micro = mesh.data_coordinate(options.rank); micro < steps.micro_batches; micro += coordinates) {
      const Tokens tokens = micro_batch(options, steps, step, micro);
      engine.forward_backward(tokens.batch(micro * options.micro_batch_size), options.watch);
    }
    // On odd steps the last rank asks to stop.
    const bool stops = step % 2 == 1;
    engine.apply(steps.learning_rate, static_cast<std::uint32_t>(step), {.stop = stops && options.rank == mesh.ranks() - 1});
    const kernels::StepScalars scalars = engine.optimizer().read(engine.stream());
    engine.check_ranks();
    EXPECT_EQ(engine.requests().stop, stops) << "rank " << options.rank << ", step " << step;
    taken.losses.push_back(scalars.loss_sum / scalars.token_count);
    taken.norm = scalars.grad_norm;
  }
  return taken;
}

std::array<double, 2> evaluate_a_row(train::Engine& engine) {
  const train::EngineOptions& options = engine.options();
  Tokens one = random_tokens(options.seq_len, options.model.vocab, 77);
  if (options.layout.mesh.data_coordinate(options.rank) > 0) one.targets.assign(one.targets.size(), kernels::kIgnoredTarget);
  return engine.evaluate(one.tokens, one.targets, random_document_starts(options.seq_len, options.seq_len, 77));
}

void RunState::add(train::Engine& engine, const Taken& of_rank) {
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    if (p.spec.frozen) continue;
    gradients.add(p, values_on(engine, p.grad_shard));
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

ByName<std::uint8_t> exported_weights(train::Engine& engine) {
  ByName<std::uint8_t> exported;
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    if (p.spec.frozen) continue;
    const Tensor whole = engine.whole(p);
    EXPECT_EQ(static_cast<bool>(whole), engine.options().rank == 0) << p.spec.name;
    if (whole) exported[p.spec.name] = bytes_of_tensor(whole);
  }
  return exported;
}

void on_engines(const train::EngineOptions& of_all, const parallel::Layout& layout,
                const std::function<void(train::Engine&, const parallel::Groups&)>& body, DeviceKind kind) {
  on_engines(of_all, layout, body,
             Machine{.device = [kind](int rank) { return make_device(kind, kind == DeviceKind::cuda ? rank : 0); }});
}

void on_engines(const train::EngineOptions& of_all, const parallel::Layout& layout,
                const std::function<void(train::Engine&, const parallel::Groups&)>& body, const Machine& machine) {
  ThreadRanks threads(machine.reach);
  run_ranks(layout.mesh.ranks(), [&](int rank) {
    train::EngineOptions options = of_all;
    options.layout = layout;
    options.rank = rank;
    const std::unique_ptr<Device> device = machine.device(rank);
    const parallel::Groups groups = threads.groups(layout.mesh, rank, *device);
    train::Engine engine(options, *device, groups);
    engine.initialise(7);
    body(engine, groups);
    if (machine.reach) engine.close();
    EXPECT_EQ(device->memory().total_peak, train::measure(options, device->kind()).total()) << "rank " << rank;
  });
}

RunState run_mesh(const train::EngineOptions& options, const parallel::Layout& layout, const Steps& steps, const Beside& beside) {
  RunState state;
  std::mutex mutex;
  on_engines(
      options, layout,
      [&](train::Engine& engine, const parallel::Groups& groups) {
        if (beside.before) beside.before(engine);
        const comm::Traffic context = groups.context->traffic(), tensor = groups.tensor->traffic();
        const Taken taken = take(engine, steps);
        const comm::Traffic over_context = groups.context->traffic(), over_tensor = groups.tensor->traffic();
        engine.settle();
        if (beside.after) beside.after(engine);
        const std::lock_guard lock(mutex);
        state.add(engine, taken);
        const auto add = [](std::vector<comm::Traffic>& to, const comm::Traffic& from, const comm::Traffic& until) {
          to.push_back({until.bytes - from.bytes, until.messages - from.messages});
        };
        add(state.over_context, context, over_context);
        add(state.over_tensor, tensor, over_tensor);
      },
      beside.machine);
  state.gradients.expect_whole();
  state.weights.expect_whole();
  return state;
}

void expect_same_bits(const RunState& actual, const RunState& expected) {
  EXPECT_TRUE(actual.weights == expected.weights);
  EXPECT_TRUE(actual.gradients == expected.gradients);
  EXPECT_TRUE(actual.scales == expected.scales);
  EXPECT_TRUE(actual.taken == expected.taken);
}

void set_values(train::Engine& engine, const Wholes<double>& values) {
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    std::copy(values.at(p.spec.name).begin(), values.at(p.spec.name).end(), p.value.as<double>());
  }
  engine.refresh();
}

ByName<double> gradient_magnitudes(const train::EngineOptions& options, const Steps& steps, DeviceKind kind) {
  ByName<double> result;
  for (int micro = 0; micro < steps.micro_batches; ++micro) {
    const auto engine = make_engine(options, 7, kind);
    engine->begin_step();
    engine->forward_backward(micro_batch(options, steps, 1, micro).batch(), nullptr);
    for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
      if (p.spec.frozen) continue;
      const std::vector<double> gradient = values_on(*engine, p.grad);
      std::vector<double>& sum = result[p.spec.name];
      sum.resize(gradient.size());
      for (std::size_t e = 0; e < gradient.size(); ++e) sum[e] += std::abs(gradient[e]);
    }
  }
  return result;
}

void expect_near_gradients(const RunState& actual, const RunState& expected, const ByName<double>& magnitudes, double relative) {
  for (const auto& [name, gradient] : expected.gradients.by_name()) {
    const std::vector<double>& magnitude = magnitudes.at(name);
    EXPECT_TRUE(near(actual.gradients.at(name), gradient, [&](std::size_t e) { return relative * magnitude[e]; })) << name;
  }
}

std::string text(const parallel::Layout& layout) {
  std::string result;
  for (std::size_t i = 0; i < parallel::kAxes; ++i) {
    const auto axis = static_cast<parallel::Axis>(i);
    if (layout.mesh.size(axis) > 1) result += concat(name_of(axis), " ", layout.mesh.size(axis), ", ");
  }
  if (layout.mesh.expert() > 1) result += concat("expert ", layout.mesh.expert(), ", ");
  return result + (layout.weights == parallel::Weights::kept ? "weights kept, " : "weights resharded, ") +
         (layout.gradients == parallel::Gradients::whole ? "gradients whole" : "gradients sharded");
}

void expect_same_loss(const RunState& actual, const RunState& one, std::int64_t tokens) {
  const double loss = one.taken.losses.at(0);
  EXPECT_NEAR(actual.taken.losses.at(0), loss, 2 * gamma(static_cast<double>(tokens), kUnitRoundoffF64) * loss);
}

void expect_same_step(const RunState& actual, const RunState& expected, double bound) {
  EXPECT_NEAR(actual.taken.losses.at(0), expected.taken.losses.at(0), bound * expected.taken.losses.at(0));
  EXPECT_NEAR(actual.taken.norm, expected.taken.norm, bound * expected.taken.norm) << "every parameter counts once";
  for (const auto& [name, gradient] : expected.gradients.by_name()) {
    EXPECT_TRUE(near_norm(actual.gradients.at(name), gradient, bound)) << name;
  }
}

void expect_hardly_more_rounding(const RunState& actual, const RunState& one, const RunState& truth) {
  for (const auto& [name, gradient] : truth.gradients.by_name()) {
    EXPECT_TRUE(near_norm(actual.gradients.at(name), gradient, 2 * relative_frobenius(one.gradients.at(name), gradient))) << name;
  }
}

void expect_scales_of_one(const RunState& actual, const RunState& one, std::int64_t layers) {
  std::int64_t compared = 0;
  for (const auto& [name, bytes] : one.scales) {
    if (name.find(".w.") == std::string::npos && name.find("layers.0.self_attn.q_proj.fused.x.") == std::string::npos) continue;
    EXPECT_TRUE(actual.scales.at(name) == bytes) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 2 * (layers * 4 + 1)) << "scale and history of four weights a layer, and of one input";
}

std::map<std::string, std::size_t> expect_weights_of_same_gradients(const RunState& actual, const RunState& one) {
  std::map<std::string, std::size_t> same;
  for (const auto& [name, gradient] : one.gradients.by_name()) {
    const std::vector<std::uint8_t>&weights = actual.weights.at(name), &expected = one.weights.at(name);
    const std::vector<double>& of_mesh = actual.gradients.at(name);
    std::size_t different = 0, &agree = same[name];
    for (std::size_t e = 0; e < gradient.size(); ++e) {
      if (of_mesh[e] != gradient[e]) continue;
      ++agree;
      different += weights[2 * e] != expected[2 * e] || weights[2 * e + 1] != expected[2 * e + 1];
    }
    EXPECT_EQ(different, 0u) << name;
  }
  return same;
}

void expect_same_curve(const RunState& actual, const RunState& one) {
  ASSERT_EQ(actual.taken.losses.size(), one.taken.losses.size());
  for (std::size_t step = 0; step < one.taken.losses.size(); ++step) {
    EXPECT_NEAR(actual.taken.losses[step], one.taken.losses[step], 0.01 * one.taken.losses[step]) << "step " << step + 1;
  }
}

}  // namespace octet::testing
