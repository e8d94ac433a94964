// However a mesh shares sequences, layers, experts and parameters, the step equals that of one rank. The ranks are threads.
#include <gtest/gtest.h>

#include "octet/base/rng.h"
#include "octet/kernels/fill/fill.h"
#include "support/blind_routers.h"
#include "support/bounds.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

using nn::Checkpointing;

struct StepCase {
  std::string name;
  train::EngineOptions options;
  std::vector<Layout> layouts;
  int micro_batches = 2;
  std::function<void(train::Engine&)> before = {};
};
void PrintTo(const StepCase& c, std::ostream* os) { *os << c.name; }

// A step with the evaluation of its new weights, and with what rank 0 would export.
struct Step : RunState {
  std::array<double, 2> evaluation{};
};
Step step_of(const StepCase& c, const Layout& layout) {
  std::mutex mutex;
  std::vector<std::array<double, 2>> evaluations;
  ByName<std::uint8_t> exported;
  const auto after = [&](train::Engine& engine) {
    const std::array<double, 2> evaluation = evaluate_a_row(engine);
    if (layout.mesh.size(Axis::tensor) * layout.mesh.size(Axis::context) > 1) {
      EXPECT_THROW(engine.logits(random_tokens(c.options.seq_len, c.options.model.vocab).tokens), Error);
    }
    const ByName<std::uint8_t> of_rank = exported_weights(engine);
    const std::lock_guard lock(mutex);
    evaluations.push_back(evaluation);
    if (engine.options().rank == 0) exported = of_rank;
  };
  Step step{run_mesh(c.options, layout, {.count = 1, .micro_batches = c.micro_batches}, {c.before, after})};
  EXPECT_TRUE(exported == step.weights.by_name()) << "what the first rank writes is what all hold";
  step.evaluation = evaluations.at(0);
  for (const auto& evaluation : evaluations) EXPECT_EQ(evaluation, step.evaluation) << "ranks say different losses";
  return step;
}

class StepOfOneRank : public MeshTest, public ::testing::WithParamInterface<StepCase> {};

// In FP64 only the order of sums differs. The longest path from a token to a gradient adds a few thousand terms, each within a
// roundoff of the magnitudes. This gives gamma(2^12) relative to the norm of the result. Cancellation costs less than a factor of
// 2.
TEST_P(StepOfOneRank, IsTaken) {
  const double bound = 2 * gamma(4096, kUnitRoundoffF64);
  const Step expected = step_of(GetParam(), kAlone);
  for (const Layout& layout : GetParam().layouts) {
    SCOPED_TRACE(text(layout));
    const Step actual = step_of(GetParam(), layout);
    expect_same_step(actual, expected, bound);
    EXPECT_NEAR(actual.evaluation[0], expected.evaluation[0], 2 * bound * expected.evaluation[0]) << "of moved weights";
    EXPECT_EQ(actual.evaluation[1], expected.evaluation[1]);
  }
}

// Biases start at zero, which would hide a bias that is added twice.
void set_biases(train::Engine& engine) {
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    if (!p.spec.name.ends_with(".bias")) continue;
    for (const parallel::TensorPiece& piece : p.pieces()) {
      kernels::fill_normal(engine.stream(), {.x = p.of_shard(p.primary(), piece),
                                             .deviation = 0.5,
                                             .seed = 5,
                                             .subject = name_id(p.spec.name),
                                             .elements = piece.global_elements(p.cut.global())});
    }
  }
  engine.refresh();
}

