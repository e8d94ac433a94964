// Named held-out sets, the best checkpoint, and a run that ends early.
#include <algorithm>
#include <cmath>
#include <set>

#include "octet/checkpoint/steps.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

class HeldOutSets : public ::testing::Test {
 protected:
  HeldOutSets() {
    write_corpus(run_ / "near", tiny_documents(3, 400));
    write_corpus(run_ / "far", {std::string(700, 'z') + std::string(700, 'q'), std::string(900, 'x')});
    write_text(run_ / "sets.toml", read_file(run_ / "run.toml") +
                                       "[[evaluation.source]]\nname = \"far-1\"\npath = \"far\"\n"
                                       "[[evaluation.source]]\nname = \"near\"\npath = \"near\"\n");
  }
  ProgramResult train(const std::string& options, const std::string& how = "exec") const {
    return run_.run("train sets.toml " + options, how);
  }
  TinyRun run_;
};

std::set<std::int64_t> checkpoints_of(const fs::path& run) {
  std::set<std::int64_t> steps;
  for (const checkpoint::StepDirectory& found : checkpoint::find_checkpoints(run / "checkpoints")) steps.insert(found.step);
  return steps;
}

TEST_F(HeldOutSets, AreEvaluatedApart) {
  ASSERT_EQ(train("--training.steps=10 --evaluation.interval=5").code, 0);
  const auto metrics = metrics_of(run_ / "out");
  for (const auto& [step, line] : metrics) EXPECT_EQ(line["eval_losses"].is_null(), step % 5 != 0) << step;
  const Json& losses = metrics.at(10)["eval_losses"];
  ASSERT_EQ(losses.size(), 2u) << losses;
  // Each loss is the one of a run whose only held-out text is that corpus.
  for (const auto& [name, corpus] : {std::pair("far-1", "far"), std::pair("near", "near")}) {
    const ProgramResult alone = run_.run(concat("eval run.toml --json --data.source.0.path=", corpus,
                                                " --data.split=0,1 --checkpoint out/checkpoints/step-00000010"));
    ASSERT_EQ(alone.code, 0) << alone.err;
    EXPECT_EQ(json_of(alone.out)["eval_loss"].dump(), losses[name].dump()) << name;
  }
  EXPECT_EQ(metrics.at(10)["eval_loss"], losses["far-1"]) << "the first one decides";
  EXPECT_EQ(json_of(read_file(run_ / "out/run.json"))["data"], "corpus, far (evaluation far-1), near (evaluation near)");

  const ProgramResult eval = run_.run("eval sets.toml --json --evaluation.decides=near --checkpoint out");
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(json_of(eval.out)["eval_losses"].dump(), losses.dump());
  EXPECT_EQ(json_of(eval.out)["eval_loss"], losses["near"]);
  const ProgramResult text = run_.run("eval sets.toml --checkpoint out");
  EXPECT_NE(text.out.find("step 10, held-out loss of far-1 "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("step 10, held-out loss of near "), std::string::npos) << text.out;
}

TEST_F(HeldOutSets, WithoutSequencesHaveNoLosses) {
  const ProgramResult result = train("--training.steps=2 --evaluation.interval=1 --evaluation.sequences=0");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.find("eval"), std::string::npos) << result.out;
  for (const auto& [step, line] : metrics_of(run_ / "out")) EXPECT_TRUE(line["eval_losses"].is_null()) << step;
}

TEST_F(HeldOutSets, DoNotChangeTheTraining) {
  ASSERT_EQ(train("--training.steps=10").code, 0);
  ASSERT_EQ(run_.train("--training.steps=10 --run.output_dir=alone").code, 0);
  const auto with = tensors_of(last_checkpoint(run_ / "out") / "rank-00000.safetensors");
  EXPECT_EQ(with, tensors_of(last_checkpoint(run_ / "alone") / "rank-00000.safetensors"));
}

