// Scales of delayed scaling before the first step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "octet/numerics/scale.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

// The largest magnitude of each FP8 operand that it is shown, by "<linear>.<role>".
class Amaxes final : public nn::Watch {
 public:
  void operand(const nn::Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized&) override {
    if (scope.stream.kind() == DeviceKind::meta) return;
    float& amax = by_name[concat(linear, ".", role_letter(role))];
    for (const double x : values_of(source)) {
      amax = std::max(amax, std::abs(static_cast<float>(BFloat16(static_cast<float>(x)))));
    }
  }
  void product(const nn::Scope&, std::string_view, std::string_view, const kernels::Gemm&) override {}
  void attention(const nn::Scope&, std::string_view, const Tensor&) override {}

  std::map<std::string, float> by_name;
};

// A step of `count` micro-batches of this rank's.
void calibrate(train::Engine& engine, int count = 2) {
  const Steps steps{.micro_batches = count};
  const parallel::Mesh& mesh = engine.options().layout.mesh;
  int micro = mesh.data_coordinate(engine.options().rank);
  Tokens tokens;
  engine.calibrate(count / mesh.data_coordinates(), [&] {
    tokens = micro_batch(engine.options(), steps, 1, micro);
    micro += mesh.data_coordinates();
    return tokens.batch();
  });
}

train::EngineOptions calibrated_options() {
  train::EngineOptions options = context_options("fp8_delayed");
  options.calibrates = true;
  return options;
}

std::map<std::string, std::vector<float>> scales_of(train::Engine& engine) {
  std::map<std::string, std::vector<float>> result;
  for (const auto& [name, tensor, held] : engine.model().scales().tensors()) {
    if (held == recipes::HeldBy::elsewhere) continue;
    const std::vector<double> values = values_on(engine, tensor);
    result[name].assign(values.begin(), values.end());
  }
  return result;
}

class Calibration : public MeshTest {};

// Current scaling casts every operand by its own amax, too, so its operands have the amaxes that calibration finds. At scale 1
// the inputs here would saturate at 448 and most weights of down_proj would be 0, which would change the amaxes of all layers
// after them.
TEST_F(Calibration, ScalesAreThoseOfCurrentScalingOverTheWholeBatch) {
  const auto outliers = [](train::Engine& engine) {
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      auto* const x = p.primary().as<float>();
      const bool norm = p.spec.name.find("norm") != std::string::npos, down = p.spec.name.find("down_proj") != std::string::npos;
      for (std::int64_t i = 0; i < p.primary().elements(); ++i) x[i] *= norm && i % 7 == 0 ? 1000.0f : down ? 1e-3f : 1.0f;
    }
    engine.refresh();
  };
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    Amaxes amaxes;
    train::EngineOptions current_options = tiny_options("fp8_current");
    current_options.watch = &amaxes;
    const auto current = make_engine(current_options);
    outliers(*current);
    current->begin_step();
    for (int micro = 0; micro < 2; ++micro) {
      current->forward_backward(micro_batch(current_options, {.micro_batches = 2}, 1, micro).batch(), &amaxes);
    }
    train::EngineOptions options = calibrated_options();
    options.checkpointing = mode;
    const auto engine = make_engine(options);
    outliers(*engine);
    calibrate(*engine);
    const auto scales = scales_of(*engine);
    ASSERT_EQ(scales.size(), 2 * amaxes.by_name.size());
    for (const auto& [name, amax] : amaxes.by_name) {
      const bool gradient = name.ends_with(".g"), weight = name.ends_with(".w");
      EXPECT_GT(amax, 0.0f);
      EXPECT_EQ(scales.at("fp8." + name + ".scale").at(0), (gradient ? 57344.0f : 448.0f) / amax) << name;
      const std::vector<float> history = {weight ? amax : 0.0f, amax, 0.0f, 0.0f};
      EXPECT_EQ(scales.at("fp8." + name + ".amax_history"), history) << name;
    }
  }
}

// Calibration attends in BF16, so attention in FP8 adds states of its own and changes no other.
TEST_F(Calibration, OfAttentionInFp8IsThatOfBf16) {
  const auto scales = [](const std::string& recipe) {
    train::EngineOptions options = context_options(recipe);
    options.calibrates = true;
    const auto engine = make_engine(options);
    calibrate(*engine);
    return scales_of(*engine);
  };
  const auto bf16 = scales("fp8_delayed"), fp8 = scales("fp8_delayed_attention");
  ASSERT_EQ(fp8.size(), bf16.size() + 2 * 8 * 2) << "two tensors for Q, K, V and five gradients of two layers";
  for (const auto& [name, values] : bf16) EXPECT_EQ(fp8.at(name), values) << name;
  for (const char* operand : {"q", "k", "v"}) {
    const std::string name = concat("fp8.model.layers.1.self_attn.", operand, ".x");
    EXPECT_EQ(fp8.at(name + ".scale").at(0), 448.0f / fp8.at(name + ".amax_history").at(1)) << name;
  }
  for (const char* operand : {"q", "k", "v", "o", "s"}) {
    const std::string name = concat("fp8.model.layers.1.self_attn.", operand, ".g");
    EXPECT_EQ(fp8.at(name + ".scale").at(0), 57344.0f / fp8.at(name + ".amax_history").at(1)) << name;
  }
}

