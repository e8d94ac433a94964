#include "octet/train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "octet/base/log.h"
#include "octet/base/threads.h"
#include "octet/comm/socket.h"
#include "support/emulated_tiles.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "support/tiny_model.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

class Run : public ::testing::Test {
 protected:
  Run() {
    set_log(octet::Log::warnings);
    set_num_threads(1);
    write_corpus(folder_ / "corpus", tiny_documents());
  }
  ~Run() override {
    set_log(octet::Log::all);
    set_num_threads(available_cores());
  }

  train::Config config(const std::vector<std::string>& overrides = {}) const {
    train::Config config = train::parse_config(tiny_toml(), "run.toml");
    config.data.source[0].path = (folder_ / "corpus").string();
    config.run.output_dir = (folder_ / "out").string();
    config.run.set_aside = true;
    for (const std::string& o : overrides) train::apply_override(config, o);
    return config;
  }

  TemporaryFolder folder_;
};

class RunOf : public Run, public ::testing::WithParamInterface<std::string> {
 protected:
  // The precision of GetParam(), and other settings.
  train::Config of_recipe(std::vector<std::string> settings) const {
    const bool attention = GetParam() == "fp8_delayed_attention";
    settings.insert(settings.begin(), {"precision.emulate=true", "precision.recipe=" + (attention ? "fp8_delayed" : GetParam()),
                                       concat("precision.attention=", attention ? "fp8" : "bf16")});
    return config(settings);
  }
};

TEST_P(RunOf, TakesWhatThePlanSaysAndNothingAfterItsFirstMoment) {
  for (const char* setting : {"activation_checkpoint.mode=none", "activation_checkpoint.mode=full", "optimizer.offload=true"}) {
    train::Trainer trainer({.config = of_recipe({setting}), .resume = "none"});
    const std::size_t before = trainer.engine().device().memory().allocations;
    ASSERT_EQ(trainer.run(), ExitCode::done);  // includes evaluations, health samples and checkpoints
    const MemoryMeter& use = trainer.engine().device().memory();
    EXPECT_EQ(use.allocations, before);
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      EXPECT_EQ(use.peak[i], trainer.plan().bytes[i]) << name_of(static_cast<MemoryCategory>(i));
    }
    EXPECT_EQ(use.total_peak, trainer.plan().total());
  }
}

// A run that starts from given weights first evaluates them in BF16. It frees that memory before it takes its own.
TEST_P(RunOf, TakesNoMoreWhenItGoesOnFromWeights) {
  train::Trainer first(
      {.config = config({"precision.recipe=bf16", "training.steps=1", "run.output_dir=" + (folder_ / "first").string()}),
       .resume = "none"});
  ASSERT_EQ(first.run(), ExitCode::done);
  train::Trainer trainer(
      {.config = of_recipe({"training.steps=1", "model.init_from=" + (folder_ / "first/model").string()}), .resume = "none"});
  ASSERT_EQ(trainer.run(), ExitCode::done);
  EXPECT_EQ(trainer.engine().device().memory().total_peak, trainer.plan().total());
}

// Saves the same steps twice: once while training stands still, and once while the next step runs. The files must be equal.
TEST_P(RunOf, SavesTheSameBitsBesideTheSteps) {
  const auto saved = [&](const std::string& async) {
    train::Trainer trainer({.config = of_recipe({"training.steps=6", "checkpoint.interval=1", "checkpoint.keep_latest_k=0",
                                                 "checkpoint.async=" + async}),
                            .resume = "none"});
    EXPECT_EQ(trainer.plan().snapshot > 0, async == "true");
    EXPECT_EQ(trainer.run(), ExitCode::done);
    std::map<std::int64_t, std::string> files;
    for (const auto& directory : checkpoint::find_checkpoints(folder_ / "out/checkpoints"))
      files[directory.step] = read_file(directory.path / "rank-00000.safetensors");
    return files;
  };
  const auto still = saved("false"), beside = saved("true");
  ASSERT_EQ(still.size(), 6u);
  ASSERT_EQ(beside.size(), 6u);
  for (const auto& [step, bytes] : still) EXPECT_TRUE(beside.at(step) == bytes) << "step " << step;
}

