#include "octet/telemetry/health_verdict.h"

#include <gtest/gtest.h>

#include <limits>

namespace octet::telemetry {
namespace {

HealthSample sample(std::int64_t step, const std::string& tensor, double saturated, double flushed, double sqnr) {
  return {.step = step, .tensor = tensor, .saturated_pct = saturated, .flushed_pct = flushed, .sqnr_db = sqnr};
}

TEST(HealthVerdict, NamesWhatIsBeyondALimitWithItsFigure) {
  const std::vector<HealthSample> samples = {
      sample(1, "a.x", 0, 0.1, 31.5), sample(1, "a.w", 0, 0, 31.6), sample(1, "a.g", 0.2, 0.5, 25.5),
      sample(1, "b.x", 0, 12, 31.4),  sample(1, "b.w", 0, 0, 31.5), sample(1, "b.g", 0, 0.5, 25.4),
      sample(1, "c.x", 0, 0.1, 25.3), sample(1, "c.w", 0, 0, 31.5), sample(1, "c.g", 0, 0.5, 25.6),
  };
  const std::vector<HealthFinding> findings = find_unhealthy(samples);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].layer, "a");
  EXPECT_EQ(findings[0].operand, 'g');
  EXPECT_EQ(findings[0].figure, "saturated");
  EXPECT_EQ(findings[0].value, 0.2);
  EXPECT_EQ(findings[0].limit, 0.1);
  EXPECT_EQ(findings[1].layer, "b");
  EXPECT_EQ(findings[1].figure, "flushed to zero");
  EXPECT_EQ(findings[1].value, 12);
  EXPECT_EQ(findings[1].limit, 10);
  // 25.3 dB would be good for a gradient in E5M2, but the other inputs have a median of 31.4 dB.
  EXPECT_EQ(findings[2].layer, "c");
  EXPECT_EQ(findings[2].figure, "signal to noise");
  EXPECT_EQ(findings[2].unit, "dB");
  EXPECT_EQ(findings[2].value, 25.3);
  EXPECT_DOUBLE_EQ(findings[2].limit, 25.4);
}

TEST(HealthVerdict, JudgesByTheMiddleSample) {
  // `start` is bad only at first, as delayed scales without history are. `end` is bad in two samples of three.
  const std::vector<HealthSample> start = {sample(1, "a.g", 5, 40, 3), sample(2, "a.g", 0, 1, 25), sample(3, "a.g", 0, 1, 25)};
  EXPECT_TRUE(find_unhealthy(start).empty());
  const std::vector<HealthSample> end = {sample(1, "a.g", 0, 1, 25), sample(2, "a.g", 0, 30, 25), sample(3, "a.g", 0, 40, 25)};
  ASSERT_EQ(find_unhealthy(end).size(), 1u);
  EXPECT_EQ(find_unhealthy(end)[0].value, 30);
}

