#include "octet/train/health.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "octet/telemetry/health_verdict.h"
#include "octet/tensor/host_tensor.h"
#include "support/mesh_ranks.h"
#include "support/near.h"
#include "support/tiny_model.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

// Repeats the watch's measurements in FP64, from the data that a dump would hold.
class Witness final : public nn::Watch {
 public:
  struct Measured {
    double amax = 0, saturated_pct = 0, flushed_pct = 0, sqnr_db = 0, kurtosis = 0, amax_to_rms = 0, top_channel_pct = 0;
  };
  explicit Witness(train::HealthWatch& health) : health_(health) {}

  void operand(const nn::Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) override {
    health_.operand(scope, linear, role, source, q);
    if (scope.record == nn::Record::nothing) return;  // made again: measured before
    const HostQuantized host = to_host(scope.stream, q, source.rows(), source.cols());
    const std::vector<double> values = values_of(source), codes = values_of(host.codes.view());
    const Tensor scales = host.scale_inv.view();
    const std::int64_t rows = source.rows(), cols = source.cols();
    const std::int64_t scale_rows = scales.shape.rank() > 1 ? scales.rows() : 1;
    const std::int64_t scale_cols = scales.shape.rank() > 1 ? scales.cols() : 1;
    Measured m;
    std::vector<double> channels(static_cast<std::size_t>(cols));
    double signal = 0, noise = 0, fourth = 0, nonzero = 0, saturated = 0, flushed = 0;
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      // Every quantisation starts from BF16 values.
      const double x = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(values[static_cast<std::size_t>(i)]))));
      const double code = codes[static_cast<std::size_t>(i)];
      const std::int64_t tile_rows = (rows + scale_rows - 1) / scale_rows > 1 && scale_rows > 1 ? 128 : 1;
      const std::int64_t tile_cols = q.tile == ScaleTile::mx_1x32 ? 32 : 128;
      const std::int64_t r = scale_rows == 1 ? 0 : scale_rows == rows ? i / cols : i / cols / tile_rows;
      const std::int64_t c = scale_cols == 1 ? 0 : i % cols / tile_cols;
      const std::int64_t at = r * scale_cols + c;
      const double scale_inv =
          q.tile == ScaleTile::mx_1x32 ? std::exp2(scales.as_bytes()[at] - 127.0) : static_cast<double>(scales.as<float>()[at]);
      const double largest = static_cast<double>(fp8_max(q.format));
      m.amax = std::max(m.amax, std::abs(x));
      double& channel = channels[static_cast<std::size_t>(i % cols)];
      channel = std::max(channel, std::abs(x));
      nonzero += x != 0;
      saturated += std::abs(x) > largest * scale_inv * (1 + 0x1p-12);
      flushed += x != 0 && code == 0;
      signal += x * x;
      fourth += x * x * x * x;
      noise += (x - code * scale_inv) * (x - code * scale_inv);
    }
    m.saturated_pct = 100 * saturated / static_cast<double>(rows * cols);
    m.flushed_pct = nonzero > 0 ? 100 * flushed / nonzero : 0;
    m.sqnr_db = 10 * std::log10(signal / noise);
    m.kurtosis = nonzero * fourth / (signal * signal);
    m.amax_to_rms = m.amax / std::sqrt(signal / nonzero);
    m.top_channel_pct = 100 * m.amax / std::accumulate(channels.begin(), channels.end(), 0.0);
    measured.emplace_back(concat(linear, ".", role_letter(role)), m);
  }
  void product(const nn::Scope&, std::string_view, std::string_view, const kernels::Gemm&) override {}
  void attention(const nn::Scope&, std::string_view, const Tensor&) override {}

  std::vector<std::pair<std::string, Measured>> measured;

 private:
  train::HealthWatch& health_;
};

struct HealthCase {
  std::string recipe;
  nn::Checkpointing checkpointing;
};

class Health : public ::testing::TestWithParam<HealthCase> {};

