// Tests the timings that `octet advise` takes on a GPU.
#include "octet/app/advise.h"

#include <gtest/gtest.h>

#include "octet/recipes/registry.h"

namespace octet::app {
namespace {

models::DecoderConfig model_config() {
  models::DecoderConfig config;
  config.vocab = 512;
  config.dim = 256;
  config.ffn = 384;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.max_position = 128;
  return config;
}

TEST(Advise, MeasuresEveryKindInEveryRecipe) {
  const auto device = make_device(DeviceKind::cuda);
  const auto stream = device->make_stream();
  models::Decoder model(model_config(), recipes::make_recipe("bf16", {}));
  for (const std::int64_t micro_batches : {1, 4}) {
    const plan::LinearSetting setting{
        .model = model_config(), .batch = 2, .seq_len = 128, .micro_batches = micro_batches, .storage = {}};
    for (const plan::LinearKind& kind : plan::linear_kinds(model)) {
      for (const char* name : {"bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block"}) {
        const Recipe recipe = recipes::make_recipe(name, {});
        const plan::LinearTime time = measure_linear(*stream, kind, recipe, setting, plan::count_linear(kind, recipe, setting));
        EXPECT_GT(time.products_s, 0) << kind.name << " " << name;
        EXPECT_EQ(time.others_s > 0, kind.name != "head" || recipe.is_fp8()) << kind.name << " " << name;
      }
    }
  }
}

}  // namespace
}  // namespace octet::app