TEST_F(HeldOutSets, WhatCannotBeMeantIsRefused) {
  const auto refuses = [&](const std::string& options, int code, const std::string& text) {
    const ProgramResult result = train(options);
    EXPECT_TRUE(refused(result, code, text)) << options;
    EXPECT_FALSE(fs::exists(run_ / "out/metrics.jsonl")) << options;
  };
  refuses("--evaluation.source.1.name=far-1", 2, "evaluation.source: two sources have the name far-1");
  refuses("--evaluation.source.1.name=\"a b\"", 2, "evaluation.source: name = \"a b\": may have letters, digits");
  refuses("--evaluation.source.1.name=", 2, "an [[evaluation.source]] has no name");
  refuses("--evaluation.source.2.name=new", 2, "evaluation.source new has no path");
  refuses("--evaluation.decides=fra-1", 2,
          "evaluation.decides = \"fra-1\": no [[evaluation.source]] has this name; there are far-1, near");
  refuses("--evaluation.source.0.path=nowhere", 76, "nowhere");
  refuses("--evaluation.patience=-1", 2, "evaluation.patience");
  refuses("--evaluation.patience=2 --evaluation.interval=0", 2, "evaluation.patience = 2: needs evaluation.interval above 0");
  refuses("--evaluation.keep_best=true --evaluation.sequences=0", 2,
          "evaluation.keep_best = true: needs evaluation.sequences above 0");
  EXPECT_TRUE(refused(run_.train("--evaluation.decides=far-1"), 2, "there is no [[evaluation.source]]"));
  EXPECT_TRUE(refused(run_.train("--evaluation.keep_best=true --data.split=1,0"), 2, "evaluation.keep_best needs held-out text"));
  // The corpora say which tokenizer they were made with.
  ASSERT_EQ(run_.run("data prepare --input run.toml --output made").code, 0);
  ASSERT_EQ(run_.run("data prepare --input run.toml --output other").code, 0);
  Json other = json_of(read_file(run_ / "other.json"));
  other["tokenizer"] = "elsewhere";
  other["tokenizer_hash"] = "0123456789abcdef";
  write_text(run_ / "other.json", other.dump());
  refuses("--data.source.0.path=made --data.split_by=windows --evaluation.source.1.path=other", 76,
          "other.json: prepared with tokenizer elsewhere");
}

// What must be in the folder of checkpoints after a run, by the evaluations in its metrics: the `latest` newest of those that
// were saved because of checkpoint.interval or at the end of a process, and the best.
std::set<std::int64_t> expected_checkpoints(const fs::path& run, std::int64_t interval, std::ptrdiff_t latest,
                                            const std::set<std::int64_t>& ends) {
  std::vector<std::int64_t> regular;
  std::int64_t best = 0;
  double lowest = INFINITY;
  for (const auto& [step, line] : metrics_of(run)) {
    if (step % interval == 0 || ends.count(step)) regular.push_back(step);
    if (!line["eval_loss"].is_null() && line["eval_loss"].get<double>() < lowest) {
      lowest = line["eval_loss"].get<double>();
      best = step;
    }
  }
  std::set<std::int64_t> expected(regular.end() - std::min(latest, std::ssize(regular)), regular.end());
  expected.insert(best);
  return expected;
}

// With this learning rate the loss of "far-1", which has none of the letters that are trained on, rises after a few steps.
const std::string kRises =
    "--training.steps=24 --evaluation.interval=2 --evaluation.keep_best=true --checkpoint.keep_latest_k=2 ";

TEST_F(HeldOutSets, TheBestCheckpointStaysBesideTheLatest) {
  for (const std::string set : {"far-1", "near"}) {
    for (const std::string async : {"true", "false"}) {
      const std::string options =
          kRises + "--run.set_aside=true --resume none --evaluation.decides=" + set + " --checkpoint.async=" + async;
      const ProgramResult result = train(options);
      ASSERT_EQ(result.code, 0) << result.err;
      EXPECT_EQ(checkpoints_of(run_ / "out"), expected_checkpoints(run_ / "out", 5, 2, {24})) << set;
      const Json info = json_of(read_file(run_ / "out/run.json"));
      const Json best = metrics_of(run_ / "out").at(info["best_step"].get<std::int64_t>());
      EXPECT_EQ(info["best_eval_loss"].dump(), best["eval_losses"][set].dump());
      const ProgramResult eval =
          run_.run(concat("eval sets.toml --json --evaluation.decides=", set, " --checkpoint out/checkpoints/",
                          checkpoint::step_name(info["best_step"].get<std::int64_t>())));
      EXPECT_EQ(json_of(eval.out)["eval_loss"].dump(), info["best_eval_loss"].dump()) << eval.err;
    }
  }
  // The two sets disagree, so `decides` matters: the first is best early, and its checkpoint was saved only because it is the
  // best.
  const auto metrics = metrics_of(run_ / "out");
  EXPECT_LT(metrics.at(2)["eval_losses"]["far-1"], metrics.at(24)["eval_losses"]["far-1"]);
  EXPECT_GT(metrics.at(2)["eval_losses"]["near"], metrics.at(24)["eval_losses"]["near"]);
}