// The median of the samples is healthy.
TEST(HealthVerdict, JudgesByTheLatestSampleToo) {
  const std::vector<HealthSample> run = {sample(1, "a.w", 0, 0, 31), sample(1, "b.w", 0, 0, 31),    sample(2, "a.w", 0, 0, 31),
                                         sample(2, "b.w", 0, 0, 31), sample(30, "a.w", 100, 0, 31), sample(30, "b.w", 0, 0, 12)};
  const std::vector<HealthFinding> findings = find_unhealthy(run);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(sentence_of(findings[0]), "weight, saturated in step 30: 100%, the limit is 0.5%");
  EXPECT_EQ(findings[1].figure, "signal to noise");
  EXPECT_EQ(layers_of(findings), (std::vector<std::string>{"a", "b"}));
  // Single samples of a healthy run may be beyond the limit of the median.
  EXPECT_TRUE(find_unhealthy(
                  std::vector<HealthSample>{sample(1, "a.w", 0, 0, 31), sample(2, "a.w", 0, 0, 31), sample(3, "a.w", 0.2, 0, 31)})
                  .empty());
  // A linear that has since been kept in BF16 has no part in the latest sample.
  const std::vector<HealthSample> demoted = {sample(1, "a.w", 0, 0, 31), sample(2, "a.w", 0, 0, 31), sample(3, "a.w", 100, 0, 31),
                                             sample(4, "b.w", 0, 0, 31)};
  EXPECT_TRUE(find_unhealthy(demoted).empty());
  const std::vector<AttentionSample> logits = {{1, "a", 0, 10}, {2, "a", 0, 10}, {1200, "a", 0, 60'000}};
  const std::vector<HealthFinding> diverged = find_unhealthy({}, logits);
  ASSERT_EQ(diverged.size(), 1u);
  EXPECT_EQ(sentence_of(diverged[0]),
            "logits, largest log-sum-exp in step 1,200: 60000, the limit is 50000 (Wortsman et al., 2023)");
}

TEST(HealthVerdict, WhatIsNotFiniteSaysNothing) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<HealthSample> samples = {sample(1, "a.x", 0, 0, inf), sample(1, "b.x", 0, kUnknown, 31)};
  EXPECT_TRUE(find_unhealthy(samples).empty());
  EXPECT_TRUE(find_unhealthy({}).empty());
}

TEST(HealthVerdict, NamesEachLayerOnce) {
  const std::vector<HealthSample> samples = {sample(1, "b.x", 1, 50, 31), sample(1, "a.x", 1, 0, 31), sample(1, "b.g", 1, 0, 31)};
  EXPECT_EQ(find_unhealthy(samples).size(), 4u);
  EXPECT_EQ(layers_of(find_unhealthy(samples)), (std::vector<std::string>{"b", "a"}));
}

TEST(HealthVerdict, NamesNoOperandsOfAttentionAsLinears) {
  const std::vector<HealthFinding> found = find_unhealthy(std::vector<HealthSample>{sample(1, "a.k.x", 1, 50, 31)});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].layer, "a.k");
  EXPECT_TRUE(layers_of(found).empty());
}

std::vector<HealthSample> inputs(const std::vector<double>& kurtosis, double amax_to_rms = 20) {
  std::vector<HealthSample> samples;
  for (const double k : kurtosis) {
    samples.push_back(sample(static_cast<std::int64_t>(samples.size()) + 1, "a.x", 0, 0, 31));
    samples.back().kurtosis = k;
    samples.back().amax_to_rms = amax_to_rms;
  }
  return samples;
}

TEST(HealthVerdict, WatchesInputsWhoseKurtosisGrows) {
  EXPECT_TRUE(find_unhealthy(inputs({3, 3, 4, 5, 8, 20, 29, 29})).empty()) << "not ten times a normal distribution's";
  EXPECT_TRUE(find_unhealthy(inputs({1, 1, 1, 2, 8, 20, 29, 29})).empty()) << "nor from below a normal distribution's";
  const std::vector<HealthFinding> grown = find_unhealthy(inputs({3, 3, 4, 5, 8, 20, 31, 400}));
  ASSERT_EQ(grown.size(), 1u);
  EXPECT_EQ(grown[0].concern, Concern::watch);
  EXPECT_EQ(grown[0].figure, "growth of its kurtosis");
  EXPECT_NEAR(grown[0].value, 31.0 / 3, 1e-12) << "medians of two samples each, the lower one";
  EXPECT_EQ(sentence_of(grown[0]), "input, growth of its kurtosis: 10.3×, the limit is 10× (Hernández-Cano et al., 2025)");
  EXPECT_TRUE(find_unhealthy(inputs({3, 3, 4, 5, 8, 20, 400})).empty()) << "too few samples";
  EXPECT_TRUE(find_unhealthy(inputs({900, 900, 900, 900, 900, 900, 900, 900})).empty()) << "large, but not growing";
  EXPECT_TRUE(layers_of(grown).empty()) << "nothing is kept in BF16 for it yet";
}

TEST(HealthVerdict, WatchesMassiveActivations) {
  const std::vector<HealthFinding> massive = find_unhealthy(inputs({3, 3, 3}, 1001));
  ASSERT_EQ(massive.size(), 1u);
  EXPECT_EQ(massive[0].figure, "largest against root mean square");
  EXPECT_EQ(massive[0].source, std::string("Sun et al., 2024"));
  EXPECT_TRUE(find_unhealthy(inputs({3, 3, 3}, 1000)).empty());
  std::vector<HealthSample> weights = inputs({3}, 5000);
  weights[0].tensor = "a.w";
  EXPECT_TRUE(find_unhealthy(weights).empty()) << "activations alone";
}