std::vector<StepCase> sequences() {
  std::vector<StepCase> cases;
  for (const bool documents : {false, true}) {
    const auto add = [&](const std::string& name, std::vector<Layout> layouts, const auto& change) {
      StepCase c{.name = name + (documents ? "Documents" : ""), .options = tiny_options("fp64"), .layouts = std::move(layouts)};
      c.options.document_mask = documents;
      change(c.options);
      cases.push_back(c);
    };
    add("Context", kContexts, [&](train::EngineOptions& o) { o.micro_batch_size = documents ? 3 : 2; });
    // 48 tokens, in chunks of 8 tokens and of 3.
    add("ContextOfThreeAndEight", {{.mesh = Mesh({1, 1, 3, 1})}, {.mesh = Mesh({1, 1, 8, 1})}}, [](train::EngineOptions& o) {
      o.model.max_position = o.seq_len = 48;
      o.micro_batch_size = 3;
    });
    // Chunks of 64 keys, which GPUs cannot compute without a mask, so keys are kept in the order of the sequence.
    add("ContextInOrder", {{.mesh = Mesh({1, 1, 2, 1})}}, [](train::EngineOptions& o) {
      o.model.max_position = o.seq_len = 256;
      o.micro_batch_size = 1;
    });
    // 24 tokens, in chunks of 6 tokens and of 3. The windows end within the own chunk, within another chunk, or cover everything.
    for (const std::int64_t window : {1, 4, 11, 23, 24}) {
      add(concat("ContextWindow", window), {kContexts[0], kContexts[1]},
          [&](train::EngineOptions& o) { o.model.sliding_window = window; });
    }
    add("ContextQwen3", kContexts, [](train::EngineOptions& o) { o.model = tiny_qwen3_config(); });
    add("TensorWindow", kTensors, [](train::EngineOptions& o) {
      o.model = tensor_options("fp64").model;
      o.model.sliding_window = 5;
    });
  }
  return cases;
}

std::vector<StepCase> layers() {
  StepCase plain{.name = "Tensor", .options = tensor_options("fp64"), .layouts = kTensors};
  StepCase tied = plain;
  tied.name = "TensorTied";
  tied.options.model.tied_head = true;
  tied.options.micro_batch_size = 3;
  StepCase qwen = plain;
  qwen.name = "TensorQwen3";
  qwen.options.model = tiny_qwen3_config();
  qwen.options.model.heads = plain.options.model.heads;
  qwen.options.model.kv_heads = plain.options.model.kv_heads;
  qwen.options.model.head_dim = 16;
  qwen.options.model.ffn = plain.options.model.ffn;
  qwen.before = set_biases;
  return {plain, tied, qwen};
}

// Mixtures of experts. In the cases "InRounds", the routers send all tokens of all ranks to one rank's experts. That is more than
// its memory is planned for, so the tokens come in several rounds.
std::vector<StepCase> experts() {
  std::vector<StepCase> cases;
  for (const auto& [name, mode] : {std::pair("", Checkpointing::none), std::pair("Selective", Checkpointing::selective),
                                   std::pair("Full", Checkpointing::full)}) {
    StepCase mixture{
        .name = concat("Mixture", name), .options = mixture_options("fp64"), .layouts = kMixtures, .micro_batches = 4};
    mixture.options.checkpointing = mode;
    StepCase rounds = mixture;
    rounds.name = concat("MixtureInRounds", name);
    rounds.options.model.experts_per_token = 1;
    rounds.layouts = {{.mesh = Mesh({1, 4, 1, 1}, 4), .weights = Weights::resharded, .gradients = Gradients::sharded}};
    rounds.before = blind_routers;
    // As Qwen3-MoE has them: some layers are dense, experts are smaller, and the weights of a token do not add up to one.
    StepCase some = mixture;
    some.name = concat("MixtureInSomeLayers", name);
    some.options.model.layers = 3;
    some.options.model.dense_layers = {false, true, false};
    some.options.model.expert_ffn = 32;
    some.options.model.router_normalise = false;
    // 23 rows, which no number of ranks divides. The last rank gets fewer in a plan than the others.
    StepCase odd = mixture;
    odd.name = concat("MixtureOfOddRows", name);
    odd.options.micro_batch_size = 1;
    odd.options.seq_len = 23;
    odd.options.model.experts_per_token = 1;
    odd.layouts = {kMixtures[1], kMixtures[2], kMixtures[3], kMixtures[4]};
    cases.push_back(mixture);
    cases.push_back(rounds);
    cases.push_back(some);
    cases.push_back(odd);
  }
  return cases;
}

