// Which checkpoint a run resumes from, and what it does if a checkpoint is broken or cannot be written.
#include "octet/checkpoint/steps.h"
#include "octet/data/tokenizer/files.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// Two copies of a run of 20 steps with checkpoints at steps 5, 10, 15 and 20. Tests change the one and keep the other for
// comparison.
class Resume : public ::testing::Test {
 protected:
  Resume() {
    EXPECT_EQ(train().code, 0);
    fs::copy(run_ / "out", run_ / "reference", fs::copy_options::recursive);
  }
  ProgramResult train(const std::string& options = "", const std::string& how = "exec") const {
    return run_.run("train run.toml --training.steps=20 --checkpoint.keep_latest_k=0 " + options, how);
  }
  fs::path checkpoint(std::int64_t step) const { return run_ / "out/checkpoints" / checkpoint::step_name(step); }
  // Flips a bit in the middle of a file.
  static void corrupt(const fs::path& file) {
    std::string bytes = read_file(file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    write_text(file, bytes);
  }
  // Removes the signs that the run has ended.
  void drop(std::int64_t step) const {
    fs::remove_all(checkpoint(step));
    fs::remove_all(run_ / "out/model");
  }
  ::testing::AssertionResult ended_alike() const {
    return same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference"));
  }

  TinyRun run_;
};

TEST_F(Resume, ABrokenCheckpointGivesWayToTheOneBefore) {
  struct Damage {
    const char* name;
    std::function<void(const fs::path&)> inflict;
  };
  const std::vector<Damage> damages = {
      {"a flipped bit in the tensors", [](const fs::path& p) { corrupt(p / "rank-00000.safetensors"); }},
      {"truncated tensors", [](const fs::path& p) { fs::resize_file(p / "rank-00000.safetensors", 5000); }},
      {"no tensors", [](const fs::path& p) { fs::remove(p / "rank-00000.safetensors"); }},
      {"a flipped bit in the manifest", [](const fs::path& p) { corrupt(p / "manifest.json"); }},
      {"an empty manifest", [](const fs::path& p) { write_text(p / "manifest.json", ""); }},
      {"no manifest", [](const fs::path& p) { fs::remove(p / "manifest.json"); }},
  };
  for (const Damage& damage : damages) {
    damage.inflict(checkpoint(20));
    fs::remove_all(run_ / "out/model");
    const ProgramResult result = train();
    ASSERT_EQ(result.code, 0) << damage.name << "\n" << result.err;
    EXPECT_EQ(result.err.rfind("warning: out/checkpoints/step-00000020", 0), 0u) << damage.name << "\n" << result.err;
    EXPECT_TRUE(says(result.err.substr(0, result.err.find('\n')), "step-00000015")) << damage.name;
    EXPECT_TRUE(says(result.err, "; the damaged one is now out/checkpoints/damaged/step-00000020")) << damage.name;
    EXPECT_TRUE(says(result.err, "resuming after step 15 from out/checkpoints/step-00000015")) << damage.name;
    EXPECT_TRUE(ended_alike()) << damage.name;
  }
  EXPECT_EQ(names_in(run_ / "out/checkpoints/damaged").size(), damages.size()) << "none is deleted";
}

TEST_F(Resume, SeveralBrokenCheckpointsGiveWayInTurn) {
  corrupt(checkpoint(20) / "manifest.json");
  corrupt(checkpoint(15) / "rank-00000.safetensors");
  corrupt(checkpoint(10) / "rank-00000.safetensors");
  const ProgramResult result = train();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "resuming after step 5 from"));
  EXPECT_TRUE(ended_alike());
}

