#include <gtest/gtest.h>

#include <filesystem>

#include "octet/models/decoder/config.h"
#include "octet/train/config.h"
#include "support/paths.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;

// The published numbers of parameters, from the models' cards and config.json on Hugging Face.
TEST(Presets, AreTheModelsThatTheyName) {
  EXPECT_EQ(preset_names(),
            (std::vector<std::string>{"gpt-neo-1.3b", "llama2-7b",   "llama3-70b",    "llama3.1-405b", "llama3.1-8b",
                                      "llama3.2-1b",  "mistral-7b",  "mixtral-8x22b", "mixtral-8x7b",  "olmo2-7b",
                                      "phi4-14b",     "pythia-1.4b", "quality-380m",  "quickstart",    "qwen2.5-7b",
                                      "qwen3-0.6b",   "qwen3-1.7b",  "qwen3-30b-a3b", "qwen3-32b",     "qwen3-8b"}));
  const std::vector<std::pair<std::string, std::int64_t>> sizes = {{"llama2-7b", 6738415616},
                                                                   {"llama3-70b", 70553706496},
                                                                   {"llama3.1-405b", 405853388800},
                                                                   {"llama3.1-8b", 8030261248},
                                                                   {"llama3.2-1b", 1235814400},
                                                                   {"mistral-7b", 7248023552},
                                                                   {"mixtral-8x22b", 140620634112},
                                                                   {"mixtral-8x7b", 46702792704},
                                                                   {"olmo2-7b", 7298617344},
                                                                   {"phi4-14b", 14659507200},
                                                                   {"pythia-1.4b", 1414647808},
                                                                   // As transformers 5.24 counts them.
                                                                   {"gpt-neo-1.3b", 1315575808},
                                                                   {"qwen2.5-7b", 7615616512},
                                                                   {"qwen3-0.6b", 596049920},
                                                                   {"qwen3-1.7b", 1720574976},
                                                                   {"qwen3-8b", 8190735360},
                                                                   {"qwen3-30b-a3b", 30532122624},
                                                                   {"qwen3-32b", 32762123264}};
  for (const auto& [name, parameters] : sizes) {
    Config c;
    c.model.config = name;
    EXPECT_EQ(decoder_config(c).parameters(), parameters) << name;
  }
}

TEST(Presets, AreWholeRuns) {
  for (const std::string& name : preset_names()) {
    const Config c = load_config(fs::path(testing::source_dir()) / "configs" / (name + ".toml"));
    EXPECT_NO_THROW(check_config(c)) << name;
    EXPECT_GE(decoder_config(c).max_position, c.training.seq_len) << name;
  }
}

TEST(Presets, RunsOnThemAreWhole) {
  int runs = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(testing::source_dir()) / "configs" / "runs")) {
    const Config c = load_config(entry.path());
    EXPECT_NO_THROW(check_config(c, 8)) << entry.path();
    EXPECT_EQ(c.run.name, entry.path().stem()) << entry.path();
    EXPECT_GE(decoder_config(c).max_position, c.training.seq_len) << entry.path();
    ++runs;
  }
  EXPECT_GE(runs, 2);
}

}  // namespace
}  // namespace octet::train