TEST_F(HeldOutSets, ARunThatGoesOnKnowsItsBestCheckpoint) {
  for (const std::string set : {"far-1", "near"}) {
    std::set<std::int64_t> ends;
    const std::string options = kRises + "--lr_scheduler.decay=constant --evaluation.decides=" + set + " --run.output_dir=" + set;
    for (const std::int64_t end : {1, 3, 5, 6, 11, 18, 24}) {
      const ProgramResult result = train(options + " --training.steps=" + std::to_string(end));
      ASSERT_EQ(result.code, 0) << result.err;
      ends.insert(end);
      EXPECT_EQ(checkpoints_of(run_ / set), expected_checkpoints(run_ / set, 5, 2, ends)) << set << " after step " << end;
      EXPECT_EQ(result.err.find("the best again"), std::string::npos) << result.err;
    }
  }
}

TEST_F(HeldOutSets, AnotherSetOrALostCheckpointBeginsAnew) {
  ASSERT_EQ(train(kRises + "--training.steps=8").code, 0);
  const std::int64_t best = json_of(read_file(run_ / "out/run.json"))["best_step"];
  ASSERT_LT(best, 8);
  fs::remove_all(run_ / "out/checkpoints" / checkpoint::step_name(best));
  const ProgramResult lost = train(kRises + "--training.steps=12");
  EXPECT_NE(lost.err.find(concat("there is no checkpoint of the best evaluation, of step ", best,
                                 "; the next evaluation is the best again")),
            std::string::npos)
      << lost.err;
  EXPECT_GT(json_of(read_file(run_ / "out/run.json"))["best_step"], 8);
  const ProgramResult other = train(kRises + "--training.steps=14 --evaluation.decides=near");
  EXPECT_NE(other.err.find(", was of other held-out sequences; the next evaluation is the best again"), std::string::npos)
      << other.err;
  EXPECT_EQ(json_of(read_file(run_ / "out/run.json"))["best_step"], 14);
}

// Nobody loses a checkpoint because a key was changed or forgotten: the run says first what its next save will delete.
TEST_F(HeldOutSets, WhatTheNextSaveDeletesIsSaidBefore) {
  ASSERT_EQ(train(kRises + "--training.steps=12 --checkpoint.interval=2").code, 0);
  const std::int64_t best = json_of(read_file(run_ / "out/run.json"))["best_step"];
  ASSERT_LT(best, 10);
  fs::copy(run_ / "out", run_ / "other", fs::copy_options::recursive);
  const std::string more = kRises + "--training.steps=20 --until ";
  const ProgramResult forgotten = train(more + "13 --evaluation.keep_best=false");
  EXPECT_NE(forgotten.err.find(concat("warning: out/checkpoints: the next save deletes the checkpoints of steps 10, ", best,
                                      ", because this run has checkpoint.keep_latest_k = 2, keep_every = 0 and "
                                      "evaluation.keep_best = false. Copy what you want to keep")),
            std::string::npos)
      << forgotten.err;
  EXPECT_EQ(checkpoints_of(run_ / "out"), (std::set<std::int64_t>{12, 13}));
  // Other held-out text begins anew. The best checkpoint of the text before stays until then.
  const std::string near = "--run.output_dir=other --evaluation.decides=near ";
  const ProgramResult other = train(more + "13 " + near);
  EXPECT_NE(other.err.find(concat("other/checkpoints/", checkpoint::step_name(best),
                                  ", the best checkpoint before, may be deleted once the next best one is saved")),
            std::string::npos)
      << other.err;
  EXPECT_EQ(checkpoints_of(run_ / "other"), (std::set<std::int64_t>{best, 12, 13}));
  ASSERT_EQ(train(kRises + "--training.steps=20 --until 15 " + near).code, 0);
  EXPECT_EQ(checkpoints_of(run_ / "other"), (std::set<std::int64_t>{13, 14, 15})) << "that of step 14 is the best";
}