// What was recorded with a checkpoint that is damaged, or that somebody has removed, is kept as a rollback keeps it.
TEST_F(Resume, WhatABrokenCheckpointHadRecordedIsKept) {
  corrupt(checkpoint(20) / "rank-00000.safetensors");
  for (const char* how : {"damaged", "removed"}) {
    const ProgramResult result = train("--optimizer.lr=0.001");
    ASSERT_EQ(result.code, 0) << how << result.err;
    EXPECT_TRUE(says(result.err, "what was recorded after step 15 is now in out/history/")) << how;
    const fs::path kept = run_ / "out/history" / names_in(run_ / "out/history").back();
    const auto before = metrics_of(run_ / "reference");
    if (how == std::string("damaged")) {
      for (const auto& [step, line] : metrics_of(kept)) EXPECT_EQ(line, before.at(step)) << step;
      EXPECT_EQ(read_file(kept / "model/model.safetensors"), read_file(run_ / "reference/model/model.safetensors"));
    }
    EXPECT_EQ(metrics_of(kept).begin()->first, 16) << how;
    EXPECT_EQ(metrics_of(run_ / "out").size(), 20u) << how;
    EXPECT_NE(metrics_of(run_ / "out").at(20)["loss"], before.at(20)["loss"]) << how;
    EXPECT_TRUE(fs::exists(run_ / "out/model/model.safetensors")) << how;
    fs::remove_all(checkpoint(20));
  }
  EXPECT_EQ(names_in(run_ / "out/history").size(), 2u);
}

// A checkpoint has all that a run goes on with.
TEST_F(Resume, ADamagedDescriptionIsMovedAway) {
  for (const char* text : {"", R"({"name":"tiny","checkpoint_step":"20"})", "[]"}) {
    write_text(run_ / "out/run.json", text);
    const ProgramResult result = train();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(says(result.err, "warning: out/run.json: damaged; it is now out/run.json.damaged"));
    EXPECT_EQ(json_of(read_file(run_ / "out/run.json"))["checkpoint_step"], 20);
  }
  EXPECT_EQ(read_file(run_ / "out/run.json.damaged-3"), "[]") << "none is overwritten";
  EXPECT_TRUE(ended_alike());
  // Without a checkpoint nobody knows whether there was one.
  fs::rename(run_ / "out/checkpoints", run_ / "away");
  write_text(run_ / "out/run.json", "");
  EXPECT_TRUE(refused(train(), 76, "out/run.json: damaged, and out/checkpoints has no checkpoint", "move the file away"));
  EXPECT_EQ(read_file(run_ / "out/run.json"), "");
}

TEST_F(Resume, WhenAllAreBrokenNothingIsTouched) {
  for (const std::int64_t step : {5, 10, 15, 20}) corrupt(checkpoint(step) / "rank-00000.safetensors");
  const std::string metrics = read_file(run_ / "out/metrics.jsonl");
  const ProgramResult result = train();
  EXPECT_EQ(result.code, 76) << result.err;
  const std::string last_line = result.err.substr(result.err.rfind('\n', result.err.size() - 2) + 1);
  EXPECT_EQ(last_line.rfind("octet: out/checkpoints", 0), 0u) << result.err;
  EXPECT_EQ(read_file(run_ / "out/metrics.jsonl"), metrics);
  EXPECT_EQ(checkpoint::find_checkpoints(run_ / "out/checkpoints").size(), 4u);
}

TEST_F(Resume, ACheckpointOfAnotherRecipeIsNotEvaluated) {
  EXPECT_TRUE(refused(run_.run("eval run.toml --precision.recipe=bf16 --checkpoint out/checkpoints/step-00000020"), 2,
                      "out/checkpoints/step-00000020", "made with recipe fp8_delayed"));
}

TEST_F(Resume, ACheckpointOfAnotherModelIsRefused) {
  EXPECT_TRUE(refused(train("--model.num_hidden_layers=3"), 76, "out/checkpoints/step-00000020", "model.layers.2."));
  EXPECT_TRUE(refused(train("--model.hidden_size=64"), 76, "out/checkpoints/step-00000020", "[256, 64]"));
  EXPECT_EQ(checkpoint::find_checkpoints(run_ / "out/checkpoints").size(), 4u);
}

TEST_F(Resume, AnOlderCheckpointMayBeNamed) {
  const ProgramResult result = train("--run.set_aside=true --resume out/checkpoints/step-00000010");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "resuming after step 10 from out/checkpoints/step-00000010\n"));
  EXPECT_TRUE(ended_alike());
  // The folder of a run stands for its newest checkpoint.
  const ProgramResult newest = train("--run.output_dir=branch --resume out");
  ASSERT_EQ(newest.code, 0) << newest.err;
  EXPECT_TRUE(says(newest.err, "resuming after step 20 from out/checkpoints/step-00000020\n"));
  // The checkpoint can also be named by the configuration's key.
  const ProgramResult key = train("--run.set_aside=true --checkpoint.resume=out/checkpoints/step-00000005");
  ASSERT_EQ(key.code, 0) << key.err;
  EXPECT_TRUE(says(key.err, "resuming after step 5 from"));
  EXPECT_TRUE(ended_alike());
}