INSTANTIATE_TEST_SUITE_P(Recipes, RunOf, ::testing::ValuesIn(all_precisions()), [](const auto& param) { return param.param; });

class RunOfAttention : public Run, public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(, RunOfAttention, ::testing::Values("fp8", "fp8_forward"),
                         [](const auto& param) { return param.param; });

TEST_P(RunOfAttention, GoesOnToTheBit) {
  const std::vector<std::string> settings = {"precision.attention=" + GetParam(), "training.steps=10", "checkpoint.interval=5"};
  ASSERT_EQ(train::Trainer({.config = config(settings), .resume = "none"}).run(), ExitCode::done);
  const std::filesystem::path middle = folder_ / "out/checkpoints/step-00000005";
  const auto branch = [&](std::vector<std::string> more) {
    more.insert(more.begin(), settings.begin(), settings.end());
    more.push_back("run.output_dir=" + (folder_ / "branch").string());
    return train::Trainer({.config = config(more), .resume = middle.string()}).run();
  };
  ASSERT_EQ(branch({}), ExitCode::done);
  EXPECT_TRUE(read_file(folder_ / "branch/checkpoints/step-00000010/rank-00000.safetensors") ==
              read_file(folder_ / "out/checkpoints/step-00000010/rank-00000.safetensors"));
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { branch({"precision.attention=bf16"}); }),
                       "precision.attention is \"" + GetParam() + "\" there and \"bf16\" here"));
  EXPECT_EQ(branch({"precision.attention=bf16", "checkpoint.allow=recipe"}), ExitCode::done);
}

TEST_F(Run, EpochsDecideTheStepsWhenAsked) {
  const std::int64_t samples = train::Trainer({.config = config(), .resume = "none"}).steps();
  EXPECT_EQ(samples, 24);
  const train::Config epochs = config({"training.epochs=0.5"});
  const data::Dataset dataset({.sources = {{.path = folder_ / "corpus"}}, .seq_len = 32, .split = {0.9, 0.1}, .vocab_size = 256});
  EXPECT_EQ(train::Trainer({.config = epochs, .resume = "none"}).steps(), dataset.samples_per_epoch() / 2 / 4);
  EXPECT_TRUE(error_of(ExitCode::config, [&] {
                train::Trainer({.config = config({"training.epochs=1e300"}), .resume = "none"});
              }).starts_with("training.epochs = 1e+300 are "));
  // There is always at least one step.
  EXPECT_EQ(train::Trainer({.config = config({"training.epochs=0.000001"}), .resume = "none"}).steps(), 1);
}

TEST_F(Run, RefusesALongerSequenceThanTheModels) {
  EXPECT_EQ(
      error_of(ExitCode::config, [&] { train::Trainer({.config = config({"training.seq_len=65"}), .resume = "none"}); }),
      "run.toml: training.seq_len = 65 is beyond the model's max_position_embeddings = 64: lower training.seq_len, or raise "
      "model.max_position_embeddings");
}

TEST_F(Run, RefusesMoreLayersThanTheModelHas) {
  const std::int64_t layers = config({}).model.num_hidden_layers.value();
  const std::string option = concat("activation_checkpoint.layers=", layers + 1);
  EXPECT_EQ(error_of(ExitCode::config,
                     [&] {
                       train::Trainer({.config = config({"activation_checkpoint.mode=full", option}), .resume = "none"});
                     }),
            concat("run.toml: activation_checkpoint.layers = ", layers + 1, ": the model has ", layers, " layers"));
}

// The checkpoint describes the model, so resuming works. Starting anew needs the weights.
TEST_F(Run, DoesNotBeginAnewWithoutItsModelDirectory) {
  ASSERT_EQ(train::Trainer({.config = config({"training.steps=1"}), .resume = "none"}).run(), ExitCode::done);
  const std::string gone = (folder_ / "gone").string();
  const train::Config from_gone = config({"training.steps=2", "model.init_from=" + gone});
  EXPECT_EQ(train::Trainer({.config = from_gone}).run(), ExitCode::done);
  EXPECT_EQ(error_of(ExitCode::data, [&] { train::Trainer({.config = from_gone, .resume = "none"}); }),
            gone + "/config.json: No such file; a run that begins without a checkpoint begins with model.init_from");
}