// Afterwards the engine takes the step of one whose scales were set by hand.
TEST_F(Calibration, ChangesNothingButScales) {
  const auto state = [](train::Engine& engine) {
    std::map<std::string, std::vector<std::uint8_t>> result;
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      for (const auto& [what, tensor] : {std::pair("primary", p.primary()), std::pair("gradient", p.grad_shard),
                                         std::pair("moment 1", p.moment1), std::pair("moment 2", p.moment2)}) {
        result[concat(p.spec.name, " ", what)] = bytes_of_tensor(tensor);
      }
    }
    for (const auto& [name, tensor, held] : engine.model().scales().tensors()) result[name] = bytes_of_tensor(tensor);
    result["updates"] = bytes_of_tensor(engine.optimizer().updates());
    return result;
  };
  const auto calibrated = make_engine(calibrated_options()), other = make_engine(calibrated_options());
  calibrate(*calibrated);
  const auto scales = calibrated->model().scales().tensors(), to = other->model().scales().tensors();
  for (std::size_t i = 0; i < scales.size(); ++i) std::memcpy(to[i].tensor.data, scales[i].tensor.data, to[i].tensor.bytes());
  other->refresh();
  for (const Steps steps : {Steps{.count = 0}, Steps{.count = 2}}) {
    const Taken expected = take(*other, steps), taken = take(*calibrated, steps);
    EXPECT_EQ(taken, expected);
    const auto before = state(*other), after = state(*calibrated);
    for (const auto& [name, bytes] : before) {
      const bool of_no_step = steps.count == 0 && name.ends_with("gradient");
      EXPECT_TRUE(of_no_step || after.at(name) == bytes) << name;
    }
  }
}

// Ranks with micro-batches of their own find the same numbers. Other axes sum in another order, so only what no sum has touched
// is the same to the bit, and amaxes are within FP8's roundoff. The gradients of scores, and of Q and K with them, are
// differences, in which that roundoff counts more. Their scales may differ by a binade, of which E5M2 has 30.
TEST_F(Calibration, ScalesAreTheSameOnEveryMesh) {
  const auto run = [](const train::EngineOptions& options, const Layout& layout, int steps) {
    return run_mesh(options, layout, {.count = steps}, {.before = [](train::Engine& engine) { calibrate(engine); }});
  };
  const std::vector<Layout> data = {{.mesh = Mesh({2, 1, 1, 1})},
                                    {.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
                                    {.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::kept, .gradients = Gradients::whole}};
  for (const Layout& layout : data) {
    SCOPED_TRACE(text(layout));
    EXPECT_TRUE(run(calibrated_options(), layout, 1).scales == run(calibrated_options(), {}, 1).scales);
  }
  const auto near = [&](const train::EngineOptions& options, const std::vector<Layout>& layouts) {
    std::map<std::string, std::vector<float>> one;
    on_engines(options, {}, [&](train::Engine& engine, const parallel::Groups&) {
      calibrate(engine);
      one = scales_of(engine);
    });
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(text(layout));
      on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
        calibrate(engine);
        engine.settle();
        for (const auto& [name, values] : scales_of(engine)) {
          const bool same =
              name.find(".w.") != std::string::npos || name.find("layers.0.self_attn.q_proj.fused.x.") != std::string::npos;
          const bool difference = name.find("attn.s.g") != std::string::npos || name.find("attn.q.g") != std::string::npos ||
                                  name.find("attn.k.g") != std::string::npos;
          for (std::size_t i = 0; i < values.size(); ++i) {
            const float bound = same ? 0.0f : (difference ? 0.5f : 0.25f) * one.at(name)[i];
            EXPECT_NEAR(values[i], one.at(name)[i], bound) << name << " " << i;
          }
        }
      });
    }
  };
  near(calibrated_options(), kContexts);
  train::EngineOptions tensor = tensor_options("fp8_delayed"), mixture = mixture_options("fp8_delayed");
  train::EngineOptions attention = tensor_options("fp8_delayed_attention");
  tensor.calibrates = mixture.calibrates = attention.calibrates = true;
  near(tensor, kTensors);
  near(attention, {kTensors[0], kTensors[1], kTensors[3]});  // those without a context axis
  near(mixture, {{.mesh = Mesh({1, 2, 1, 1}, 2)}});
}

// Evaluation alone, as `octet probe` does it: the scales of X are those of a training engine, and those of G stay at 1.
TEST_F(Calibration, NeedsNoBackward) {
  train::EngineOptions options = calibrated_options();
  const auto trains = make_engine(options);
  calibrate(*trains);
  options.storage.training = false;
  const auto evaluates = make_engine(options);
  calibrate(*evaluates);
  const auto expected = scales_of(*trains);
  for (const auto& [name, values] : scales_of(*evaluates)) {
    if (name.ends_with(".g.scale")) {
      EXPECT_EQ(values, std::vector<float>{1.0f}) << name;
    } else if (name.find(".g.") == std::string::npos) {
      EXPECT_EQ(values, expected.at(name)) << name;
    }
  }
}

// Alignment takes more of the memory where every expert has some rows than where one has them all, and calibration has the most small
// tensors.
TEST_F(Calibration, HasMemoryForEveryDistributionOfAMixturesRows) {
  train::EngineOptions options = mixture_options("fp8_delayed");
  options.calibrates = true;
  options.model.layers = 2;
  options.model.dim = 192;
  options.model.heads = 6;
  options.model.kv_heads = 2;
  options.model.head_dim = 32;
  options.model.ffn = 512;
  options.seq_len = 128;
  options.micro_batch_size = 4;
  for (const Layout& layout : {Layout{}, Layout{.mesh = Mesh({1, 1, 1, 1}, 1, {.count = 2})}}) {
    on_engines(options, layout, [](train::Engine& engine, const parallel::Groups&) {
      calibrate(engine, 4);
      take(engine, {.micro_batches = 4});
    });
  }
}

}  // namespace
}  // namespace octet::testing