// Later checkpoints belong to the old history. If the new run is killed soon, it must not resume from them.
TEST_F(Resume, AnOlderCheckpointEndsTheHistoryBehindIt) {
  ASSERT_EQ(train("--run.set_aside=true --resume out/checkpoints/step-00000005 --training.steps=7 --checkpoint.interval=0").code,
            0);
  std::vector<std::int64_t> steps;
  for (const auto& directory : checkpoint::find_checkpoints(run_ / "out/checkpoints")) steps.push_back(directory.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{7, 5}));
  EXPECT_EQ(metrics_of(run_ / "out").rbegin()->first, 7);
}

TEST_F(Resume, ACheckpointOfAnotherFolderBeginsABranch) {
  const ProgramResult result = train("--resume reference/checkpoints/step-00000010 --run.output_dir=branch");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(metrics_of(run_ / "branch").begin()->first, 11);
  auto branch = outcome_of(run_ / "branch"), reference = outcome_of(run_ / "reference");
  for (std::int64_t step = 1; step <= 10; ++step) reference.erase("metrics.jsonl, step " + std::to_string(step));
  for (auto* outcome : {&branch, &reference}) outcome->erase("fp8_health.jsonl");
  EXPECT_TRUE(same_outcome(branch, reference));
  EXPECT_EQ(checkpoint::find_checkpoints(run_ / "reference/checkpoints").size(), 4u);
}

TEST_F(Resume, NoneBeginsAnew) {
  const ProgramResult result = train("--resume none --run.set_aside=true --run.seed=5");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err.find("resuming"), std::string::npos) << result.err;
  ASSERT_EQ(train("--run.seed=5 --run.output_dir=five").code, 0);
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "five")));
  // If the new run is killed early, it must not take the first run's later checkpoints for its own.
  ASSERT_EQ(train("--resume none --run.set_aside=true --run.seed=7 --training.steps=3 --checkpoint.interval=0").code, 0);
  EXPECT_EQ(checkpoint::find_checkpoints(run_ / "out/checkpoints").size(), 1u);
}

TEST_F(Resume, AFinishedRunIsLeftAsItIs) {
  const ProgramResult result = train();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "nothing is left to train: the run is at step 20 of 20"));
  EXPECT_EQ(result.err.find("model.init_from"), std::string::npos) << result.err;
  EXPECT_TRUE(ended_alike());
}

// Somebody may have changed the files of the model since. They are written again only if something else is to be exported.
TEST_F(Resume, AModelThatIsExportedStaysAsItIs) {
  const fs::path config = run_ / "out/model/config.json", shard = run_ / "out/model/model-00001-of-00002.safetensors";
  const auto edit = [&] {
    write_text(config, "{}");
    write_text(shard, "mine");
  };
  edit();
  const ProgramResult same = train();
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_TRUE(says(same.err, "out/model: is of step 20 already and stays as it is; to export it again, remove it"));
  EXPECT_EQ(read_file(config), "{}");
  EXPECT_EQ(read_file(shard), "mine");
  EXPECT_EQ(json_of(read_file(run_ / "out/run.json"))["exported_step"], 20);

  const auto exports = [&](const std::string& options) {
    const ProgramResult result = train(options);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err.find("stays as it is"), std::string::npos) << result.err;
    EXPECT_NE(read_file(config), "{}") << options;
    EXPECT_TRUE(fs::exists(run_ / "out/model/model.safetensors")) << options;
    edit();
  };
  exports("--precision.recipe=bf16 --checkpoint.allow=recipe");
  exports("");  // the model there is of another configuration
  fs::remove(run_ / "out/model/model.safetensors");
  exports("");
  fs::remove_all(run_ / "out/model");
  Json info = json_of(read_file(run_ / "out/run.json"));
  info["exported_step"] = 0;  // as it is until the export is complete
  write_text(run_ / "out/run.json", info.dump());
  exports("");
  // A model of an earlier end is replaced, if the run has paused since.
  ASSERT_EQ(train("--training.steps=40 --until 25").code, 0);
  exports("--training.steps=25");
}