TEST_F(Run, LogsWhatItWasAskedTo) {
  std::vector<std::string> console;
  train::Trainer trainer({.config = config({"metrics.log_freq=6", "evaluation.interval=8", "metrics.health_freq=11"}),
                          .resume = "none",
                          .label = "a label",
                          .repeat_of = "another",
                          .console = [&](std::string_view line) { console.emplace_back(line); }});
  ASSERT_EQ(trainer.run(), ExitCode::done);
  const auto metrics = metrics_of(folder_ / "out");
  std::vector<std::int64_t> steps, evaluated, sampled;
  for (const auto& [step, line] : metrics) {
    steps.push_back(step);
    if (!line["eval_loss"].is_null()) evaluated.push_back(step);
    if (!line["fp8_underflow_pct"].is_null()) sampled.push_back(step);
    EXPECT_EQ(line["tokens_seen"], step * 4 * 32);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 6, 8, 11, 12, 16, 18, 22, 24}));
  EXPECT_EQ(evaluated, (std::vector<std::int64_t>{8, 16, 24}));
  EXPECT_EQ(sampled, (std::vector<std::int64_t>{1, 11, 22, 24}));
  EXPECT_EQ(console.size(), steps.size());
  // Each sample has three operands of eight linears.
  EXPECT_EQ(read_lines(folder_ / "out/fp8_health.jsonl").size(), 4u * 8 * 3);
  EXPECT_EQ(read_lines(folder_ / "out/attention_health.jsonl").size(), 4u * 2);
  const Json info = json_of(read_file(folder_ / "out/run.json"));
  EXPECT_EQ(info["name"], "a label");
  EXPECT_EQ(info["repeat_of"], "another");
  EXPECT_EQ(info["recipe"], "fp8_delayed");
}

// MXFP8 also samples the weights of norms, which have no codes.
TEST_F(Run, ReportsTheMeansOfWhatItSamplesOfLinears) {
  std::map<std::string, double> sums;  // by recipe and figure
  for (const std::string recipe : {"mxfp8", "fp8_delayed"}) {
    const std::vector<std::string> settings = {"precision.recipe=" + recipe, "precision.emulate=true", "metrics.health_freq=1",
                                               "metrics.log_freq=1", "training.steps=6"};
    ASSERT_EQ(train::Trainer({.config = config(settings), .resume = "none"}).run(), ExitCode::done);
    std::map<std::int64_t, std::vector<Json>> samples;
    bool norms = false;
    for (const Json& sample : read_lines(folder_ / "out/fp8_health.jsonl")) {
      const bool of_norm = sample["tensor"].get<std::string>().ends_with(".n");
      norms = norms || of_norm;
      if (!of_norm) samples[sample["step"]].push_back(sample);
    }
    EXPECT_EQ(norms, recipe == "mxfp8");
    for (const auto& [step, line] : metrics_of(folder_ / "out")) {
      for (const auto& [mean, of] : {std::pair("fp8_underflow_pct", "flushed_pct"), {"fp8_saturated_pct", "saturated_pct"}}) {
        double sum = 0;
        for (const Json& sample : samples.at(step)) sum += sample[of].get<double>();
        sums[recipe + " " + of] += sum;
        const double expected = sum / static_cast<double>(samples.at(step).size());
        EXPECT_NEAR(line[mean].get<double>(), expected, 1e-9 * expected) << recipe << ": " << mean << " of step " << step;
      }
    }
  }
  for (const char* seen : {"mxfp8 flushed_pct", "fp8_delayed saturated_pct"}) EXPECT_GT(sums[seen], 0) << seen;
}

// If every token chooses all experts, they are chosen equally often, whatever the routers say. The logits of routers that begin
// near zero are nearly zero, and the log-sum-exp of four zeros is log 4.
TEST_F(Run, ReportsTheBalanceOfItsExpertsAndTheLogitsOfItsRouters) {
  const std::vector<std::string> settings = {"model.model_type=mixtral", "model.num_local_experts=4",
                                             "model.num_experts_per_tok=4", "model.initializer_range=1e-6", "training.steps=1"};
  ASSERT_EQ(train::Trainer({.config = config(settings), .resume = "none"}).run(), ExitCode::done);
  const Json line = metrics_of(folder_ / "out").at(1);
  EXPECT_NEAR(line["expert_balance"].get<double>(), 1, 1e-5);
  EXPECT_NEAR(line["router_z"].get<double>(), std::log(4) * std::log(4), 1e-4);
}