// GPT-NeoX has biases, layer norms and two forms of its block. GPT-Neo has learned positions. OLMo 2 has its norms after the
// layers, and no tensor axis. The tensor axis cuts the parts of Phi-3's fused tensors.
std::vector<StepCase> other_families() {
  std::vector<StepCase> cases;
  for (const bool parallel_residual : {true, false}) {
    StepCase c{.name = parallel_residual ? "GptNeoxParallel" : "GptNeoxSequentialTied",
               .options = gpt_neox_options("fp64", parallel_residual),
               .layouts = kGptNeox,
               .before = set_biases};
    c.options.model.tied_head = !parallel_residual;
    cases.push_back(c);
  }
  StepCase neo{.name = "GptNeo", .options = gpt_neox_options("fp64", false), .layouts = kGptNeox, .before = set_biases};
  const models::DecoderConfig like = neo.options.model;
  neo.options.model = tiny_gpt_neo_config();
  neo.options.model.head_dim = like.head_dim;
  neo.options.model.ffn = like.ffn;
  cases.push_back(neo);
  std::vector<Layout> no_tensor = kContexts;
  no_tensor.insert(no_tensor.end(), {kGptNeox[0], kGptNeox[1]});
  for (const auto& [name, mode] : {std::pair("", Checkpointing::none), std::pair("Selective", Checkpointing::selective),
                                   std::pair("Full", Checkpointing::full)}) {
    cases.push_back({.name = concat("Olmo2", name), .options = olmo2_options("fp64"), .layouts = no_tensor});
    cases.back().options.checkpointing = mode;
  }
  cases.push_back({.name = "Phi3", .options = phi3_options("fp64"), .layouts = kGptNeox});
  cases.push_back({.name = "Phi3Adapters", .options = adapted(phi3_options("fp64")), .layouts = kGptNeox, .before = randomise_b});
  return cases;
}

// Adapters beside a frozen model, without and with dropout, of which one other element in a mask would show. Four ranks of a
// tensor axis hold the heads of keys in pairs, and so B's rows.
std::vector<StepCase> adapters() {
  std::vector<Layout> layouts = kTensors;
  layouts.insert(layouts.end(), kContexts.begin(), kContexts.end());
  layouts.push_back({.mesh = Mesh({1, 4, 1, 1}), .gradients = Gradients::sharded});
  layouts.push_back({.mesh = Mesh({2, 2, 1, 1}), .weights = Weights::resharded});
  layouts.push_back({.mesh = Mesh({1, 2, 1, 1}, 1, {2})});
  std::vector<StepCase> cases;
  const auto add = [&](const std::string& name, const train::EngineOptions& options, const std::vector<Layout>& on) {
    cases.push_back({.name = name, .options = options, .layouts = on, .micro_batches = 4, .before = randomise_b});
    cases.push_back(cases.back());
    cases.back().name += "Dropout";
    cases.back().options.adapters.dropout = {.rate = 0.3, .seed = 21};
  };
  add("Adapters", adapted(tensor_options("fp64")), layouts);
  add("AdaptersOfSome", adapted(tensor_options("fp64"), {"q_proj", "v_proj", "up_proj"}), layouts);
  train::EngineOptions selective = adapted(tensor_options("fp64"), {"k_proj", "down_proj"});
  selective.checkpointing = Checkpointing::selective;
  add("AdaptersSelective", selective, layouts);
  add("AdaptersGptNeox", adapted(gpt_neox_options("fp64", true)), kGptNeox);
  for (const auto& [name, mode] : {std::pair("", Checkpointing::none), std::pair("Selective", Checkpointing::selective),
                                   std::pair("Full", Checkpointing::full)}) {
    train::EngineOptions mixture = adapted(mixture_options("fp64"));
    mixture.checkpointing = mode;
    add(concat("AdaptersOfAMixture", name), mixture, kMixtures);
    mixture.model.experts_per_token = 1;
    add(concat("AdaptersInRounds", name), mixture, {{.mesh = Mesh({1, 4, 1, 1}, 4)}});
    for (std::size_t i = cases.size() - 2; i < cases.size(); ++i) {
      cases[i].before = [](train::Engine& engine) {
        randomise_b(engine);
        blind_routers(engine);
      };
    }
  }
  return cases;
}