TEST_P(Health, SaysOfEveryOperandOnceWhatAnIndependentMeasureSays) {
  train::HealthWatch health;
  Witness witness(health);
  train::EngineOptions options = tiny_options(GetParam().recipe);
  options.checkpointing = GetParam().checkpointing;
  options.watch = &health;
  health.set_gated(train::gated_linears(options));
  const auto engine = make_engine(options);  // measures its memory with the watch
  EXPECT_TRUE(health.take(1).empty()) << "samples of the dry run";
  engine->begin_step();
  engine->forward_backward(random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab).batch(), &witness);
  engine->stream().synchronize();
  const std::vector<telemetry::HealthSample> samples = health.take(12);
  EXPECT_TRUE(health.take(12).empty());

  std::set<std::string> names;
  for (const telemetry::HealthSample& s : samples) {
    EXPECT_EQ(s.step, 12);
    EXPECT_TRUE(names.insert(s.tensor).second) << s.tensor << " twice";
    EXPECT_GT(s.scale, 0.0) << s.tensor;
  }
  std::set<std::string> expected;
  for (const nn::LinearWeight* linear : engine->model().linears()) {
    if (!linear->is_fp8()) continue;
    for (const char* role : {".x", ".w", ".g"}) expected.insert(linear->name() + role);
  }
  EXPECT_EQ(names, expected);

  for (const telemetry::HealthSample& s : samples) {
    const auto found =
        std::find_if(witness.measured.begin(), witness.measured.end(), [&](const auto& m) { return m.first == s.tensor; });
    ASSERT_NE(found, witness.measured.end()) << s.tensor;
    const Witness::Measured& m = found->second;
    EXPECT_EQ(s.amax, m.amax) << s.tensor;
    // The device computes shares in FP32, and the decibels from sums of FP32 products.
    EXPECT_NEAR(s.saturated_pct, m.saturated_pct, 1e-4) << s.tensor;
    EXPECT_NEAR(s.flushed_pct, m.flushed_pct, 1e-4) << s.tensor;
    EXPECT_NEAR(s.sqnr_db, m.sqnr_db, 1e-3) << s.tensor;
    EXPECT_NEAR(s.kurtosis, m.kurtosis, 1e-6 * m.kurtosis) << s.tensor;
    EXPECT_NEAR(s.amax_to_rms, m.amax_to_rms, 1e-6 * m.amax_to_rms) << s.tensor;
    ASSERT_EQ(s.top_channel_pct.has_value(), s.tensor.ends_with(".down_proj.x")) << s.tensor;
    EXPECT_NEAR(s.top_channel_pct.value_or(m.top_channel_pct), m.top_channel_pct, 1e-9) << s.tensor;
  }
}

// The names of linears before and after SwiGLU, also where the directory stores gate and up as one tensor.
TEST(HealthOfGatedLayers, AreThoseOfEveryFamily) {
  using Names = std::set<std::string, std::less<>>;
  const auto gated = [](const models::DecoderConfig& config) {
    train::EngineOptions options = tiny_options("fp8_delayed");
    options.model = config;
    options.model.layers = 1;
    return train::gated_linears(options);
  };
  const std::string mlp = "model.layers.0.mlp.";
  EXPECT_EQ(gated(tiny_config()).up, Names{mlp + "gate_proj.fused"});
  EXPECT_EQ(gated(tiny_config()).down, Names{mlp + "down_proj"});
  EXPECT_EQ(gated(tiny_phi3_config()).up, Names{mlp + "gate_up_proj"});
  EXPECT_EQ(gated(tiny_phi3_config()).down, Names{mlp + "down_proj"});
  EXPECT_TRUE(gated(tiny_gpt_neox_config(true)).up.empty() && gated(tiny_gpt_neox_config(true)).down.empty());
  const train::EngineOptions mixture = mixture_options("fp8_delayed");
  const train::GatedLinears experts = train::gated_linears(mixture);
  const auto count = static_cast<std::size_t>(mixture.model.experts * mixture.model.layers);
  EXPECT_EQ(experts.up.size(), count);
  EXPECT_EQ(experts.down.size(), count);
}

// A model whose gated layers are watched while random tokens pass through it.
struct WatchedModel {
  train::EngineOptions options = tiny_options("fp8_delayed");
  train::HealthWatch health;
  std::unique_ptr<train::Engine> engine;

  WatchedModel() {
    health.set_gated(train::gated_linears(options));
    options.watch = &health;
    engine = make_engine(options);
  }
  // Takes a step, and returns this value of all samples that have it.
  std::vector<double> values(std::optional<double> telemetry::HealthSample::*value) {
    engine->refresh();
    engine->begin_step();
    engine->forward_backward(random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab).batch(), &health);
    engine->stream().synchronize();
    std::vector<double> result;
    for (const telemetry::HealthSample& s : health.take(1)) {
      if (s.*value) result.push_back(*(s.*value));
    }
    return result;
  }
  // The gate rows of the second layer, and its up rows below them.
  Tensor gate_up() {
    for (parallel::Parameter& p : engine->model().parameters().parameters()) {
      if (p.spec.name == "model.layers.1.mlp.gate_proj.fused.weight") return p.primary();
    }
    return {};
  }
};