// An exception of the standard library ends the program with code 1, too.
TEST_F(Run, RecordsItsEndWhateverIsThrown) {
  const auto end_of = [&](const std::function<void()>& fault) {
    train::Trainer trainer({.config = config(), .resume = "none", .progress = [&](const train::StepProgress& progress) {
                              if (progress.step == 7) fault();
                            }});
    EXPECT_ANY_THROW(trainer.run());
    const Json info = json_of(read_file(folder_ / "out/run.json"));
    EXPECT_NE(info["ended"], "");
    return info["code"];
  };
  EXPECT_EQ(end_of([] { fail(ExitCode::data, "a damaged corpus"); }), 76);
  EXPECT_EQ(end_of([] { throw std::length_error("a list that is too long"); }), 1);
}

TEST_F(Run, KeepsAsManyCheckpointsAsAskedAndTheLast) {
  const auto kept = [&](const std::vector<std::string>& overrides) {
    train::Trainer trainer({.config = config(overrides), .resume = "none"});
    EXPECT_EQ(trainer.run(), ExitCode::done);
    std::vector<std::int64_t> steps;
    for (const auto& directory : checkpoint::find_checkpoints(folder_ / "out/checkpoints")) steps.push_back(directory.step);
    return steps;
  };
  EXPECT_EQ(kept({}), (std::vector<std::int64_t>{24, 20, 15}));
  EXPECT_EQ(kept({"checkpoint.keep_latest_k=1"}), (std::vector<std::int64_t>{24}));
  EXPECT_EQ(kept({"checkpoint.keep_latest_k=0"}), (std::vector<std::int64_t>{24, 20, 15, 10, 5}));
  EXPECT_EQ(kept({"checkpoint.interval=0"}), (std::vector<std::int64_t>{24}));
  EXPECT_EQ(kept({"checkpoint.interval=12", "checkpoint.async=false"}), (std::vector<std::int64_t>{24, 12}));
}

// From step 35 on a norm is wrong, and losses are high in steps 36 to 38. The checkpoint of step 36 has learnt from a batch of
// theirs.
TEST_F(Run, GoesBackToACheckpointFromBeforeTheFirstHighLoss) {
  train::Trainer* running = nullptr;
  bool spoiled = false;
  std::vector<std::int64_t> steps;
  const auto progress = [&](const train::StepProgress& at) {
    steps.push_back(at.step);
    if (at.step != 35 || std::exchange(spoiled, true)) return;
    for (const parallel::Parameter& p : running->engine().model().parameters().parameters()) {
      if (p.spec.name != "model.norm.weight") continue;
      for (std::int64_t i = 0; i < p.primary().elements(); ++i) p.primary().as<float>()[i] *= -20;
    }
    running->engine().refresh();
  };
  train::Trainer trainer({.config = config({"precision.recipe=bf16", "training.steps=40", "checkpoint.interval=2"}),
                          .resume = "none",
                          .progress = progress});
  running = &trainer;
  ASSERT_EQ(trainer.run(), ExitCode::done);
  std::vector<std::int64_t> expected;
  for (std::int64_t step = 1; step <= 37; ++step) expected.push_back(step);
  for (std::int64_t step = 35; step <= 40; ++step) expected.push_back(step);
  EXPECT_EQ(steps, expected);
}