TEST(HealthVerdict, WatchesChannelsWhoseGateAndUpRowsAlign) {
  const auto weight = [](std::optional<double> alignment) {
    std::vector<HealthSample> samples = inputs({3});
    samples[0].tensor = "a.gate_proj.fused.w";
    samples[0].alignment = alignment;
    return samples;
  };
  EXPECT_TRUE(find_unhealthy(weight(std::nullopt)).empty());
  EXPECT_TRUE(find_unhealthy(weight(0.9)).empty());
  const std::vector<HealthFinding> aligned = find_unhealthy(weight(0.97));
  ASSERT_EQ(aligned.size(), 1u);
  EXPECT_EQ(sentence_of(aligned[0]),
            "weight, cosine of a channel's gate and up rows: 0.970, the limit is 0.9 (Fishman et al., 2024)");
}

TEST(HealthVerdict, WatchesAChannelThatHoldsTheLargestElements) {
  const auto input = [](double pct) {
    std::vector<HealthSample> samples = inputs({3});
    samples[0].top_channel_pct = pct;
    return samples;
  };
  EXPECT_TRUE(find_unhealthy(input(25)).empty());
  EXPECT_TRUE(find_unhealthy(input(kUnknown)).empty());
  const std::vector<HealthFinding> found = find_unhealthy(input(62.5));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].concern, Concern::watch);
  EXPECT_EQ(sentence_of(found[0]),
            "input, share of the top channel in all channels' largest elements: 62.5%, the limit is 25% (Fishman et al., 2024)");
  EXPECT_TRUE(layers_of(found).empty()) << "nothing is kept in BF16 for it yet";
}

TEST(HealthVerdict, WatchesNormsAtTheEdgeOfTheirBinade) {
  const auto norms = [](double edge_pct) {
    return std::vector<HealthSample>{{.step = 1, .tensor = "a.x", .saturated_pct = 0, .flushed_pct = 0, .sqnr_db = 31},
                                     {.step = 1, .tensor = "b.input_layernorm.n", .edge_pct = 0.0},
                                     {.step = 1, .tensor = "a.input_layernorm.n", .edge_pct = edge_pct}};
  };
  EXPECT_TRUE(find_unhealthy(norms(30)).empty());
  const std::vector<HealthFinding> found = find_unhealthy(norms(62.5));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].layer, "a.input_layernorm");
  EXPECT_EQ(found[0].concern, Concern::watch);
  EXPECT_EQ(sentence_of(found[0]), "weights of the norm, at the edge of their binade: 62.5%, the limit is 30% (Su et al., 2025)");
  EXPECT_TRUE(layers_of(found).empty()) << "a norm is no linear";
}

TEST(HealthVerdict, JudgesTheLogitsOfAttention) {
  const auto attention = [](double lse) {
    return std::vector<AttentionSample>{{.step = 1, .layer = "b", .lse_min = 0, .lse_max = 5},
                                        {.step = 1, .layer = "a", .lse_min = 0, .lse_max = lse}};
  };
  EXPECT_TRUE(find_unhealthy({}, attention(1000)).empty());
  const std::vector<HealthFinding> large = find_unhealthy({}, attention(1001)), diverging = find_unhealthy({}, attention(20000));
  ASSERT_EQ(large.size(), 1u);
  EXPECT_EQ(large[0].layer, "a");
  EXPECT_EQ(large[0].concern, Concern::watch);
  ASSERT_EQ(diverging.size(), 1u);
  EXPECT_EQ(diverging[0].concern, Concern::danger);
  EXPECT_EQ(sentence_of(diverging[0]), "logits, largest log-sum-exp: 20000, the limit is 10000 (Wortsman et al., 2023)");
  EXPECT_TRUE(layers_of(diverging).empty()) << "attention is no linear";
}

}  // namespace
}  // namespace octet::telemetry