// Up rows of one channel that are 256 times larger make its part of SwiGLU's output so much larger.
TEST(HealthOfGatedLayers, FindsTheTopChannel) {
  WatchedModel model;
  const std::vector<double> before = model.values(&telemetry::HealthSample::top_channel_pct);
  ASSERT_EQ(before.size(), static_cast<std::size_t>(model.options.model.layers));
  for (const double share : before) EXPECT_LT(share, telemetry::kMaxTopChannelPct) << "random rows";
  const Tensor w = model.gate_up();
  float* const row = w.slice_rows(w.rows() / 2 + 3, w.rows() / 2 + 4).as<float>();
  for (std::int64_t i = 0; i < w.cols(); ++i) row[i] *= 256;
  const std::vector<double> after = model.values(&telemetry::HealthSample::top_channel_pct);
  EXPECT_EQ(after[0], before[0]);
  EXPECT_GT(after[1], 50);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_DOUBLE_EQ(train::top_channel_pct(std::vector<float>{1, 3, 0}), 75);
  EXPECT_TRUE(std::isnan(train::top_channel_pct(std::vector<float>{0, 0})));
  EXPECT_TRUE(std::isnan(train::top_channel_pct(std::vector<float>{1, infinity})));
}

// A channel's gate row is copied to its up row, or to another channel's.
TEST(HealthOfGatedLayers, FindsTheChannelThatAligns) {
  WatchedModel model;
  const std::vector<double> before = model.values(&telemetry::HealthSample::alignment);
  ASSERT_EQ(before.size(), static_cast<std::size_t>(model.options.model.layers));
  for (const double apart : before) EXPECT_LT(apart, 0.8) << "random rows";
  const Tensor w = model.gate_up();
  const std::int64_t ffn = w.rows() / 2, bytes = w.cols() * static_cast<std::int64_t>(sizeof(float));
  std::memcpy(w.slice_rows(ffn + 3, ffn + 4).data, w.slice_rows(3, 4).data, static_cast<std::size_t>(bytes));
  std::memcpy(w.slice_rows(ffn + 5, ffn + 6).data, w.slice_rows(4, 5).data, static_cast<std::size_t>(bytes));
  const std::vector<double> found = model.values(&telemetry::HealthSample::alignment);
  EXPECT_LT(found[0], 0.8);
  EXPECT_NEAR(found[1], 1, 1e-5);
}

// The oracle casts each block with the scale of the MX specification, 2^(8 - e), and counts the largest code.
TEST(HealthOfNorms, CountsTheLargestCodesOfTheSpecification) {
  const Rng rng(5, RngStream::test);
  std::uint64_t next = 0;
  double largest = 0;
  for (const std::size_t count : {1u, 31u, 64u, 100u, 4096u}) {
    for (const double deviation : {0.0, 0.01, 0.1, 1.0, 100.0}) {
      for (const double mean : {1e-3, 0.86, 0.99, 1.0, 1.6, 1.9, 3e5}) {
        std::vector<double> weights(count);
        for (double& w : weights)
          w = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(mean * (1 + deviation * rng.normal(next++))))));
        std::size_t at_edge = 0;
        for (std::size_t i = 0; i < count; ++i) {
          double amax = 0;
          for (std::size_t j = i / 32 * 32; j < std::min(count, (i / 32 + 1) * 32); ++j)
            amax = std::max(amax, std::abs(weights[j]));
          int exponent = 0;  // amax = m 2^exponent with m in [0.5, 1)
          std::frexp(amax, &exponent);
          const auto scaled = static_cast<float>(std::ldexp(weights[i], 8 - (exponent - 1)));
          at_edge += (encode_fp8(Fp8Format::e4m3, scaled) & 0x7F) == fp8_layout(Fp8Format::e4m3).max_code;
        }
        const double expected = 100.0 * static_cast<double>(at_edge) / static_cast<double>(count);
        EXPECT_DOUBLE_EQ(train::edge_pct(weights), expected) << count << " weights of " << mean << ", deviation " << deviation;
        largest = std::max(largest, expected);
      }
    }
  }
  EXPECT_EQ(largest, 100.0);
  double most = 0;  // of weights that are spread out, wherever in its binade their mean lies
  for (int i = 0; i < 32; ++i) {
    std::vector<double> weights(8192);
    for (double& w : weights) w = std::exp2(i / 32.0) * (1 + 0.1 * rng.normal(next++));
    most = std::max(most, train::edge_pct(weights));
  }
  EXPECT_GT(most, 22);
  EXPECT_LT(most, telemetry::kMaxEdgePct);
  EXPECT_EQ(train::edge_pct(std::vector<double>(64, 1.0)), 0.0) << "a new norm";
  EXPECT_EQ(train::edge_pct(std::vector<double>(64, 0.99)), 100.0);
  EXPECT_EQ(train::edge_pct(std::vector<double>(64, 0.0)), 0.0);
  EXPECT_EQ(train::edge_pct({}), 0.0);
}