// The texts are mostly one letter, which a model learns at once. A few windows of noise make its loss jump, and the run goes
// back.
TEST(KeepBest, ARunThatWentBackHasItsBestCheckpoint) {
  std::vector<std::string> documents(60, std::string(160, 'a'));
  for (std::size_t d = 10; d < documents.size(); d += 20) {
    for (std::size_t i = 0; i < documents[d].size(); ++i) documents[d][i] = static_cast<char>('a' + (i * i * 7 + i * d) % 26);
  }
  const TinyRun run(documents);
  const ProgramResult result = run.train(
      "--training.steps=90 --training.global_batch_size=2 --optimizer.lr=1e-2 --checkpoint.interval=6 "
      "--checkpoint.keep_latest_k=2 "
      "--evaluation.interval=4 --evaluation.keep_best=true --metrics.tensorboard=false --anomaly.spike=2 "
      "--anomaly.max_rollbacks=50");
  ASSERT_EQ(result.code, 0) << result.err;
  ASSERT_NE(result.err.find("; back to step "), std::string::npos) << result.err;
  const auto metrics = metrics_of(run / "out");
  const Json info = json_of(read_file(run / "out/run.json"));
  const std::int64_t best = info["best_step"];
  EXPECT_EQ(metrics.at(best)["eval_loss"].dump(), info["best_eval_loss"].dump());
  EXPECT_EQ(checkpoints_of(run / "out"), (std::set<std::int64_t>{best, 84, 90}));
  // The best that the run knows is the lowest of those that it has not abandoned, from some evaluation on.
  for (const auto& [step, line] : metrics) {
    EXPECT_TRUE(step <= best || line["eval_loss"].is_null() || line["eval_loss"] >= info["best_eval_loss"]) << step;
  }
}

TEST_F(HeldOutSets, ImpatienceEndsTheRunWithCode0AndMorePatienceGoesOn) {
  const std::string options =
      "--evaluation.interval=2 --evaluation.keep_best=true --metrics.log_freq=1 --lr_scheduler.decay=constant ";
  const ProgramResult result = train(options + "--training.steps=40 --evaluation.patience=3");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto metrics = metrics_of(run_ / "out");
  const std::int64_t end = metrics.rbegin()->first;
  // The evaluations up to the end, by the definition of patience.
  std::int64_t best = 0;
  double lowest = INFINITY;
  for (const auto& [step, line] : metrics) {
    if (line["eval_loss"].is_null()) continue;
    if (line["eval_loss"].get<double>() < lowest) {
      lowest = line["eval_loss"].get<double>();
      best = step;
    }
    EXPECT_EQ(step - best == 3 * 2, step == end) << step;
  }
  ASSERT_LT(end, 40);
  EXPECT_NE(result.err.find(
                concat("ends early, after step ", end, " of 40: the last 3 evaluations of far-1 found no lower loss than ")),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find(concat(" at step ", best, " (out/checkpoints/", checkpoint::step_name(best),
                                   "), and evaluation.patience = 3. To train on, give the same command with a larger")),
            std::string::npos)
      << result.err;
  EXPECT_EQ(last_checkpoint(run_ / "out").filename(), checkpoint::step_name(end));
  EXPECT_TRUE(fs::exists(run_ / "out/model/model.safetensors"));

  // The same command does nothing more.
  const ProgramResult again = train(options + "--training.steps=40 --evaluation.patience=3");
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.err.find("ends early, after step "), std::string::npos) << again.err;
  EXPECT_EQ(metrics_of(run_ / "out").rbegin()->first, end);
  // More patience goes on as if the run had not ended.
  ASSERT_EQ(train(options + "--training.steps=40 --evaluation.patience=0").code, 0);
  ASSERT_EQ(train(options + "--training.steps=40 --evaluation.patience=0 --run.output_dir=whole").code, 0);
  const auto with = outcome_of(run_ / "out"), without = outcome_of(run_ / "whole");
  for (const auto& [name, value] : without) {
    EXPECT_TRUE(name == "meta" || (with.count(name) && with.at(name) == value)) << name;
  }
}

TEST_F(HeldOutSets, RanksDecideAlike) {
  const std::string options = kRises + "--training.micro_batch_size=1 --evaluation.patience=4 --checkpoint.interval=5 ";
  const ProgramResult one = train(options + "--run.output_dir=one");
  ASSERT_EQ(one.code, 0);
  EXPECT_NE(one.err.find("ends early"), std::string::npos) << one.err;
  for (const std::string mesh : {"--parallel.shard=2", "--parallel.tensor=2"}) {
    const ProgramResult two = run_.run("launch -n 2 -- train sets.toml --resume none --run.set_aside=true " + options + mesh);
    ASSERT_EQ(two.code, 0) << mesh << "\n" << two.err;
    EXPECT_EQ(checkpoints_of(run_ / "out"), checkpoints_of(run_ / "one")) << mesh;
    EXPECT_EQ(metrics_of(run_ / "out").size(), metrics_of(run_ / "one").size()) << mesh;
    // And goes on alike.
    const ProgramResult on =
        run_.run("launch -n 2 -- train sets.toml --evaluation.patience=0 " + options + mesh + " --evaluation.patience=0");
    ASSERT_EQ(on.code, 0) << mesh << "\n" << on.err;
    EXPECT_EQ(last_checkpoint(run_ / "out").filename(), checkpoint::step_name(24)) << mesh;
  }
}

}  // namespace
}  // namespace octet::testing