TEST_F(Resume, MoreStepsGoOnAndSayWhatChanged) {
  const ProgramResult result = run_.run("train run.toml --training.steps=24 --optimizer.lr=0.001 --checkpoint.keep_latest_k=0");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "  changed since then: training.steps: 20 -> 24\n"));
  EXPECT_TRUE(says(result.err, "  changed since then: optimizer.lr: 0.003 -> 0.001\n"));
  EXPECT_EQ(metrics_of(run_ / "out").size(), 24u);
}

// OpenBLAS's kernels for Nehalem run on every newer processor, and are chosen for none of today's.
TEST_F(Resume, OtherKernelsOfProductsAreNamed) {
  const ProgramResult same = run_.run("train run.toml --training.steps=21");
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(same.err.find("products on"), std::string::npos) << same.err;
  const ProgramResult other = run_.run("train run.toml --training.steps=22", "OPENBLAS_CORETYPE=Nehalem exec");
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_TRUE(says(other.err, "-> on OpenBLAS Nehalem"));
  EXPECT_TRUE(says(other.err, "which round sums in another order\n"));
}

TEST_F(Resume, WhatIsNoCheckpointIsRefused) {
  EXPECT_TRUE(refused(train("--resume nowhere"), 76, "checkpoint.resume = \"nowhere\": no such folder; give auto, none, the "));
  EXPECT_TRUE(
      refused(train("--resume ''"), 2, "octet train: --resume: the path is empty; perhaps a variable of the shell is not set."));
  EXPECT_TRUE(
      refused(train("--checkpoint.resume="), 2, "checkpoint.resume is empty; give auto, none, the folder of a checkpoint"));
  const std::string wanted = "out/model: not a checkpoint, for it has no manifest.json; ";
  EXPECT_TRUE(refused(train("--resume out/model"), 76, "out/model is not a checkpoint, for it has no manifest.json; give auto, none, the "));
  EXPECT_TRUE(refused(run_.run("eval run.toml --checkpoint out/model"), 76,
                      wanted + "--checkpoint takes RUN/checkpoints/step-N, or RUN"));
  corrupt(checkpoint(10) / "rank-00000.safetensors");
  EXPECT_TRUE(refused(train("--resume out/checkpoints/step-00000010"), 76, "step-00000010"));
  EXPECT_EQ(checkpoint::find_checkpoints(run_ / "out/checkpoints").size(), 4u);
}

// --- A model directory that has gone ----------------------------------------------------------------------------------------

// A run that starts from the Hugging Face directory "published", the only place that has the tokenizer.
class ResumeFromWeights : public ::testing::Test {
 protected:
  ResumeFromWeights() {
    EXPECT_EQ(run_.train("--training.steps=2 --checkpoint.interval=0 --run.output_dir=first").code, 0);
    fs::rename(run_ / "first/model", run_ / "published");
    Json config = json_of(read_file(run_ / "published/config.json"));
    EXPECT_EQ(config.erase("tokenizer"), 1u);
    EXPECT_TRUE(config.at("eos_token_id").is_null()) << "bytes have none";
    config["bos_token_id"] = 3;
    config["eos_token_id"] = {5, 7};
    write_text(run_ / "published/config.json", config.dump());
    write_text(run_ / "published/generation_config.json", kGenerationConfig);
    write_text(run_ / "published/tokenizer.json", kTokenizer);
    Json corpus = json_of(read_file(run_ / "corpus.json"));
    corpus["tokenizer"] = "published";
    corpus["tokenizer_hash"] = data::tokenizer_hash(run_ / "published/tokenizer.json");
    write_text(run_ / "corpus.json", corpus.dump());
    std::string toml = tiny_toml();
    const std::size_t begin = toml.find("[model]"), end = toml.find("[[data.source]]");
    write_text(run_ / "from.toml", toml.replace(begin, end - begin, "[model]\ninit_from = \"published\"\n"));
  }
  ProgramResult train(const std::string& options = "") const { return run_.run("train from.toml " + options); }
  void stop_early() const {
    Process process("train from.toml", run_.path());
    ASSERT_TRUE(process.read_to_step(7));
    process.send(SIGTERM);
    ASSERT_EQ(process.wait().code, 75);
  }
  // The files of the directory that are no weights are also in `model`.
  void goes_along(const std::string& model) const {
    EXPECT_EQ(read_file(run_ / model / "tokenizer.json"), kTokenizer);
    EXPECT_EQ(read_file(run_ / model / "generation_config.json"), kGenerationConfig);
    const Json config = json_of(read_file(run_ / model / "config.json"));
    EXPECT_EQ(config["bos_token_id"], 3);
    EXPECT_EQ(config["eos_token_id"], Json({5, 7}));
  }
  static constexpr const char* kGenerationConfig = "{\"temperature\": 0.6}";
  static constexpr const char* kTokenizer = "{\"model\": \"of the directory\"}";
  TinyRun run_;
};

