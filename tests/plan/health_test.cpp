#include "octet/plan/health.h"

#include <gtest/gtest.h>

#include <limits>

namespace octet::plan {
namespace {

using telemetry::HealthSample;

HealthSample sample(std::int64_t step, const std::string& tensor, double saturated, double flushed, double sqnr) {
  return {.step = step, .tensor = tensor, .saturated_pct = saturated, .flushed_pct = flushed, .sqnr_db = sqnr};
}

TEST(Health, NamesWhatIsBeyondALimitWithItsFigure) {
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

TEST(Health, JudgesByTheMiddleSample) {
  // `start` is bad only at first, as delayed scales without history are. `end` is bad in two samples of three.
  const std::vector<HealthSample> start = {sample(1, "a.g", 5, 40, 3), sample(2, "a.g", 0, 1, 25), sample(3, "a.g", 0, 1, 25)};
  EXPECT_TRUE(find_unhealthy(start).empty());
  const std::vector<HealthSample> end = {sample(1, "a.g", 0, 1, 25), sample(2, "a.g", 0, 30, 25), sample(3, "a.g", 0, 40, 25)};
  ASSERT_EQ(find_unhealthy(end).size(), 1u);
  EXPECT_EQ(find_unhealthy(end)[0].value, 30);
}

TEST(Health, WhatIsNotFiniteSaysNothing) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<HealthSample> samples = {sample(1, "a.x", 0, 0, inf), sample(1, "b.x", 0, telemetry::kUnknown, 31)};
  EXPECT_TRUE(find_unhealthy(samples).empty());
  EXPECT_TRUE(find_unhealthy({}).empty());
}

TEST(Health, NamesEachLayerOnce) {
  const std::vector<HealthSample> samples = {sample(1, "b.x", 1, 50, 31), sample(1, "a.x", 1, 0, 31), sample(1, "b.g", 1, 0, 31)};
  EXPECT_EQ(find_unhealthy(samples).size(), 4u);
  EXPECT_EQ(layers_of(find_unhealthy(samples)), (std::vector<std::string>{"b", "a"}));
}

}  // namespace
}  // namespace octet::plan