// Losses of other text are higher for good, which is no spike of the old text's.
TEST_F(Run, OtherDataBeginANewWindowOfLosses) {
  const std::vector<std::string> settings = {"precision.recipe=bf16", "training.steps=30", "anomaly.spike=1.2"};
  ASSERT_EQ(train::Trainer({.config = config(settings), .resume = "none"}).run(), ExitCode::done);
  std::string other;
  for (int i = 0; i < 9000; ++i) other += static_cast<char>(128 + i * i % 101);
  write_corpus(folder_ / "other", {other});
  train::Config changed = config({"precision.recipe=bf16", "training.steps=45", "anomaly.spike=1.2", "checkpoint.allow=data"});
  changed.data.source[0].path = (folder_ / "other").string();
  std::vector<std::int64_t> steps, expected;
  train::Trainer trainer({.config = changed, .progress = [&](const train::StepProgress& at) { steps.push_back(at.step); }});
  ASSERT_EQ(trainer.run(), ExitCode::done);
  for (std::int64_t step = 31; step <= 45; ++step) expected.push_back(step);
  EXPECT_EQ(steps, expected);
}

// From step 30 on, FP8 loses the inputs of every down_proj: their scales are so small that all codes are zero.
class Demote : public Run {
 protected:
  virtual void spoil(train::Trainer& trainer, std::int64_t step) const {
    if (step >= 30) multiply_scales(trainer, 0x1p-80f);
  }
  static void multiply_scales(train::Trainer& trainer, float factor) {
    for (const recipes::ScaleState::Named& state : trainer.engine().model().scales().tensors()) {
      const bool of_expert = state.name.ends_with(".w2.x.scale");
      if (state.name.ends_with("down_proj.x.scale") || of_expert) *state.tensor.as<float>() *= factor;
    }
  }
  static void destroy_norm(train::Engine& engine) {
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      if (p.spec.name != "model.norm.weight") continue;
      for (std::int64_t i = 0; i < p.primary().elements(); ++i) p.primary().as<float>()[i] *= -9;
    }
    engine.refresh();
  }
  // Runs this rank, and returns how it ends and which linears compute in BF16 then.
  struct Ended {
    ExitCode code = ExitCode::done;
    std::vector<std::string> demoted;
  };
  Ended run_rank(const train::Config& config, const std::string& resume, train::World* world) const {
    train::Trainer* running = nullptr;
    const auto progress = [&](const train::StepProgress& at) { spoil(*running, at.step); };
    train::Trainer trainer({.config = config, .resume = resume, .progress = progress, .world = world});
    running = &trainer;
    Ended ended;
    try {
      ended.code = trainer.run();
    } catch (const Error& error) {
      ended.code = error.code();
    }
    ended.demoted = trainer.engine().options().recipe.skip;
    return ended;
  }
  train::Config config_with(const std::vector<std::string>& overrides) const {
    std::vector<std::string> all = {"precision.recipe=fp8_delayed", "training.steps=60",       "checkpoint.interval=10",
                                    "checkpoint.keep_latest_k=0",   "metrics.health_freq=1",   "metrics.log_freq=1",
                                    "anomaly.spike=1.03",           "anomaly.max_rollbacks=2", "optimizer.lr=0.01"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return config(all);
  }
  std::pair<ExitCode, std::string> run(const std::vector<std::string>& overrides, const std::string& resume = "none") {
    ::testing::internal::CaptureStderr();
    const Ended ended = run_rank(config_with(overrides), resume, nullptr);
    demoted = ended.demoted;
    return {ended.code, ::testing::internal::GetCapturedStderr()};
  }
  std::vector<std::string> demoted;

 private:
  // A learning rate this high makes a trajectory chaotic. On that of BLAS no other linear is in danger.
  testing::UseTileKernel blas_{nullptr};
};

TEST_F(Demote, WithoutARemedyTheRunEnds) {
  const auto [code, said] = run({});
  EXPECT_EQ(code, ExitCode::not_finite) << said;
}

