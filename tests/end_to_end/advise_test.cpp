// `octet advise` gives costs, names layers and makes one recommendation, as text and as JSON.
#include "support/folder.h"
#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

class Advise : public ::testing::Test {
 protected:
  ProgramResult advise(const std::string& options = "") const { return run_.run("advise run.toml --device cpu " + options); }
  Json advise_json(const std::string& options = "") const {
    const ProgramResult result = advise("--json " + options);
    EXPECT_EQ(result.code, 0) << result.err;
    return json_of(result.out);
  }
  // A model as large as Llama 3.1 8B. Its cost is only predicted.
  static constexpr const char* kLarge =
      "--model.hidden_size=4096 --model.intermediate_size=14336 --model.num_attention_heads=32 --model.num_key_value_heads=8 "
      "--model.max_position_embeddings=8192 --training.seq_len=8192 ";
  TinyRun run_;
};

TEST_F(Advise, ATinyModelIsFasterInBf16) {
  const ProgramResult result = advise();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part :
       {"qkv      [64, 32]", "gate_up  [128, 32]", "fp8_rowwise", "mxfp8 is emulated on Hopper",
        "precision.skip = [\"model.layers.*.mlp.down_proj\"]", "advice: bf16, because", "\n[precision]\nrecipe = \"bf16\"\n"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
  EXPECT_TRUE(says(result.out, "The head is counted in BF16 (precision.head)."));
  EXPECT_TRUE(says(advise("--precision.head=recipe").out, "The head is counted in the recipe (precision.head)."));
  EXPECT_EQ(result.out.find("measured"), std::string::npos) << "nothing measures on a CPU";
}

TEST_F(Advise, NamesTheKeysThatTheAdvisedRecipeRefuses) {
  const std::string options = "--precision.attention=fp8 --anomaly.remedy=demote";
  const std::string toml = advise_json(options)["recommendation"]["toml"];
  EXPECT_EQ(toml, "[precision]\nrecipe = \"bf16\"\nattention = \"bf16\"\n\n[anomaly]\nremedy = \"rollback\"\n");
  EXPECT_EQ(advise_json("")["recommendation"]["toml"], "[precision]\nrecipe = \"bf16\"\n");
  EXPECT_EQ(run_.train(options + " --dry-run --precision.recipe=bf16").code, 2);
  EXPECT_EQ(run_.train("--dry-run --precision.recipe=bf16 --precision.attention=bf16 --anomaly.remedy=rollback").code, 0);
}

// An expert of Qwen3 30B-A3B has 512 rows and small weights, so FP8 gains less there than in Mixtral, whose experts have 2048.
TEST(AdviseOn, MixturesHaveLinearsOfExperts) {
  const auto advice = [](const std::string& config) {
    const ProgramResult result = run_program("advise " + config + " --device cpu --json", source_dir());
    EXPECT_EQ(result.code, 0) << result.err;
    return json_of(result.out);
  };
  const auto gain_of_delayed = [](const Json& linear) { return linear["recipes"][1]["predicted"]["gain_pct"].get<double>(); };
  const Json mixtral = advice("configs/mixtral-8x7b.toml"), qwen = advice("configs/qwen3-30b-a3b.toml");
  for (const Json& model : {mixtral, qwen}) {
    ASSERT_EQ(model["linears"].size(), 5u);
    EXPECT_EQ(model["linears"][2]["name"], "experts.gate_up");
    EXPECT_EQ(model["linears"][3]["name"], "experts.down");
    EXPECT_EQ(model["linears"][1]["experts"], 0);
  }
  EXPECT_EQ(qwen["linears"][3]["experts"], 128);
  EXPECT_EQ(qwen["linears"][3]["pattern"], "model.layers.*.mlp.experts.*.down_proj");
  // 8192 tokens with two experts each: three products at up to 690e12 operations/s, and grouped ones reach 0.9 of that.
  const double floor_s = 3 * 2.0 * 16384 * 28672 * 4096 / 690e12 / 0.9;
  const double bf16_s = mixtral["linears"][2]["recipes"][0]["predicted"]["total_s"].get<double>();
  EXPECT_GT(bf16_s, floor_s);
  EXPECT_LT(bf16_s, 1.1 * floor_s);
  EXPECT_GT(gain_of_delayed(mixtral["linears"][2]), gain_of_delayed(qwen["linears"][2]));
  const ProgramResult adapted = run_program("advise configs/mixtral-8x7b.toml --device cpu --lora.rank=16", source_dir());
  EXPECT_TRUE(says(adapted.out, "experts.gate_up  8 x [28672, 4096]")) << adapted.out << adapted.err;
  EXPECT_TRUE(
      says(adapted.out, "A row of experts has the times of all 8 experts of a layer, if each gets the same number of rows."));
}

std::string health_line(int step, const std::string& tensor, double saturated, double flushed, double sqnr) {
  std::ostringstream line;
  line << R"({"step":)" << step << R"(,"tensor":")" << tensor << R"(","amax":1,"scale":1,"saturated_pct":)" << saturated
       << R"(,"flushed_pct":)" << flushed << R"(,"sqnr_db":)" << sqnr << "}\n";
  return line.str();
}

// The experts of a layer are kept in BF16 together.
TEST(AdviseOn, TheWorstExpertSpeaksForItsLayer) {
  const TemporaryFolder folder;
  const std::string experts = "model.layers.1.mlp.experts.";
  folder.write("fp8_health.jsonl", health_line(7, experts + "3.down_proj.x", 10, 0, 31) +
                                       health_line(7, experts + "5.down_proj.x", 30, 0, 31) +
                                       health_line(7, experts + "6.down_proj.x", 20, 0, 31));
  const std::string out =
      run_program("advise configs/qwen3-30b-a3b.toml --device cpu --health " + folder.path().string(), source_dir()).out;
  const std::string said = "keep " + experts + "*.down_proj in BF16: ";
  const std::size_t first = out.find(said + "input, saturated: 30.0%, the limit is 0.1%, in the worst of 3 experts\n");
  EXPECT_NE(first, std::string::npos) << out;
  EXPECT_EQ(out.find(said), first) << out;
  EXPECT_EQ(out.rfind(said), first) << out;
}

TEST_F(Advise, ALargeModelIsFasterInFp8) {
  const Json advice = advise_json(kLarge);
  EXPECT_EQ(advice["gpu"], "");
  EXPECT_EQ(advice["micro_batches"], 2);
  ASSERT_EQ(advice["linears"].size(), 5u);
  const Json& down = advice["linears"][3];
  EXPECT_EQ(down["name"], "down");
  EXPECT_EQ(down["out"], 4096);
  EXPECT_EQ(down["in"], 14336);
  ASSERT_EQ(down["recipes"].size(), 5u);
  const Json &bf16 = down["recipes"][0]["predicted"], &delayed = down["recipes"][1]["predicted"];
  EXPECT_EQ(bf16["casts_s"], 0.0);
  EXPECT_EQ(bf16["gain_pct"], 0.0);
  EXPECT_FALSE(down["recipes"][0].contains("measured"));
  // Three products of 2 * 16384 * 4096 * 14336 operations take this long at up to 690e12 operations/s.
  EXPECT_GT(bf16["total_s"].get<double>(), 3 * 2.0 * 16384 * 4096 * 14336 / 690e12);
  EXPECT_LT(bf16["total_s"].get<double>(), 1.1 * 3 * 2.0 * 16384 * 4096 * 14336 / 690e12);
  EXPECT_GT(delayed["gain_pct"].get<double>(), 50);
  EXPECT_EQ(advice["recommendation"]["recipe"], "fp8_delayed");
  EXPECT_EQ(advice["recommendation"]["skip"], Json::array());
  ASSERT_EQ(advice["recipes"].size(), 5u);
  for (const Json& recipe : advice["recipes"]) EXPECT_GT(recipe["memory_bytes"].get<std::int64_t>(), 1 << 30) << recipe;
}

// A frozen weight has two products instead of three. Adapters add some reads of what these multiply.
TEST_F(Advise, AFrozenModelHasNoWeightGradients) {
  const Json advice = advise_json(std::string(kLarge) + "--lora.rank=16");
  const double products = 2 * 2.0 * 16384 * 4096 * 14336 / 690e12;
  const double total = advice["linears"][3]["recipes"][0]["predicted"]["total_s"].get<double>();
  EXPECT_GT(total, products);
  EXPECT_LT(total, 1.25 * products);
}

// The dry run for the same device prints the same total.
TEST_F(Advise, MemoryIsThatOfThePlan) {
  std::string bytes = run_.train("--dry-run --run.device=cuda").out;
  bytes = bytes.substr(bytes.find("  total"));
  bytes = bytes.substr(0, bytes.find(" bytes"));
  std::erase_if(bytes, [](char c) { return c < '0' || c > '9'; });
  EXPECT_EQ(std::to_string(advise_json()["recipes"][1]["memory_bytes"].get<std::int64_t>()), bytes);
}

TEST_F(Advise, HealthNamesLayersToKeepInBf16) {
  const std::string down = "model.layers.1.mlp.down_proj", qkv = "model.layers.0.self_attn.q_proj.fused";
  std::string text;
  for (const int step : {7, 14, 21}) {
    text += health_line(step, qkv + ".g", 0, 40, 25.4) + health_line(step, qkv + ".x", 0, 0, 31.5);
    text += health_line(step, qkv + ".w", step == 21 ? 2 : 0, 0, 31.5);
    text += health_line(step, down + ".x", 0, 0, 20.5) + health_line(step, "model.layers.0.mlp.down_proj.x", 0, 0, 31.4);
  }
  std::filesystem::create_directories(run_ / "finished");
  write_text(run_ / "finished/fp8_health.jsonl", text);
  const std::string options = std::string(kLarge) + "--health finished";
  const Json advice = advise_json(options);
  ASSERT_EQ(advice["health"].size(), 3u) << advice["health"];
  EXPECT_EQ(advice["health"][0]["layer"], qkv);
  EXPECT_EQ(advice["health"][0]["figure"], "flushed to zero");
  EXPECT_EQ(advice["health"][0]["value"], 40.0);
  EXPECT_EQ(advice["health"][0]["step"], nullptr) << "a median";
  EXPECT_EQ(advice["health"][1]["figure"], "saturated");
  EXPECT_EQ(advice["health"][1]["step"], 21) << "the latest sample";
  EXPECT_EQ(advice["health"][2]["layer"], down);
  EXPECT_EQ(advice["health"][2]["figure"], "signal to noise");
  EXPECT_EQ(advice["recommendation"]["skip"], (Json{qkv, down}));

  const ProgramResult result = advise(options + "/fp8_health.jsonl");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("keep " + qkv + " in BF16: gradient, flushed to zero: 40.0%, the limit is 10%"), std::string::npos)
      << result.out;
  EXPECT_TRUE(says(result.out, "keep " + qkv + " in BF16: weight, saturated in step 21: 2.00%, the limit is 0.5%"));
  // The printed TOML can be pasted into a configuration.
  const std::size_t toml = result.out.find("[precision]");
  ASSERT_NE(toml, std::string::npos) << result.out;
  std::string run = tiny_toml();
  run.erase(run.find("[precision]"), run.find("[evaluation]") - run.find("[precision]"));
  write_text(run_ / "run.toml", run + result.out.substr(toml));
  const ProgramResult planned = run_.train("--dry-run");
  EXPECT_EQ(planned.code, 0) << planned.err;
  for (const char* kept : {"[64, 32]  x1   BF16", "[32, 64]  x1   BF16"}) {
    EXPECT_NE(planned.out.find(kept), std::string::npos) << planned.out;
  }
}

