// The prediction beside what was measured on one H200 (docs/performance.md, 2026-11-21; tools/gpu.sh has the settings).
#include <gtest/gtest.h>

#include "octet/app/gpus.h"
#include "octet/app/plan.h"
#include "octet/base/require.h"

namespace octet::app {
namespace {

struct Row {
  const char *name, *preset;
  std::vector<std::string> settings;
  double tokens_per_s;
};

const std::vector<std::string> kNarrow = {"training.grad_dtype=bf16", "optimizer.state_dtype=bf16",
                                          "optimizer.master_weights=false"};
const std::vector<std::string> kLong = {"training.seq_len=8192", "training.micro_batch_size=1", "training.global_batch_size=8"};
const std::vector<std::string> kShort = {"training.seq_len=1024", "training.micro_batch_size=16",
                                         "training.global_batch_size=64"};
const std::vector<std::string> kTwo = {"training.seq_len=8192", "training.micro_batch_size=2", "training.global_batch_size=8"};
const std::vector<std::string> kWide = {"model.num_hidden_layers=8", "training.seq_len=8192", "training.micro_batch_size=2",
                                        "training.global_batch_size=2"};
const std::vector<std::string> kAll = {"precision.recipe=fp8_delayed", "precision.head=recipe", "precision.accumulation=fast"};

std::vector<std::string> recipe(const char* name) { return {concat("precision.recipe=", name)}; }
std::vector<std::string> together(std::initializer_list<std::vector<std::string>> lists) {
  std::vector<std::string> result;
  for (const auto& list : lists) result.insert(result.end(), list.begin(), list.end());
  return result;
}

TEST(PlanRows, AreWithinTenPerCentOfWhatWasMeasured) {
  const Row rows[] = {
      {"8b-delayed", "llama3.1-8b", together({kNarrow, kLong, recipe("fp8_delayed")}), 16882},
      {"8b-bf16", "llama3.1-8b", together({kNarrow, kLong, recipe("bf16")}), 11695},
      {"8b-current", "llama3.1-8b", together({kNarrow, kLong, recipe("fp8_current")}), 16313},
      {"8b-rowwise", "llama3.1-8b", together({kNarrow, kLong, recipe("fp8_rowwise")}), 15988},
      {"8b-block", "llama3.1-8b", together({kNarrow, kLong, recipe("fp8_block")}), 15088},
      {"8b-all", "llama3.1-8b", together({kNarrow, kLong, kAll}), 18100},
      {"8b-short-delayed", "llama3.1-8b", together({kNarrow, kShort, recipe("fp8_delayed")}), 22035},
      {"8b-short-bf16", "llama3.1-8b", together({kNarrow, kShort, recipe("bf16")}), 13778},
      {"8b-short-all", "llama3.1-8b", together({kNarrow, kShort, kAll}), 23647},
      {"8b-each-delayed", "llama3.1-8b", together({kNarrow, kLong, {"training.global_batch_size=1"}, recipe("fp8_delayed")}),
       15675},
      {"8b-each-bf16", "llama3.1-8b", together({kNarrow, kLong, {"training.global_batch_size=1"}, recipe("bf16")}), 11208},
      {"8-layers-delayed", "llama3.1-8b", together({kWide, recipe("fp8_delayed")}), 50906},
      {"8-layers-bf16", "llama3.1-8b", together({kWide, recipe("bf16")}), 38160},
      {"1b-delayed", "llama3.2-1b", together({kNarrow, kTwo, recipe("fp8_delayed")}), 75760},
      {"1b-bf16", "llama3.2-1b", together({kNarrow, kTwo, recipe("bf16")}), 60128},
  };
  for (const Row& row : rows) {
    train::Config config = train::load_config(concat(OCTET_SOURCE_DIR, "/configs/", row.preset, ".toml"), row.settings);
    config.run.device = "cuda";
    const plan::Step step = step_of(config, parse_cluster("1xH200", 0));
    EXPECT_NEAR(step.tokens_per_s / row.tokens_per_s, 1, 0.1) << row.name << ": " << step.tokens_per_s;
    EXPECT_EQ(step.bound, plan::Bound::compute) << row.name;
    EXPECT_NEAR(step.exposed_s, 0, 1e-12) << row.name;
  }
}

}  // namespace
}  // namespace octet::app
