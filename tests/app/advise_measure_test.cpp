#include <gtest/gtest.h>

#include "octet/app/advise.h"
#include "support/tiny_model.h"

namespace octet::app {
namespace {

using octet::testing::recipe_named;
using octet::testing::tiny_config;

// The CPU's profile stands in for a GPU's.
void times_every_kind(const models::DecoderConfig& config) {
  const auto device = make_device(DeviceKind::cpu);
  const auto stream = device->make_stream();
  models::Decoder model(config, recipe_named("bf16"));
  const plan::LinearSetting setting{.model = config, .batch = 2, .seq_len = 16, .micro_batches = 2, .storage = {}};
  for (const plan::LinearKind& kind : plan::linear_kinds(model)) {
    for (const char* name : {"bf16", "fp8_delayed", "fp8_block"}) {
      const Recipe recipe = recipe_named(name);
      plan::LinearOps ops = plan::count_linear(kind, recipe, setting);
      ops.capacity.scratch += std::size_t{64} << 20;  // the CPU's products decode their operands into scratch memory
      const plan::LinearTime time = measure_linear(*stream, kind, recipe, setting, ops);
      EXPECT_GT(time.products_s, 0) << kind.name << " " << name;
      EXPECT_LT(time.products_s, 1) << kind.name << " " << name;
      // The head has no producer, so in BF16 it runs nothing but the products.
      const bool alone = kind.name == "head" && recipe.name == "bf16";
      EXPECT_EQ(time.others_s > 0, !alone) << kind.name << " " << name;
    }
  }
}

TEST(AdviseMeasure, TimesEveryKindInEveryRecipe) { times_every_kind(tiny_config()); }

TEST(AdviseMeasure, TimesExperts) { times_every_kind(octet::testing::tiny_qwen3_moe_config()); }

}  // namespace
}  // namespace octet::app