TEST_F(ResumeFromWeights, NeedsTheDirectoryNoMore) {
  ASSERT_EQ(train("--run.output_dir=reference").code, 0);
  stop_early();
  fs::remove_all(run_ / "published");
  const ProgramResult result = train();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "resuming after step "));
  EXPECT_TRUE(says(result.err, "model.init_from = published is not there any more; the checkpoint holds the whole model\n"));
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
  goes_along("reference/model");
  goes_along("out/model");
  EXPECT_TRUE(says(train("--model.init_from=out").err, "model.init_from = out is no model directory; the checkpoint holds"));
  EXPECT_EQ(json_of(read_file(run_ / "out/run.json"))["initial_eval_loss"].dump(),
            json_of(read_file(run_ / "reference/run.json"))["initial_eval_loss"].dump());
  const std::string newest = last_checkpoint(run_ / "out").string();
  EXPECT_EQ(run_.run("eval from.toml --checkpoint " + newest).code, 0);
  EXPECT_EQ(run_.run("convert export --checkpoint " + newest + " --output converted").code, 0);
  goes_along("converted");
  // Also resumes from a checkpoint that is named. A damaged checkpoint is passed over.
  EXPECT_EQ(train("--resume out/checkpoints/step-00000020 --run.output_dir=branch").code, 0);
  EXPECT_EQ(read_file(run_ / "branch/model/model.safetensors"), read_file(run_ / "reference/model/model.safetensors"));
  goes_along("branch/model");
  write_text(last_checkpoint(run_ / "out") / "manifest.json", "{}");
  const ProgramResult before = train();
  ASSERT_EQ(before.code, 0) << before.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
  // A finished run does not read other weights, and says so.
  fs::copy(run_ / "reference/model", run_ / "others", fs::copy_options::recursive);
  const ProgramResult finished = train("--run.output_dir=reference --model.init_from=others");
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(says(finished.err, "-> \"others\"; its weights are not read, because the run goes on from the checkpoint's\n"));
  EXPECT_TRUE(says(finished.err, "nothing is left to train: the run is at step 24 of 24"));
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
}

// Another run in the same folder, from a directory of the same name, changes nothing about the checkpoints of the first run.
TEST_F(ResumeFromWeights, ACheckpointGoesAlongWithTheTokenizerOfItsOwnRun) {
  ASSERT_EQ(train("--training.steps=2").code, 0);
  for (const char* name : {"tokenizer.json", "generation_config.json"}) write_text(run_ / "published" / name, "{}");
  ASSERT_EQ(train("--training.steps=2 --resume none --run.set_aside=true").code, 0);
  fs::remove_all(run_ / "published");
  const std::string earlier = (run_ / "out/history" / names_in(run_ / "out/history").at(0)).string();
  const ProgramResult exported = run_.run("convert export --output converted --checkpoint " + earlier);
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(exported.err, "");
  goes_along("converted");
  ASSERT_EQ(run_.run("convert export --output newer --checkpoint out").code, 0);
  EXPECT_EQ(read_file(run_ / "newer/tokenizer.json"), "{}");
}