TEST_F(Demote, TheLinearsThatFp8LosesGoToBf16AndTheRunGoesOn) {
  const auto [code, said] = run({"anomaly.remedy=demote"});
  ASSERT_EQ(code, ExitCode::done) << said;
  EXPECT_TRUE(contains(said, "from now on in BF16: model.layers.0.mlp.down_proj, model.layers.1.mlp.down_proj")) << said;
  EXPECT_EQ(demoted, (std::vector<std::string>{"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"}));
  const auto metrics = metrics_of(folder_ / "out");
  EXPECT_LT(metrics.at(60)["loss"], metrics.at(25)["loss"]);
  EXPECT_EQ(read_lines(folder_ / "out/attention_health.jsonl").size(), 60u * 2) << "none of the step that was taken back";

  // The checkpoint remembers, so the run goes on to the same bits.
  const auto after = outcome_of(folder_ / "out");
  std::filesystem::remove_all(folder_ / "out/checkpoints/step-00000060");
  std::filesystem::remove_all(folder_ / "out/model");
  const auto [again, told] = run({"anomaly.remedy=demote"}, "auto");
  ASSERT_EQ(again, ExitCode::done) << told;
  EXPECT_EQ(demoted, (std::vector<std::string>{"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"}));
  EXPECT_TRUE(same_outcome(outcome_of(folder_ / "out"), after));

  // So does `octet eval`, whose configuration does not name them.
  write_text(folder_ / "run.toml", train::print_config(config_with({"anomaly.remedy=demote"})));
  const ProgramResult evaluated = run_program("eval run.toml --json --checkpoint out", folder_.path(), "OCTET_TILES=off exec");
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(json_of(evaluated.out)["eval_loss"].get<double>(), metrics.at(60)["eval_loss"].get<double>());

  // Without the remedy they would go back to FP8, which is another recipe.
  EXPECT_TRUE(contains(error_of(ExitCode::config,
                                [&] {
                                  train::Trainer({.config = config({"precision.recipe=fp8_delayed", "training.steps=70",
                                                                    "optimizer.lr=0.01", "run.set_aside=false"})});
                                }),
                       "precision.skip is "));

  // checkpoint.allow = "recipe" permits it.
  const auto [back, heard] = run({"checkpoint.allow=recipe", "training.steps=62", "anomaly.spike=off"}, "auto");
  ASSERT_EQ(back, ExitCode::done) << heard;
  EXPECT_EQ(demoted, (std::vector<std::string>{}));
  std::int64_t last = 0;  // sample of a down_proj in FP8
  for (const Json& line : read_lines(folder_ / "out/fp8_health.jsonl"))
    if (contains(line["tensor"].get<std::string>(), "down_proj")) last = line["step"];
  EXPECT_EQ(last, 62);
}

// The losses before a change of the data are low, and those after it are high without being spikes. After step 55 one is.
class ChangeOfData : public Demote {
 protected:
  void spoil(train::Trainer& trainer, std::int64_t step) const override {
    if (step != 55 || destroyed_) return;
    destroyed_ = true;
    destroy_norm(trainer.engine());
  }
  mutable bool destroyed_ = false;
};

TEST_F(ChangeOfData, ARollbackToItForgetsTheLossesBeforeIt) {
  write_corpus(folder_ / "first", std::vector<std::string>(24, std::string(400, 'a')));
  const std::vector<std::string> options = {"anomaly.spike=1.5", "checkpoint.interval=0", "metrics.health_freq=0"};
  auto before = options, after = options;
  before.insert(before.end(), {"training.steps=30", "data.source.0.path=" + (folder_ / "first").string()});
  after.emplace_back("checkpoint.allow=data");
  ASSERT_EQ(run(before).first, ExitCode::done);
  const auto [code, said] = run(after, "auto");
  EXPECT_EQ(code, ExitCode::done) << said;
  EXPECT_TRUE(contains(said, "; back to step 30, ")) << said;
  EXPECT_TRUE(contains(said, "(rollback 1 of 2)")) << said;
}

// The experts of a layer have one precision, so all of them follow the one that FP8 loses.
TEST_F(Demote, AllExpertsFollowOne) {
  const auto [code, said] =
      run({"anomaly.remedy=demote", "model.model_type=mixtral", "model.num_local_experts=3", "model.num_experts_per_tok=3"});
  ASSERT_EQ(code, ExitCode::done) << said;
  EXPECT_EQ(demoted, (std::vector<std::string>{"model.layers.0.block_sparse_moe.experts.*.w2",
                                               "model.layers.1.block_sparse_moe.experts.*.w2"}));
}

