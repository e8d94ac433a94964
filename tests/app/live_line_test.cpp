#include "octet/app/live_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace octet::app {
namespace {

const LiveStep kStep{.label = "", .step = 500, .steps = 1000, .loss = 4.8123, .tokens_per_s = 17011.8, .eta = "3m12s"};
const std::vector<double> kFalling{8, 7, 6, 5, 4, 3, 2, 1};

std::size_t columns_of(const std::string& text) {
  std::size_t columns = 0;
  for (const char c : text) columns += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return columns;
}

TEST(LiveLine, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(live_text(kStep, kFalling, 100, Glyphs::unicode),
            "━━━━━━━━━─────────   50%  step 500/1000  loss 4.812 █▇▆▅▄▃▂▁  17,012 tok/s/gpu  eta 3m12s");
  LiveStep labelled = kStep;
  labelled.label = "fp8_block";
  labelled.step = 1000;
  EXPECT_EQ(live_text(labelled, {}, 90, Glyphs::ascii),
            "fp8_block  [#############]  100%  step 1000/1000  loss 4.812  17,012 tok/s/gpu  eta 3m12s");
}

// A field disappears when there is no room for it, and only after all fields that matter less.
TEST(LiveLine, FitsEveryWidth) {
  LiveStep at = kStep;
  at.label = "fp8_block";
  const std::vector<std::string> in_order{"step 500/1000", "loss 4.812", "eta 3m12s",        "fp8_block",
                                          " 50%",          "━",          "17,012 tok/s/gpu", "█"};
  std::size_t fullest = 0;
  for (int columns = 0; columns <= 200; ++columns) {
    const std::string text = live_text(at, kFalling, columns, Glyphs::unicode);
    EXPECT_LE(columns_of(text), static_cast<std::size_t>(std::max(columns - 1, 0))) << columns;
    if (columns > 13) {
      EXPECT_NE(text.find("step 500/1000"), std::string::npos) << columns;
    }
    std::size_t shown = 0;
    for (const std::string& field : in_order) shown += text.find(field) != std::string::npos;
    EXPECT_GE(shown, fullest) << columns;
    fullest = shown;
  }
  EXPECT_EQ(fullest, in_order.size());
  EXPECT_EQ(live_text(at, kFalling, 28, Glyphs::unicode), "step 500/1000  loss 4.812");
  EXPECT_EQ(live_text(at, kFalling, 9, Glyphs::unicode), "step 500");
}

TEST(LiveLine, TheSparklineSpansItsOwnRange) {
  const auto spark = [](const std::vector<double>& losses) {
    const std::string text = live_text({.step = 1, .steps = 2, .loss = 1}, losses, 50, Glyphs::unicode);
    return text.substr(text.find("loss 1.000") + 10);
  };
  EXPECT_EQ(spark({2, 2, 2}), " ▁▁▁");
  EXPECT_EQ(spark({1, std::nan(""), INFINITY, 2}), " ▁××█");
  EXPECT_EQ(spark({}), "");
  std::vector<double> many(100, 5.0);
  many.back() = 4;
  EXPECT_EQ(columns_of(spark(many)), 1u + 10u) << "the latest alone";
  EXPECT_EQ(spark(many).substr(spark(many).size() - 6), "█▁");
}

TEST(LiveLine, WhatIsUnknownIsLeftOut) {
  EXPECT_EQ(live_text({.step = 0, .steps = 0}, {}, 30, Glyphs::ascii), "[...........]    0%  step 0/0");
  EXPECT_EQ(live_text({.step = 7, .steps = 5}, {}, 27, Glyphs::ascii), "[########]  100%  step 7/5") << "beyond the end";
}

TEST(LiveLine, ReadsAConsoleLine) {
  const LiveStep at = live_step(
      "step 120/1000  loss 4.812  grad 0.83  lr 2.9e-04  17,012 tok/s/gpu  875 TFLOPS  mfu 88.5%  61.2 GiB  eta 3m12s  eval "
      "4.700");
  EXPECT_EQ(at.step, 120);
  EXPECT_EQ(at.steps, 1000);
  EXPECT_DOUBLE_EQ(at.loss, 4.812);
  EXPECT_DOUBLE_EQ(at.tokens_per_s, 17012);
  EXPECT_EQ(at.eta, "3m12s");
  EXPECT_EQ(at.worker, telemetry::Worker::gpu);
  const LiveStep on_cpu = live_step("step 1/2  loss 4.812  1,017 tok/s/process  53.4 MiB");
  EXPECT_DOUBLE_EQ(on_cpu.tokens_per_s, 1017);
  EXPECT_TRUE(live_text(on_cpu, {}, 80, Glyphs::ascii).ends_with("step 1/2  loss 4.812  1,017 tok/s/process"));
  EXPECT_TRUE(std::isnan(live_step("step 1/3  loss nan").loss));
  for (const char* other : {"", "step", "step x/3", "step 1", "memory plan"}) EXPECT_EQ(live_step(other).steps, 0) << other;
}

TEST(ConsoleLine, LosesWhatMattersLeastFirst) {
  const std::string line =
      "step 120/1000  loss 4.812  grad 0.83  lr 2.9e-04  17,012 tok/s/gpu  875 TFLOPS  mfu 88.5%  61.2 GiB  eta 3m12s  eval "
      "4.700";
  EXPECT_EQ(fit_console_line(line, 200), line);
  EXPECT_EQ(fit_console_line(line, static_cast<int>(line.size())), line);
  EXPECT_EQ(fit_console_line(line, 80), "step 120/1000  loss 4.812  grad 0.83  17,012 tok/s/gpu  875 TFLOPS  eval 4.700");
  EXPECT_EQ(fit_console_line(line, 40), "step 120/1000  loss 4.812  eval 4.700");
  EXPECT_EQ(fit_console_line(line, 10), "step 120/1");
  EXPECT_EQ(fit_console_line("step 1/2  loss 4.812  7 tok/s/process  53.4 MiB  eta 1.0s", 40),
            "step 1/2  loss 4.812  7 tok/s/process");
}

}  // namespace
}  // namespace octet::app