// The checkpoint that is named tells the architecture, and not another one in run.output_dir.
TEST_F(ResumeFromWeights, ItsCheckpointIsEvaluatedBesideAnotherRun) {
  ASSERT_EQ(train("--training.steps=2").code, 0);
  fs::create_directories(run_ / "smaller");
  fs::copy(run_ / "published/tokenizer.json", run_ / "smaller/tokenizer.json");
  Json config = json_of(read_file(run_ / "published/config.json"));
  config["num_hidden_layers"] = 1;
  write_text(run_ / "smaller/config.json", config.dump());
  ASSERT_EQ(train("--training.steps=2 --run.output_dir=other --model.init_from=smaller").code, 0);
  fs::remove_all(run_ / "published");
  const ProgramResult result = run_.run("eval from.toml --run.output_dir=other --checkpoint out");
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST_F(ResumeFromWeights, ButStartsOnlyFromIt) {
  stop_early();
  fs::remove_all(run_ / "published");
  const auto checkpoints = checkpoint::find_checkpoints(run_ / "out/checkpoints").size();
  EXPECT_TRUE(refused(train("--run.output_dir=new"), 76, "published/config.json: No such file", "model.init_from",
                      "new/checkpoints has no checkpoint"));
  EXPECT_FALSE(fs::exists(run_ / "new"));
  EXPECT_TRUE(refused(train("--resume none"), 76, "published/config.json: No such file", "checkpoint.resume = \"none\""));
  EXPECT_TRUE(refused(train("--resume nowhere"), 76, "checkpoint.resume = \"nowhere\": no such folder"));
  EXPECT_TRUE(refused(train("--model.num_hidden_layers=3"), 76, "out/checkpoints/step-", "model.layers.2."));
  EXPECT_EQ(checkpoint::find_checkpoints(run_ / "out/checkpoints").size(), checkpoints);
}

// --- A disk that is full ----------------------------------------------------------------------------------------------------

// Files of more than 100 kB cannot be written. Metrics are smaller, but checkpoints have about 430 kB.
constexpr const char* kSmallFiles = "ulimit -f 200; exec";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_F(Resume, ACheckpointThatCannotBeWrittenCostsNothingElse) {
  for (const std::string async : {"true", "false"}) {
    drop(20);
    drop(15);
    const std::string options = "--checkpoint.async=" + async;
    const ProgramResult full = train(options, kSmallFiles);
    EXPECT_EQ(full.code, 1) << full.err;
    const std::vector<std::string> lines = lines_of(full.err);
    ASSERT_GE(lines.size(), 3u) << full.err;
    // The checkpoint of the interval gives a warning, and the last checkpoint gives an error.
    std::vector<std::string> about;
    for (const std::string& line : lines) {
      if (line.find("is not saved") != std::string::npos) about.push_back(line);
    }
    ASSERT_EQ(about.size(), 2u) << full.err;
    EXPECT_EQ(about[0].rfind("warning: the checkpoint of step 15 is not saved: out/checkpoints/", 0), 0u) << about[0];
    EXPECT_EQ(about[1].rfind("octet: the checkpoint of step 20 is not saved: out/checkpoints/", 0), 0u) << about[1];
    EXPECT_EQ(lines.back(), about[1]);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(run_ / "out/checkpoints")) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, (std::vector<std::string>{"step-00000005", "step-00000010"}));
    EXPECT_FALSE(fs::exists(run_ / "out/run.lock"));
    // Once there is room again, the same command resumes.
    const ProgramResult result = train(options);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(says(result.err, "resuming after step 10 from"));
    EXPECT_TRUE(ended_alike());
  }
}

TEST_F(Resume, AFullDiskCostsNothingButTime) {
  if (std::system("unshare -m true 2>/dev/null") != 0) GTEST_SKIP() << "no permission to mount a small disk";
  // There is room for the metrics and two checkpoints of 430 kB, but not for three.
  write_text(run_ / "on_a_small_disk.sh", R"(
    mkdir small && mount -t tmpfs -o size=1100k tmpfs small || exit 99
    "$@"
    code=$?
    ls small/checkpoints > listing
    cp -r small kept
    exit $code
  )");
  const ProgramResult full = train("--run.output_dir=small --metrics.tensorboard=false", "exec unshare -m sh on_a_small_disk.sh");
  ASSERT_NE(full.code, 99) << full.err;
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_TRUE(says(full.err, "warning: the checkpoint of step 15 is not saved: small/checkpoints/"));
  EXPECT_TRUE(
      says(full.err, "No space left on device; training goes on with the older ones (failed save 1 of 3); a checkpoint takes "));
  EXPECT_TRUE(says(full.err, "octet: the checkpoint of step 20 is not saved: small/checkpoints/"));
  EXPECT_EQ(read_file(run_ / "listing"), "step-00000005\nstep-00000010\n");
  fs::rename(run_ / "kept", run_ / "large");
  const ProgramResult result = train("--run.output_dir=large");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "resuming after step 10 from"));
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "large"), outcome_of(run_ / "reference")));
}

