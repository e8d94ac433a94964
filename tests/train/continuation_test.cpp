// Loading a checkpoint of another recipe, or with other dtypes of state: weights and moments must have the right bits.
#include "octet/train/continuation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "octet/base/log.h"
#include "octet/base/threads.h"
#include "octet/train/trainer.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

using TensorBytes = std::map<std::string, std::string>;  // bytes by name

class Continued : public ::testing::Test {
 protected:
  Continued() {
    set_log(octet::Log::warnings);
    set_num_threads(1);
    write_corpus(folder_ / "corpus", tiny_documents());
  }
  ~Continued() override {
    set_log(octet::Log::all);
    set_num_threads(available_cores());
  }
  train::Config config(const std::vector<std::string>& overrides) const {
    train::Config config = train::parse_config(tiny_toml(), "run.toml");
    config.data.source[0].path = (folder_ / "corpus").string();
    config.run.output_dir = (folder_ / "out").string();
    config.training.steps = 4;
    config.precision.emulate = true;
    config.checkpoint.allow = {"recipe"};
    for (const std::string& o : overrides) train::apply_override(config, o);
    return config;
  }
  // Runs to step 4 and returns the tensors of its checkpoint.
  TensorBytes checkpoint(const std::vector<std::string>& overrides) const {
    EXPECT_EQ(train::Trainer({.config = config(overrides), .resume = "none"}).run(), ExitCode::done);
    return tensors_of(last_checkpoint(folder_ / "out") / "rank-00000.safetensors");
  }
  // Goes on from the checkpoint, without a step to do, and returns weights, moments, and scales as they are in memory.
  TensorBytes loaded(const std::vector<std::string>& overrides) const {
    train::Trainer trainer({.config = config(overrides)});
    EXPECT_EQ(trainer.run(), ExitCode::done);
    train::Engine& engine = trainer.engine();
    TensorBytes result;
    const auto add = [&](const std::string& name, const Tensor& t) {
      std::string bytes(t.bytes(), '\0');
      engine.stream().copy_to_host(bytes.data(), t.data, t.bytes());
      engine.stream().synchronize();
      result[name] = bytes;
    };
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      add(p.spec.name, p.primary());
      add(p.spec.name + ".moment1", p.moment1);
      add(p.spec.name + ".moment2", p.moment2);
    }
    for (const recipes::ScaleState::Named& scale : engine.model().scales().tensors()) add(scale.name, scale.tensor);
    add("optimizer.updates", engine.optimizer().updates());
    return result;
  }
  TemporaryFolder folder_;
};

bool is_fp8_state(const std::string& name) { return name.starts_with("fp8."); }