// The sample that decides may be older than the checkpoint from which a run goes on.
TEST_F(Demote, ACheckpointKnowsTheLastSample) {
  const std::vector<std::string> options = {"anomaly.remedy=demote", "metrics.health_freq=33", "checkpoint.interval=1",
                                            "anomaly.spike=off"};
  auto begun = options;
  begun.push_back("training.steps=35");
  ASSERT_EQ(run(begun).first, ExitCode::done);
  std::filesystem::remove_all(folder_ / "out/checkpoints/step-00000035");  // the last step is sampled, too
  const auto reader = checkpoint::Reader::open_latest(
      folder_ / "out/checkpoints", [](std::string_view) {}, {}, 0);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->meta().at("in_danger"), nlohmann::json({"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"}));
}

// The run goes back twice to a checkpoint that knows a sample from before the first time.
class DemoteTwice : public Demote {
 protected:
  void spoil(train::Trainer& trainer, std::int64_t step) const override {
    if (step >= 30 && destroyed_ == 0) multiply_scales(trainer, 0x1p-13f);
    if (destroyed_ == 2 || step != (destroyed_ == 0 ? 36 : 38)) return;
    ++destroyed_;
    destroy_norm(trainer.engine());
  }
  mutable int destroyed_ = 0;
};

TEST_F(DemoteTwice, NoLinearIsDemotedTwice) {
  const auto [code, said] = run({"anomaly.remedy=demote", "metrics.health_freq=33", "checkpoint.interval=5", "anomaly.spike=1.5",
                                 "optimizer.lr=0.003", "precision.margin=1", "training.steps=40"});
  ASSERT_EQ(code, ExitCode::done) << said;
  EXPECT_TRUE(contains(said, "(rollback 1 of 2); from now on in BF16: model.layers.0.mlp.down_proj")) << said;
  EXPECT_TRUE(contains(said, "(rollback 2 of 2); the last health sample found no linear in FP8")) << said;
  EXPECT_EQ(demoted, (std::vector<std::string>{"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"}));
}

// All ranks demote what one rank demotes, and a run goes on on another mesh with the same linears in BF16. From step 30 on, FP8
// flushes many inputs of every down_proj to zero, which samples find and the loss hardly shows. After step 36 the final norm is
// destroyed, so that on every mesh the run goes back after step 37.
struct Move {
  std::string from, to;  // names of meshes
};
void PrintTo(const Move& move, std::ostream* out) { *out << move.from << " to " << move.to; }

class DemoteOnRanks : public Demote, public ::testing::WithParamInterface<Move> {
 protected:
  struct On {
    std::string name;
    int ranks;
    std::vector<std::string> settings;
  };
  static On mesh_named(const std::string& name) {
    if (name == "shards")
      return {name, 2, {"parallel.shard=2", "parallel.reshard_after_forward=true", "parallel.gradients=sharded"}};
    if (name == "one") return {name, 1, {}};
    return {name, 2, {concat("parallel.", name, "=2")}};
  }
  void spoil(train::Trainer& trainer, std::int64_t step) const override {
    if (step >= 30) multiply_scales(trainer, 0x1p-13f);
    train::Engine& engine = trainer.engine();
    if (step != 36 || !engine.options().recipe.skip.empty()) return;
    destroy_norm(engine);
  }
  // Each rank is a thread that meets the others as a process would.
  std::string run_on(const On& mesh, const std::vector<std::string>& overrides, const std::string& resume = "none") {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), mesh.settings.begin(), mesh.settings.end());
    // A smaller learning rate keeps meshes near each other, and a margin keeps other linears from saturating now and then.
    for (const char* option : {"anomaly.remedy=demote", "anomaly.spike=1.5", "optimizer.lr=0.003", "precision.margin=1"})
      all.emplace_back(option);
    const train::Config config = config_with(all);
    train::check_config(config, mesh.ranks);
    const int port = comm::port_of(comm::listen_at("127.0.0.1", 0));
    std::vector<Ended> ended(static_cast<std::size_t>(mesh.ranks));
    ::testing::internal::CaptureStderr();
    run_ranks(mesh.ranks, [&](int rank) {
      const comm::RankEnvironment where{.rank = rank,
                                        .size = mesh.ranks,
                                        .local_rank = rank,
                                        .local_size = mesh.ranks,
                                        .host = mesh.ranks > 1 ? "127.0.0.1" : "",
                                        .port = mesh.ranks > 1 ? port : 0,
                                        .token = {},
                                        .source = "a test"};
      train::World world(where, config);
      ended[static_cast<std::size_t>(rank)] = run_rank(config, resume, &world);
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    for (const Ended& rank : ended) {
      EXPECT_EQ(rank.code, ExitCode::done) << mesh.name << ": " << said;
      EXPECT_EQ(rank.demoted, ended.front().demoted) << mesh.name;
    }
    demoted = ended.front().demoted;
    return said;
  }
  std::vector<double> losses(const std::string& out) const {
    std::vector<double> result;
    for (const auto& [step, line] : metrics_of(folder_ / out)) result.push_back(line["loss"]);
    return result;
  }
};