// Each norm gives one sample, whatever is recomputed, and none if nobody asks.
TEST(HealthOfNorms, SamplesEveryNormOnce) {
  for (const models::DecoderConfig& config : {tiny_config(), tiny_qwen3_config(), tiny_gpt_neox_config(true)}) {
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      train::EngineOptions options = tiny_options("mxfp8");
      options.model = config;
      options.model.head_dim = 16;
      options.checkpointing = mode;
      train::HealthWatch health;
      options.watch = &health;
      const auto engine = make_engine(options);
      std::map<std::string, double> expected, actual;
      for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
        if (p.spec.init != parallel::Init::ones) continue;
        const auto count = static_cast<std::size_t>(p.elements()), at_edge = expected.size() % count;
        for (std::size_t i = 0; i < count; ++i) p.primary().as<float>()[i] = i < at_edge ? 0.97f : 0.8f;
        expected[p.spec.name.substr(0, p.spec.name.rfind('.')) + ".n"] =
            100.0 * static_cast<double>(at_edge) / static_cast<double>(count);
      }
      engine->refresh();
      const auto samples = [&] {
        engine->begin_step();
        engine->forward_backward(random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab).batch(), &health);
        engine->stream().synchronize();
        return health.take(3);
      };
      for (const telemetry::HealthSample& s : samples()) EXPECT_TRUE(s.of_linear() && !s.edge_pct) << s.tensor;
      health.watch_norms();
      for (const telemetry::HealthSample& s : samples()) {
        EXPECT_EQ(s.of_linear(), !s.edge_pct) << s.tensor;
        if (s.edge_pct) {
          EXPECT_TRUE(actual.emplace(s.tensor, *s.edge_pct).second) << s.tensor << " twice";
        }
      }
      EXPECT_EQ(actual, expected);
    }
  }
}

// With queries and keys of zero every logit is 0. The token at position t sees t + 1 keys, so its log-sum-exp is log(t + 1).
TEST(AttentionHealth, IsTheRangeOfTheLogSumExp) {
  for (const nn::Checkpointing checkpointing : {nn::Checkpointing::none, nn::Checkpointing::full}) {
    train::HealthWatch health;
    train::EngineOptions options = tiny_options("bf16");
    options.checkpointing = checkpointing;
    options.watch = &health;
    const auto engine = make_engine(options);
    std::vector<std::string> layers;
    for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
      const std::size_t end = p.spec.name.find(".q_proj.fused.weight");
      if (end == std::string::npos) continue;
      engine->stream().zero(p.primary().data, p.primary().bytes());
      layers.push_back(p.spec.name.substr(0, end));
    }
    engine->refresh();
    engine->begin_step();
    engine->forward_backward(random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab).batch(), &health);
    engine->stream().synchronize();
    const std::vector<telemetry::AttentionSample> samples = health.take_attention(3);
    ASSERT_EQ(samples.size(), static_cast<std::size_t>(options.model.layers)) << "each layer once";
    ASSERT_EQ(layers.size(), samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      EXPECT_EQ(samples[i].step, 3);
      EXPECT_EQ(samples[i].layer, layers[i]);
      EXPECT_EQ(samples[i].lse_min, 0.0);
      EXPECT_NEAR(samples[i].lse_max, std::log(static_cast<double>(options.seq_len)), 1e-6);  // a rounding to FP32
    }
    EXPECT_TRUE(health.take_attention(3).empty());
  }
}

// Ranks that share the weights must report the samples of one rank, bit for bit, because the same pass measures the same values.
class HealthOfShards : public ::testing::TestWithParam<std::string> {};