TEST_F(Advise, HealthOfARunThatTrained) {
  ASSERT_EQ(run_.train().code, 0);
  const ProgramResult result = advise("--health out");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("health, medians of out/fp8_health.jsonl"), std::string::npos) << result.out;
}

TEST_F(Advise, ARecipeThatIsRefusedSaysWhy) {
  // Weights of [40, 32] cannot be quantised, but they can be skipped.
  EXPECT_TRUE(refused(advise("--model.hidden_size=40"), 2, "40", "multiples of 16"));
  const Json advice = advise_json("--model.hidden_size=40 --precision.recipe=bf16");
  ASSERT_EQ(advice["recipes"].size(), 5u);
  EXPECT_NE(advice["recipes"][1]["refused"].get<std::string>().find("multiples of 16"), std::string::npos) << advice["recipes"];
  EXPECT_EQ(advice["recommendation"]["reason"], "bf16, because no FP8 recipe takes this model");
  EXPECT_NE(advise("--model.hidden_size=40 --precision.recipe=bf16").out.find("refused: "), std::string::npos);
}

TEST_F(Advise, AHeadThatFp8CannotTakeStaysInBf16) {
  const Json advice = advise_json("--model.vocab_size=257");
  ASSERT_EQ(advice["linears"].size(), 5u);
  EXPECT_EQ(advice["linears"][4]["name"], "head");
  EXPECT_EQ(advice["linears"][4]["recipes"].size(), 1u) << advice["linears"][4];
  EXPECT_FALSE(advice["recipes"][1].contains("refused")) << advice["recipes"];
}