template <class T>
std::vector<T> numbers_in(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_F(Continued, AnotherRecipeKeepsAllBitsOfTheState) {
  for (const std::string from : {"fp8_delayed", "bf16", "fp32", "fp8_block"}) {
    std::filesystem::remove_all(folder_ / "out");
    const TensorBytes before = checkpoint({"precision.recipe=" + from});
    std::size_t compared = 0;
    for (const std::string& to : recipes::recipe_names()) {
      for (const auto& [name, bytes] : loaded({"precision.recipe=" + to})) {
        if (is_fp8_state(name)) continue;
        ASSERT_TRUE(before.contains(name)) << name;
        EXPECT_TRUE(bytes == before.at(name)) << from << " -> " << to << ": " << name;
        ++compared;
      }
    }
    EXPECT_EQ(compared, recipes::recipe_names().size() *
                            static_cast<std::size_t>(std::count_if(before.begin(), before.end(),
                                                                   [](const auto& t) { return !is_fp8_state(t.first); })));
  }
}

// The nearest number with 8 bits, as BF16 has them.
float rounded(float x) {
  int exponent = 0;
  const float mantissa = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

// The scales of weights are 448 / amax of the loaded weights in BF16. The histories hold nothing from before: one amax of
// calibration, and for weights the one that the next step begins with.
TEST_F(Continued, AnotherRecipeCalibratesNewScales) {
  const TensorBytes before = checkpoint({"precision.amax_history_len=16"});
  for (const std::string setting : {"precision.amax_history_len=8", "precision.format=e4m3"}) {
    const TensorBytes now = loaded({"precision.amax_history_len=16", setting});
    std::size_t weights = 0;
    for (const auto& [name, bytes] : now) {
      if (!is_fp8_state(name)) continue;
      if (name.ends_with(".scale")) {
        EXPECT_NE(numbers_in<float>(bytes)[0], 1.0f) << name;
        EXPECT_GT(numbers_in<float>(bytes)[0], 0.0f) << name;
      } else {
        const auto history = numbers_in<float>(bytes);
        EXPECT_EQ(history.size(), setting == "precision.format=e4m3" ? 16u : 8u);
        EXPECT_EQ(std::count_if(history.begin(), history.end(), [](float amax) { return amax > 0; }),
                  name.ends_with(".w.amax_history") ? 2 : 1)
            << name;
      }
      if (!name.ends_with(".w.scale")) continue;
      const std::string layer = name.substr(4, name.size() - 4 - std::strlen(".w.scale"));
      float amax = 0;
      for (const float w : numbers_in<float>(before.at(layer + ".weight"))) amax = std::max(amax, std::abs(w));
      EXPECT_EQ(numbers_in<float>(bytes)[0], 448 / rounded(amax)) << name;
      ++weights;
    }
    EXPECT_EQ(weights, 8u);
  }
}

// The same recipe with other types of state keeps its scales.
TEST_F(Continued, StateBecomesTheNearestBf16AndExactlyF32) {
  const TensorBytes wide = checkpoint({});
  std::size_t elements = 0;
  for (const auto& [name, bytes] : loaded({"optimizer.master_weights=false", "optimizer.state_dtype=bf16"})) {
    if (is_fp8_state(name) || name == "optimizer.updates") {
      EXPECT_TRUE(bytes == wide.at(name)) << name;
      continue;
    }
    const auto old = numbers_in<float>(wide.at(name));
    const auto now = numbers_in<std::uint16_t>(bytes);
    ASSERT_EQ(now.size(), old.size()) << name;
    for (std::size_t i = 0; i < now.size(); ++i, ++elements) {
      const auto value = [](int bits) {
        return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
      };
      // The value must be rounded to nearest, ties to even: neither neighbouring BF16 value is nearer, and if one is equally
      // near, the last bit of the result is 0.
      const double error = std::abs(old[i] - value(now[i]));
      const int magnitude = now[i] & 0x7FFF, sign = now[i] & 0x8000;
      for (const int other : {magnitude - 1, magnitude + 1}) {
        const double distance = std::abs(old[i] - value(sign | std::max(other, 0)));
        ASSERT_TRUE(error < distance || (error == distance && (magnitude % 2 == 0 || other < 0)))
            << name << "[" << i << "] = " << old[i];
      }
    }
  }
  EXPECT_GT(elements, 90'000u);

  std::filesystem::remove_all(folder_ / "out");
  const TensorBytes narrow = checkpoint({"optimizer.master_weights=false", "optimizer.state_dtype=bf16"});
  for (const auto& [name, bytes] : loaded({})) {
    if (is_fp8_state(name) || name == "optimizer.updates") continue;
    const auto old = numbers_in<std::uint16_t>(narrow.at(name));
    const auto now = numbers_in<std::uint32_t>(bytes);
    ASSERT_EQ(now.size(), old.size()) << name;
    for (std::size_t i = 0; i < now.size(); ++i)
      ASSERT_EQ(now[i], static_cast<std::uint32_t>(old[i]) << 16) << name << "[" << i << "]";
  }
}

}  // namespace
}  // namespace octet::testing