const auto kName = [](const ::testing::TestParamInfo<StepCase>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Sequences, StepOfOneRank, ::testing::ValuesIn(sequences()), kName);
INSTANTIATE_TEST_SUITE_P(Layers, StepOfOneRank, ::testing::ValuesIn(layers()), kName);
INSTANTIATE_TEST_SUITE_P(Experts, StepOfOneRank, ::testing::ValuesIn(experts()), kName);
INSTANTIATE_TEST_SUITE_P(Lora, StepOfOneRank, ::testing::ValuesIn(adapters()), kName);
INSTANTIATE_TEST_SUITE_P(Families, StepOfOneRank, ::testing::ValuesIn(other_families()), kName);

// Axes that change how often numbers are rounded: context and tensor.
struct AxisCase {
  std::string name;
  train::EngineOptions (*options_of)(const std::string& recipe);
  std::vector<Layout> layouts;
};
void PrintTo(const AxisCase& c, std::ostream* os) { *os << c.name; }
class Rounding : public MeshTest, public ::testing::WithParamInterface<AxisCase> {};

// Gradients of K and V, and products that ranks add up, are rounded up to three times more often than on one rank.
TEST_P(Rounding, IsHardlyMoreThanOneRanks) {
  for (const std::string recipe : {"fp32", "bf16"}) {
    const double unit = recipe == "fp32" ? kUnitRoundoffF32 : kUnitRoundoffBf16;
    Wholes<double> values;
    const auto read = [&](train::Engine& engine) {
      for (const parallel::Parameter& p : engine.model().parameters().parameters())
        values.add(p, values_of(p.value_shard ? p.value_shard : p.primary()));
    };
    const train::EngineOptions options = GetParam().options_of(recipe);
    const RunState one = run_mesh(options, kAlone, {}, {.before = read});
    const RunState truth = run_mesh(GetParam().options_of("fp64"), kAlone, {},
                                    {.before = [&](train::Engine& engine) { set_values(engine, values); }});
    for (const Layout& layout : GetParam().layouts) {
      SCOPED_TRACE(recipe + ", " + text(layout));
      const RunState actual = run_mesh(options, layout, {});
      // The residual stream is rounded about ten times in each layer, and logits and losses a few times more.
      EXPECT_NEAR(actual.taken.losses[0], truth.taken.losses[0], gamma(24, unit) * truth.taken.losses[0]);
      expect_hardly_more_rounding(actual, one, truth);
    }
  }
}

// Ranks exchange the largest amaxes, so all ranks cast with the same scales.
TEST_P(Rounding, ScalesAreThoseOfOneRank) {
  const train::EngineOptions options = GetParam().options_of("fp8_delayed");
  const Steps steps{.learning_rate = 0};  // the weights keep their bits
  const RunState one = run_mesh(options, kAlone, steps);
  for (const Layout& layout : GetParam().layouts) {
    SCOPED_TRACE(text(layout));
    expect_scales_of_one(run_mesh(options, layout, steps), one, options.model.layers);
  }
}

INSTANTIATE_TEST_SUITE_P(Axes, Rounding,
                         ::testing::Values(AxisCase{"Context", context_options, kContexts},
                                           AxisCase{"Tensor", tensor_options, kTensors}),
                         [](const auto& info) { return info.param.name; });

// In a step of one micro-batch, the gradient of an expert that only one rank holds is not sharded.
TEST_F(MeshTest, PartsOfMixturesStayAsTheyCame) {
  const train::EngineOptions options = mixture_options("fp8_delayed");
  for (Layout layout : kMixtures) {
    layout.gradients = Gradients::sharded;
    layout.reduce = DType::bf16;
    SCOPED_TRACE(text(layout));
    const Steps steps{.count = 2, .micro_batches = layout.mesh.data_coordinates()};
    expect_parts_may_stay_as_they_came(layout, [&](const Layout& which) { return run_mesh(options, which, steps); });
  }
}

}  // namespace
}  // namespace octet::testing