TEST_F(Advise, RefusesInOneLine) {
  EXPECT_TRUE(refused(run_.run("advise"), 2, "RUN.toml"));
  EXPECT_TRUE(refused(run_.run("advise nowhere.toml"), 2, "nowhere.toml", "No such file"));
  EXPECT_TRUE(refused(run_.run("advise run.toml --device tpu"), 2, "`tpu` must be one of auto | cpu | cuda"));
  EXPECT_TRUE(refused(advise("--precision.recipe=fp8_delaid"), 2, "fp8_delaid", "did you mean fp8_delayed?"));
  EXPECT_TRUE(refused(advise("--precision.skip='*.nothing'"), 2, "*.nothing", "matches no linear layer"));
  EXPECT_TRUE(refused(advise("--helth out"), 2, "--helth", "did you mean --health?"));
  EXPECT_TRUE(refused(advise("--health nowhere"), 76, "nowhere: no such folder; give the folder of a run"));
  std::filesystem::create_directories(run_ / "empty");
  EXPECT_TRUE(refused(advise("--health empty"), 76, "empty/fp8_health.jsonl", "No such file"));
  write_text(run_ / "none.jsonl", "");
  EXPECT_TRUE(refused(advise("--health none.jsonl"), 76, "none.jsonl", "has no health samples"));
  EXPECT_TRUE(refused(advise("--health run.toml"), 76, "run.toml: has no health samples"))
      << "one line, not also one about lines";
  write_text(run_ / "other.jsonl", health_line(1, "model.layers.9.mlp.down_proj.x", 0, 0, 30));
  EXPECT_TRUE(refused(advise("--health other.jsonl"), 76, "other.jsonl", "model.layers.9.mlp.down_proj.x"));
}

}  // namespace
}  // namespace octet::testing