// A checkpoint that surely will not fit is said before the first step, not after it.
TEST_F(Resume, ADiskWithoutRoomForACheckpointIsRefused) {
  if (std::system("unshare -m true 2>/dev/null") != 0) GTEST_SKIP() << "no permission to mount a small disk";
  for (const std::string size : {"300k", "1500k"}) {
    write_text(run_ / "on_a_small_disk.sh",
               "mkdir -p small && mount -t tmpfs -o size=" + size + " tmpfs small || exit 99\n\"$@\"\n");
    const ProgramResult result =
        train("--run.output_dir=small --metrics.tensorboard=false", "exec unshare -m sh on_a_small_disk.sh");
    ASSERT_NE(result.code, 99) << result.err;
    if (size == "300k") {
      EXPECT_TRUE(refused(result, 3, "small: the next checkpoint takes ", " KiB, and ", " KiB are free"));
      EXPECT_EQ(result.out.find("\nstep 1/"), std::string::npos) << result.out;
    } else {
      EXPECT_TRUE(says(result.err, "warning: small: up to 4 more checkpoints of "));
    }
  }
}

TEST_F(Resume, UntilAStepAndOnIsTheSameRun) {
  fs::remove_all(run_ / "out");
  const ProgramResult paused = train("--until 7");
  EXPECT_EQ(paused.code, 0) << paused.err;
  EXPECT_TRUE(says(paused.err,
                   "--until 7: saved step 7 of 20 in out/checkpoints; without --until the same command continues from there"));
  EXPECT_FALSE(fs::exists(run_ / "out/model"));
  EXPECT_EQ(last_checkpoint(run_ / "out"), checkpoint(7));
  EXPECT_EQ(train("--until 5").code, 0) << "it is there already";
  EXPECT_EQ(train("--until 15").code, 0);
  EXPECT_EQ(train().code, 0);
  EXPECT_TRUE(ended_alike());
  EXPECT_TRUE(refused(train("--until 0"), 2, "--until"));
}

// A checkpoint of another folder is loaded, and no step is trained. The new folder then has a checkpoint of its own.
TEST_F(Resume, WhatIsSaidToBeSavedIsThere) {
  const std::string from = " --resume out/checkpoints/step-00000010 --run.output_dir=";
  for (const std::string until : {"10", "5"}) {
    const ProgramResult result = train("--until " + until + from + "until-" + until);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(
        says(result.err, concat("step 10 of 20 in until-", until,
                                "/checkpoints; without --until the same command with --resume auto continues from there\n")));
    EXPECT_EQ(tensors_of(last_checkpoint(run_ / ("until-" + until)) / "rank-00000.safetensors"),
              tensors_of(checkpoint(10) / "rank-00000.safetensors"));
  }
  EXPECT_TRUE(says(train("--resume auto --run.output_dir=until-10").err, "resuming after step 10 from until-10/checkpoints/"));

  const ProgramResult finished = train("--resume out --run.output_dir=runs/copy");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(says(finished.err, "done: the model is in runs/copy/model\n")) << "there are no curves to draw";
  EXPECT_TRUE(run_.run("status runs/copy").out.starts_with("runs/copy: done\n  step        20 of 20"));
  fs::copy(run_ / "out", run_ / "runs/trained", fs::copy_options::recursive);
  const ProgramResult report = run_.run("report runs");
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_TRUE(says(report.err, "warning: runs/copy: metrics.jsonl holds no step, so the report leaves this run out\n"));
}

// A run that pauses has no model yet, or that of an earlier end.
TEST_F(Resume, APauseIsNoEnd) {
  EXPECT_TRUE(refused(train("--until 21"), 2, "octet: --until 21: the run has 20 steps. Leave --until out to train all of them"));
  drop(20);
  ProgramResult result = train("--training.steps=40 --until 25");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "--until 25: saved step 25 of 40 in out/checkpoints"));
  EXPECT_FALSE(says(result.err, "done: "));
  EXPECT_FALSE(fs::exists(run_ / "out/model"));
  result = train("--training.steps=25");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "done: the model is in out/model, `octet report out` draws the curves"));
}

}  // namespace
}  // namespace octet::testing