TEST_P(DemoteOnRanks, TheSameLinearsGoToBf16AndStayThereOnAnotherMesh) {
  const On one = mesh_named("one"), mesh = mesh_named(GetParam().from), next = mesh_named(GetParam().to);
  const std::vector<std::string> expected = {"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"};
  run_on(one, {"run.output_dir=" + (folder_ / "reference").string()});
  const std::vector<double> of_one = losses("reference");
  ASSERT_EQ(of_one.size(), 60u);

  const std::string out = "run.output_dir=" + (folder_ / mesh.name).string();
  const std::string said = run_on(mesh, {out});
  EXPECT_TRUE(contains(said, "from now on in BF16: model.layers.0.mlp.down_proj, model.layers.1.mlp.down_proj")) << said;
  EXPECT_EQ(demoted, expected);
  const std::vector<double> before = losses(mesh.name);
  ASSERT_EQ(before.size(), 60u);
  for (std::size_t step = 0; step < 60; ++step) EXPECT_NEAR(before[step], of_one[step], 0.02 * of_one[step]) << step + 1;
  EXPECT_LT(before[59], before[29]) << "it learns on";

  std::filesystem::remove_all(folder_ / mesh.name / "checkpoints/step-00000060");
  std::filesystem::remove_all(folder_ / mesh.name / "model");
  const std::string told = run_on(next, {out}, "auto");
  EXPECT_FALSE(contains(told, "rollback")) << told;
  EXPECT_EQ(demoted, expected) << "on " << next.name;
  const std::vector<double> after = losses(mesh.name);
  ASSERT_EQ(after.size(), 60u);
  for (std::size_t step = 0; step < 50; ++step) EXPECT_EQ(after[step], before[step]) << step + 1;
  for (std::size_t step = 50; step < 60; ++step) EXPECT_NEAR(after[step], before[step], 0.02 * before[step]) << step + 1;
  for (const Json& line : read_lines(folder_ / mesh.name / "fp8_health.jsonl")) {
    const std::string name = line["tensor"];
    EXPECT_FALSE(line["step"] > 50 && contains(name, "down_proj")) << name << ", step " << line["step"];
  }
}

std::string name_of_move(const ::testing::TestParamInfo<Move>& move) { return concat(move.param.from, "_to_", move.param.to); }
INSTANTIATE_TEST_SUITE_P(Quick, DemoteOnRanks, ::testing::Values(Move{"shards", "tensor"}), name_of_move);
INSTANTIATE_TEST_SUITE_P(Slow, DemoteOnRanks,
                         ::testing::Values(Move{"one", "shards"}, Move{"tensor", "context"}, Move{"context", "one"}),
                         name_of_move);

TEST_F(Demote, IsRefusedWhereNothingWouldTell) {
  EXPECT_TRUE(contains(error_of(ExitCode::config,
                                [&] {
                                  train::check_config(config({"anomaly.remedy=demote", "metrics.health_freq=0"}), 1);
                                }),
                       "there would be no health samples to judge by"));
  EXPECT_TRUE(contains(error_of(ExitCode::config,
                                [&] {
                                  train::check_config(config({"anomaly.remedy=demote", "parallel.pipeline=2"}), 2);
                                }),
                       "health samples cover only the first stage's layers"));
  EXPECT_TRUE(contains(error_of(ExitCode::config,
                                [&] {
                                  train::check_config(config({"anomaly.remedy=demote", "precision.recipe=bf16"}), 1);
                                }),
                       "no linear is in FP8 that could go to BF16"));
}

}  // namespace
}  // namespace octet::testing