TEST_P(HealthOfShards, IsThatOfWholeWeights) {
  train::EngineOptions options = tiny_options(GetParam());
  const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
  const auto samples_of = [&](train::Engine& engine, train::HealthWatch& health) {
    parallel::ParameterStore& store = engine.model().parameters();
    store.initialise(engine.stream(), 7);
    for (parallel::Parameter& p : store.parameters()) {
      if (p.spec.init != parallel::Init::ones) continue;
      p.spec.init = parallel::Init::normal;  // norms that differ
      p.spec.init_std = 0.3;
      store.initialise(engine.stream(), p, 7);
    }
    engine.refresh();
    health.take(0);
    health.watch_norms();
    for (std::uint32_t step = 1; step <= 2; ++step) {
      engine.begin_step(2);
      engine.forward_backward(tokens.batch(), &health);
      engine.observe_weights(health);
      engine.forward_backward(tokens.batch(), nullptr);
      engine.apply(0.0, step);  // changes the scales, but no weight because the learning rate is 0
    }
    engine.stream().synchronize();
    return health.take(1);
  };
  train::HealthWatch watch;
  watch.set_gated(train::gated_linears(options));
  options.watch = &watch;
  train::Engine alone(options, DeviceKind::cpu);
  const std::vector<telemetry::HealthSample> expected = samples_of(alone, watch);

  for (const parallel::Weights weights : {parallel::Weights::kept, parallel::Weights::resharded}) {
    const parallel::Layout layout{.mesh = parallel::Mesh({1, 3, 1, 1}), .weights = weights};
    ThreadRanks threads;
    run_ranks(3, [&](int rank) {
      const auto device = make_device(DeviceKind::cpu);
      const parallel::Groups groups = threads.groups(layout.mesh, rank, *device);
      train::HealthWatch own;
      own.set_gated(train::gated_linears(options));
      train::EngineOptions part = options;
      part.layout = layout;
      part.rank = rank;
      part.watch = &own;
      train::Engine engine(part, *device, groups);
      const std::vector<telemetry::HealthSample> samples = samples_of(engine, own);
      EXPECT_EQ(engine.device().memory().total_peak, train::measure(part, DeviceKind::cpu).total());
      ASSERT_EQ(samples.size(), expected.size()) << "each operand once a step";
      std::size_t of_weights = 0, of_norms = 0;
      for (const telemetry::HealthSample& s : samples) {
        if (!s.of_linear()) {
          ++of_norms;
          const auto equal = [&](const telemetry::HealthSample& e) { return e.tensor == s.tensor && e.edge_pct == s.edge_pct; };
          EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), equal)) << s.tensor << " " << *s.edge_pct;
        }
        if (!s.tensor.ends_with(".w")) continue;
        const auto same = [&](const telemetry::HealthSample& e) {
          return e.tensor == s.tensor && e.amax == s.amax && e.scale == s.scale && e.saturated_pct == s.saturated_pct &&
                 e.flushed_pct == s.flushed_pct && e.sqnr_db == s.sqnr_db && e.alignment == s.alignment;
        };
        EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), same)) << s.tensor << " amax " << s.amax << " " << s.sqnr_db;
        ++of_weights;
        EXPECT_EQ(s.alignment.has_value(), s.tensor.ends_with(".gate_proj.fused.w")) << s.tensor;
      }
      EXPECT_GT(of_weights, 0u);
      EXPECT_EQ(of_norms, 2u * 5) << "two steps";
    });
  }
}

std::vector<std::string> fp8_recipes() {
  std::vector<std::string> result = all_recipes();
  std::erase_if(result, [](const std::string& recipe) { return !recipe_named(recipe).is_fp8(); });
  return result;
}

INSTANTIATE_TEST_SUITE_P(Recipes, HealthOfShards, ::testing::ValuesIn(fp8_recipes()));

std::vector<HealthCase> health_cases() {
  std::vector<HealthCase> result;
  for (const std::string& recipe : fp8_recipes()) {
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      result.push_back({recipe, mode});
    }
  }
  return result;
}

std::string name_of_case(const ::testing::TestParamInfo<HealthCase>& param) {
  const char* const modes[] = {"_none", "_selective", "_full"};
  return param.param.recipe + modes[static_cast<std::size_t>(param.param.checkpointing)];
}

INSTANTIATE_TEST_SUITE_P(Recipes, Health, ::testing::ValuesIn(health_cases()), name_of_case);

}  // namespace
}  // namespace octet::testing
