// Compares predictions with measurements on one H100 and on one, two and four H200 in tests/golden/plan/measured.tsv.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "octet/app/gpus.h"
#include "octet/app/plan.h"
#include "octet/base/require.h"
#include "octet/train/setup.h"
#include "octet/train/world.h"
#include "support/paths.h"

namespace octet::app {
namespace {

struct Row {
  std::string name, gpu, used, preset;
  int gpus = 0;
  double tokens_per_s = 0;
  std::vector<std::string> settings;
};

std::vector<Row> measured_rows() {
  std::ifstream table(concat(testing::golden_dir(), "/plan/measured.tsv"));
  std::vector<Row> rows;
  std::string line;
  std::getline(table, line);
  std::getline(table, line);
  EXPECT_EQ(line, "name\tgpus\tgpu\tused\ttokens_per_s_per_gpu\tpreset\tsettings");
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    Row& row = rows.emplace_back();
    fields >> row.name >> row.gpus >> row.gpu >> row.used >> row.tokens_per_s >> row.preset;
    for (std::string setting; fields >> setting;) row.settings.push_back(setting.substr(2));
  }
  return rows;
}

plan::Step predicted(const Row& row) {
  train::Config config = train::load_config(concat(testing::source_dir(), "/configs/", row.preset, ".toml"), row.settings);
  config.run.device = "cuda";
  const plan::Cluster cluster = parse_cluster(concat(row.gpus, "x", row.gpu), 0);
  return step_of(train::layouts_allowed(config, train::mesh_of(config, cluster.gpus)).front(), cluster);
}

TEST(PlanRows, AreWithinTenPerCentOfWhatWasMeasured) {
  const std::vector<Row> rows = measured_rows();
  EXPECT_EQ(rows.size(), 51u);
  for (const Row& row : rows) {
    const plan::Step step = predicted(row);
    EXPECT_NEAR(step.tokens_per_s / row.tokens_per_s, 1, 0.1) << row.name << " on " << row.gpu << ": " << step.tokens_per_s;
    EXPECT_EQ(step.bound, plan::Bound::compute) << row.name;
    if (row.gpus > 1) continue;
    EXPECT_EQ(step.wire_s, 0) << row.name;
    EXPECT_NEAR(step.exposed_s, 0, 1e-12) << row.name;
  }
}

// The overlap is the only number of the model that was fitted to rows of several GPUs. It must minimise the squares of the
// residuals of their times.
TEST(PlanRows, TheOverlapIsTheBestForTheRowsItWasFittedTo) {
  struct Fitted {
    plan::Step step;
    double tokens_per_s;
  };
  std::vector<Fitted> rows;
  for (const Row& row : measured_rows()) {
    if (row.used == "overlap") rows.push_back({predicted(row), row.tokens_per_s});
  }
  ASSERT_EQ(rows.size(), 6u);
  const auto squares = [&](double overlap) {
    double sum = 0;
    for (const auto& [step, measured] : rows) {
      const double seconds = step.compute_s + step.memory_s + step.waited_s + (1 - overlap) * (step.wire_s - step.waited_s);
      const double residual = std::log(step.tokens_per_s * step.seconds / seconds / measured);
      sum += residual * residual;
    }
    return sum;
  };
  double best = 0;
  for (int i = 0; i <= 1000; ++i) {
    if (squares(i / 1000.0) < squares(best)) best = i / 1000.0;
  }
  EXPECT_NEAR(plan::kOverlap, best, 0.005) << "to the two digits that it is given with";
  EXPECT_LT(std::sqrt(squares(plan::kOverlap) / 6), 0.01) << "one number serves all six";
}

}  // namespace
}  // namespace octet::app
