#include "octet/telemetry/meter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "octet/base/require.h"

namespace octet::telemetry {
namespace {

struct Clock {
  double now = 100;
  StepMeter meter(std::int64_t total, std::int64_t processes) {
    return StepMeter({.total_steps = total, .processes = processes, .clock = [this] { return now; }});
  }
};

TEST(StepMeter, MeansOverTheInterval) {
  Clock clock;
  StepMeter meter = clock.meter(100, 4);
  for (int i = 0; i < 5; ++i) {
    clock.now += 2;
    meter.add_data_time(0.25);
    meter.add_step(800, 8);
  }
  EXPECT_DOUBLE_EQ(meter.interval().tokens_per_s, 400) << "a look begins no new interval";
  const auto interval = meter.take();
  EXPECT_EQ(interval.steps, 5);
  EXPECT_DOUBLE_EQ(interval.step_time_s, 2);
  EXPECT_DOUBLE_EQ(interval.data_time_s, 0.25);
  EXPECT_DOUBLE_EQ(interval.tokens_per_s, 400);
  EXPECT_DOUBLE_EQ(interval.tokens_per_s_per_process, 100);
  EXPECT_DOUBLE_EQ(interval.samples_per_s, 4);
  // The next interval does not include this one.
  clock.now += 4;
  meter.add_step(800, 8);
  const auto next = meter.take();
  EXPECT_DOUBLE_EQ(next.tokens_per_s, 200);
  EXPECT_DOUBLE_EQ(next.samples_per_s, 2);
  EXPECT_DOUBLE_EQ(next.data_time_s, 0);
  EXPECT_EQ(meter.take().steps, 0);
}

TEST(StepMeter, PausesCountForTheEtaOnly) {
  Clock clock;
  StepMeter meter = clock.meter(20, 1);
  clock.now += 2;
  meter.add_step(100, 1);
  {
    const PausedMeter evaluation(meter);
    clock.now += 5;
    const PausedMeter nested(meter);
    clock.now += 1;
  }
  clock.now += 2;
  meter.add_step(100, 1);
  EXPECT_DOUBLE_EQ(meter.elapsed_s(), 10);
  EXPECT_DOUBLE_EQ(meter.eta_s(12), 8 * 10.0 / 2) << "the run was resumed after step 10";
  const auto interval = meter.take();
  EXPECT_DOUBLE_EQ(interval.step_time_s, 2);
  EXPECT_DOUBLE_EQ(interval.tokens_per_s, 50);
}

TEST(StepMeter, TakenDuringAPause) {
  Clock clock;
  StepMeter meter = clock.meter(2, 1);
  clock.now += 3;
  meter.add_step(30, 1);
  meter.pause();
  clock.now += 50;
  EXPECT_DOUBLE_EQ(meter.take().tokens_per_s, 10);
  meter.resume();
  clock.now += 1;
  meter.add_step(30, 1);
  EXPECT_DOUBLE_EQ(meter.take().tokens_per_s, 30);
  EXPECT_THROW(meter.resume(), Error);
}

TEST(StepMeter, EtaAtBothEnds) {
  Clock clock;
  StepMeter meter = clock.meter(1, 1);
  EXPECT_TRUE(std::isnan(meter.eta_s(0)));
  clock.now += 1;
  meter.add_step(1, 1);
  EXPECT_EQ(meter.eta_s(1), 0);
  meter.add_step(1, 1);
  EXPECT_EQ(meter.eta_s(2), 0);
}

TEST(StepMeter, StepsThatARollbackRepeatsDoNotShortenTheEta) {
  Clock clock;
  StepMeter meter = clock.meter(10, 1);
  for (int i = 0; i < 12; ++i) {  // steps 1 to 6, and after a rollback 1 to 6 again
    clock.now += 2;
    meter.add_step(1, 1);
  }
  EXPECT_DOUBLE_EQ(meter.eta_s(6), 4 * 2);
}

TEST(StepMeter, AClockThatStandsStillGivesNoInfinity) {
  Clock clock;
  StepMeter meter = clock.meter(10, 1);
  meter.add_step(100, 1);
  EXPECT_EQ(meter.take().tokens_per_s, 0);
}

}  // namespace
}  // namespace octet::telemetry
