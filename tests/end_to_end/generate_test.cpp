// `octet generate` and `octet convert export` can use what a run leaves.
#include "data/tokenizer/definitions.h"
#include "octet/checkpoint/model_dir.h"
#include "support/near.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

std::vector<double> values_named(const checkpoint::ModelWeights& weights, const std::string& name) {
  checkpoint::WeightReader reader(weights, name);
  std::vector<double> values(static_cast<std::size_t>(reader.elements()));
  reader.read(0, reader.elements(), DType::f64, values.data());
  return values;
}

class Model : public ::testing::Test {
 protected:
  Model() { EXPECT_EQ(run_.train("--training.steps=30").code, 0); }
  std::string generate(const std::string& options, const std::string& model = "out/model") const {
    const ProgramResult result = run_.run("generate --model " + model + " " + options);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  }
  TinyRun run_;
};

TEST_F(Model, WritesOnFromThePromptByItsSeed) {
  const std::string options = "--prompt 'the model ' --max-tokens 40 ";
  const std::string text = generate(options + "--seed 1");
  EXPECT_EQ(text.rfind("the model ", 0), 0u) << text;
  EXPECT_EQ(text.back(), '\n');
  EXPECT_GE(text.size(), std::string("the model \n").size() + 10);
  EXPECT_EQ(generate(options + "--seed 1"), text);
  EXPECT_NE(generate(options + "--seed 2"), text);
  // At temperature 0 the seed does not matter, and the model prints letters of the corpus.
  const std::string likeliest = generate(options + "--temperature 0 --seed 1");
  EXPECT_EQ(generate(options + "--temperature 0 --seed 2"), likeliest);
  EXPECT_EQ(likeliest.size(), std::string("the model \n").size() + 40);
  // The text with fewer tokens is the beginning of the text with more.
  const std::string fewer = generate("--prompt 'the model ' --max-tokens 10 --seed 1 --temperature 0");
  EXPECT_EQ(likeliest.rfind(fewer.substr(0, fewer.size() - 1), 0), 0u) << fewer << likeliest;
}

// The text ends before the first token that config.json names as its end.
TEST_F(Model, EndsWhereItsConfigSays) {
  const std::string prompt = "the model ", greedy = "--prompt '" + prompt + "' --temperature 0",
                    options = greedy + " --max-tokens 20";
  const std::string text = generate(options);
  const char last = text[prompt.size() + 7];  // the ids are the values of the bytes
  const std::filesystem::path file = run_ / "out/model/config.json";
  Json config = json_of(read_file(file));
  config["eos_token_id"] = {static_cast<unsigned char>(last), 255};
  write_text(file, config.dump());
  EXPECT_EQ(generate(options), text.substr(0, text.find(last, prompt.size())) + "\n");
  EXPECT_EQ(run_.run("generate --model out/model " + greedy + " --max-tokens 9223372036854775807").out, generate(options));
}

TEST_F(Model, PromptsMayBeLongAndOfAnyBytes) {
  const std::string longer(200, 'a');  // longer than the model's longest sequence, which has 64 tokens
  const ProgramResult beyond = run_.run("generate --model out/model --max-tokens 5 --prompt " + longer);
  EXPECT_EQ(beyond.code, 0) << beyond.err;
  EXPECT_EQ(beyond.out.rfind(longer, 0), 0u);
  EXPECT_EQ(beyond.err,
            "the model's longest sequence has 64 tokens, and this text may have 205: each new token is computed from the "
            "last 64 tokens\n");
  EXPECT_EQ(generate("--prompt 'ä→😀' --max-tokens 5").rfind("ä→😀", 0), 0u);
  EXPECT_TRUE(refused(run_.run("generate --model out/model --prompt ''"), 2, "--prompt is empty"));
  EXPECT_TRUE(refused(run_.run("generate --model out/model --chat chatml --prompt ''"), 2, "--prompt is empty"));
  EXPECT_TRUE(refused(run_.run("generate --model out/model"), 2, "--prompt is missing"));
}

// A copy of the run that was interrupted has a folder without a manifest.
TEST_F(Model, TheNewestCheckpointThatIsCompleteSpeaks) {
  const std::string options = "--prompt 'the ' --max-tokens 8 --temperature 0", text = generate(options, "out");
  std::filesystem::create_directories(run_ / "out/checkpoints/step-00000099");
  EXPECT_EQ(generate(options, "out"), text);
}

TEST_F(Model, SaysThatItsLogitsAreNotFinite) {
  std::string bytes = read_file(run_ / "out/model/model.safetensors");
  bytes.replace(bytes.size() - 64, 64, 64, '\xFF');  // NaN in BF16
  write_text(run_ / "out/model/model.safetensors", bytes);
  for (const char* chat : {"", " --chat zephyr"}) {
    EXPECT_TRUE(refused(run_.run(concat("generate --model out/model --max-tokens 4 --prompt x", chat)), 77,
                        "out/model: the logit of token ", " is NaN: weights are NaN, infinite or too large"));
  }
}

// If the vocabulary is larger than the tokenizer's, only ids of texts and of their ends are sampled.
TEST(Generate, WritesNoIdsOfPadding) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=1 --model.vocab_size=512").code, 0);
  const std::string generate = "generate --model out/model --max-tokens 40 --temperature 2 --prompt hi ";
  for (const std::string chat : {"", "--chat zephyr"}) {
    const ProgramResult result = run.run(generate + chat);
    EXPECT_EQ(result.code, 0) << result.err;
  }
  const std::size_t whole = run.run(generate).out.size();
  EXPECT_EQ(whole, std::string("hi\n").size() + 40);
  const std::filesystem::path file = run / "out/model/config.json";
  Json config = json_of(read_file(file));
  for (int id = 256; id < 512; ++id) config["eos_token_id"].push_back(id);
  write_text(file, config.dump());
  EXPECT_LT(run.run(generate).out.size(), whole);
}

TEST_F(Model, TalksUntilItIsToldToQuit) {
  write_text(run_ / "talk", "/quit\r\nhi\r\n");
  EXPECT_EQ(generate("--chat zephyr < talk"), "");
  EXPECT_TRUE(
      refused(run_.run("generate --model out/model --chat zephyr", "exec <&-; exec"), 76, "standard input: cannot read: "));
}

// --chat without a name takes the template beside the tokenizer, and the byte tokenizer has none.
TEST_F(Model, ChatNeedsNoName) {
  for (const char* chat : {"--chat", "--chat=auto"}) {
    EXPECT_TRUE(
        refused(run_.run(concat("generate --model out/model --prompt hi ", chat)), 2, "no chat template beside tokenizer byte"));
  }
}

TEST_F(Model, ACheckpointSpeaksToo) {
  const std::string text = generate("--prompt 'the ' --max-tokens 20 --temperature 0", "out/checkpoints/step-00000030");
  EXPECT_EQ(text.rfind("the ", 0), 0u) << text;
}

TEST_F(Model, ExportsTheWeightsThatTheRunLeft) {
  const ProgramResult result = run_.run("convert export --checkpoint out/checkpoints/step-00000030 --output exported");
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* name : {"model.safetensors", "config.json"}) {
    EXPECT_EQ(read_file(run_ / "exported" / name), read_file(run_ / "out/model" / name)) << name;
  }
  // In FP32 the export has the master weights. The model directory has them rounded to BF16.
  ASSERT_EQ(run_.run("convert export --checkpoint out/checkpoints/step-00000030 --output wide --dtype fp32").code, 0);
  const auto wide = checkpoint::ModelWeights::open(run_ / "wide"), narrow = checkpoint::ModelWeights::open(run_ / "out/model");
  ASSERT_EQ(wide.names(), narrow.names());
  bool differs = false;
  for (const std::string& name : wide.names()) {
    ASSERT_EQ(wide.find(name)->dtype, DType::f32);
    const std::vector<double> master = values_named(wide, name), rounded = values_named(narrow, name);
    ASSERT_EQ(master.size(), rounded.size());
    for (std::size_t i = 0; i < master.size(); ++i) {
      ASSERT_EQ(static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(master[i])))), rounded[i]) << name;
      differs |= master[i] != rounded[i];
    }
  }
  EXPECT_TRUE(differs);
  for (const char* command : {"convert export --checkpoint nowhere --output x", "convert import --input nowhere --output x",
                              "convert verify nowhere nowhere", "generate --model nowhere --prompt a",
                              "eval run.toml --checkpoint nowhere", "probe --model nowhere --tokens x --recipe fp32 --output x"})
    EXPECT_TRUE(refused(run_.run(command), 76, "octet: nowhere: no such folder; give a ")) << command;
}

TEST_F(Model, ExportsEveryKindOfStorage) {
  for (const std::string options :
       {"--precision.recipe=fp32", "--optimizer.master_weights=false", "--model.tie_word_embeddings=true"}) {
    ASSERT_EQ(run_.train("--resume none --run.set_aside=true --training.steps=3 " + options).code, 0);
    std::filesystem::remove_all(run_ / "exported");
    const std::string dtype = options.find("fp32") != std::string::npos ? "fp32" : "bf16";
    ASSERT_EQ(run_.run("convert export --checkpoint out/checkpoints/step-00000003 --output exported --dtype " + dtype).code, 0);
    EXPECT_EQ(read_file(run_ / "exported/model.safetensors"), read_file(run_ / "out/model/model.safetensors")) << options;
    EXPECT_EQ(read_file(run_ / "exported/config.json"), read_file(run_ / "out/model/config.json")) << options;
    EXPECT_EQ(generate("--prompt x --max-tokens 8 --temperature 0", "exported"),
              generate("--prompt x --max-tokens 8 --temperature 0"));
  }
}

// From texts to a model to text with a tokenizer.json. The model directory gets the tokenizer, and its ids begin and end
// documents.
TEST(Tokenizers, GoAlongWithTheModel) {
  const TinyRun run;
  std::filesystem::create_directories(run / "hf");
  write_text(run / "hf/tokenizer.json", data::byte_level_json({"t h", "th e", "Ġ the", "e r"}).dump());
  write_text(run / "hf/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  std::string lines;
  for (const std::string& document : tiny_documents()) lines += Json({{"text", document}}).dump() + "\n";
  write_text(run / "lines.jsonl", lines);
  const ProgramResult prepared = run.run("data prepare --input lines.jsonl --tokenizer hf --output corpus");
  ASSERT_EQ(prepared.code, 0) << prepared.err;
  std::string toml = read_file(run / "run.toml");
  toml.replace(toml.find("vocab_size = 256"), 16, "vocab_size = 272");
  toml.erase(toml.find("tokenizer = \"byte\""), 18);
  write_text(run / "run.toml", toml);
  const ProgramResult trained = run.train("--training.steps=10");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const ProgramResult exported = run.run("convert export --checkpoint out/checkpoints/step-00000010 --output exported");
  ASSERT_EQ(exported.code, 0) << exported.err;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(read_file(run / "out/model" / name), read_file(run / "hf" / name)) << name;
    EXPECT_EQ(read_file(run / "exported" / name), read_file(run / "hf" / name)) << name;
  }
  const Json tokenizer = json_of(read_file(run / "hf/tokenizer.json"));
  Json end;
  for (const Json& token : tokenizer["added_tokens"]) {
    if (token["content"] == "<|end|>") end = token["id"];
  }
  ASSERT_TRUE(end.is_number_integer());
  for (const char* directory : {"out/model", "exported"}) {
    EXPECT_EQ(json_of(read_file(run / directory / "config.json"))["eos_token_id"], end) << directory;
  }
  const std::string options = "--prompt 'the ä' --max-tokens 12 --temperature 0 --model ";
  const ProgramResult text = run.run("generate " + options + "out/model");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.rfind("the ä", 0), 0u) << text.out;
  EXPECT_EQ(run.run("generate " + options + "exported").out, text.out);
  EXPECT_EQ(run.run("generate " + options + "out/checkpoints/step-00000010").code, 0);
  // The text of a byte that is not UTF-8 is U+FFFD, which has more tokens than the prompt has bytes.
  Json config = json_of(read_file(run / "exported/config.json"));
  config["max_position_embeddings"] = 512;
  write_text(run / "exported/config.json", config.dump());
  const ProgramResult longer = run.run("generate --max-tokens 4 --model exported --prompt " + std::string(60, '\xFF'));
  EXPECT_EQ(longer.code, 0);
  EXPECT_EQ(longer.err, "");

  // A checkpoint uses the tokenizer that its run has kept, from everywhere.
  write_text(run / "hf/tokenizer.json", data::byte_level_json({"o f"}).dump());
  const TemporaryFolder elsewhere;
  const std::string absolute = (run / "out").string();
  EXPECT_EQ(run_program("generate " + options + absolute, elsewhere.path()).out, run.run("generate " + options + "out").out);
  ASSERT_EQ(run_program("convert export --output kept --checkpoint " + absolute, elsewhere.path()).code, 0);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    EXPECT_EQ(read_file(elsewhere / "kept" / name), read_file(run / "out/model" / name)) << name;

  // Runs of earlier versions did not keep the tokenizer of their corpus. One that has changed is not used.
  std::filesystem::remove_all(run / "out/checkpoints/tokenizer");
  const ProgramResult changed = run.run("convert export --checkpoint out/checkpoints/step-00000010 --output changed");
  EXPECT_EQ(changed.code, 0);
  EXPECT_NE(changed.err.find("has changed since"), std::string::npos) << changed.err;
  EXPECT_FALSE(std::filesystem::exists(run / "changed/tokenizer.json"));
}

// A base model ends texts with <|end|>. Chats teach it to end an answer with <|im_end|>, and the model that the run writes says
// so to every program, with the template.
TEST(Chats, TheModelKnowsItsTemplateAndWhereAnAnswerEnds) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2 --model.vocab_size=272 --run.output_dir=first").code, 0);
  std::filesystem::rename(run / "first/model", run / "base");
  Json tokenizer = data::byte_level_json();
  const int end = tokenizer["added_tokens"].back()["id"], turn_end = end + 2;
  tokenizer["added_tokens"].push_back(data::added_token("<|im_start|>", end + 1));
  tokenizer["added_tokens"].push_back(data::added_token("<|im_end|>", turn_end));
  write_text(run / "base/tokenizer.json", tokenizer.dump());
  write_text(run / "base/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  write_text(run / "base/generation_config.json", Json{{"eos_token_id", end}, {"top_k", 20}}.dump());
  Json config = json_of(read_file(run / "base/config.json"));
  config.erase("tokenizer");
  config["eos_token_id"] = end;
  write_text(run / "base/config.json", config.dump());
  std::string lines;
  for (const std::string& document : tiny_documents()) {
    lines +=
        Json{{"messages", {{{"role", "user"}, {"content", "hi"}}, {{"role", "assistant"}, {"content", document}}}}}.dump() + "\n";
  }
  write_text(run / "chats.jsonl", lines);
  ASSERT_EQ(run.run("data prepare --input chats.jsonl --tokenizer base --chat chatml --output chats").code, 0);
  std::string toml = tiny_toml();
  const std::size_t begin = toml.find("[model]"), sources = toml.find("[[data.source]]");
  write_text(run / "from.toml", toml.replace(begin, sources - begin, "[model]\ninit_from = \"base\"\n"));

  const std::string train = "train from.toml --training.steps=2 --data.source.0.path=chats ";
  const std::string says =
      concat("template chatml ends an answer with token ", turn_end, ", which is not in the model's eos_token_id (", end, ")");
  const ProgramResult trained = run.run(train);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find(says + "; the model that this run writes has it there, too\n"), std::string::npos) << trained.err;
  ASSERT_EQ(run.run("convert export --checkpoint out --output exported").code, 0);
  const ProgramResult lora = run.run(train + "--lora.rank=2 --run.output_dir=adapted");
  ASSERT_EQ(lora.code, 0) << lora.err;
  EXPECT_NE(
      lora.err.find("warning: " + says + "; an adapter cannot say so: merge it with `octet convert export --checkpoint adapted`"),
      std::string::npos)
      << lora.err;
  ASSERT_EQ(run.run("convert export --checkpoint adapted --output merged").code, 0);
  for (const std::string model : {"out/model", "exported", "merged"}) {
    EXPECT_EQ(json_of(read_file(run / model / "config.json"))["eos_token_id"], Json({end, turn_end})) << model;
    const Json generation = json_of(read_file(run / model / "generation_config.json"));
    EXPECT_EQ(generation, (Json{{"eos_token_id", {end, turn_end}}, {"top_k", 20}})) << model;
    const ProgramResult answer = run.run("generate --chat --prompt hi --max-tokens 4 --model " + model);
    EXPECT_EQ(answer.code, 0) << model << answer.err;
  }
  // A run that begins from such a model has nothing to add, and a template that is there stays.
  write_text(run / "out/model/chat_template.jinja", "of the user");
  const ProgramResult next = run.run(train + "--model.init_from=out/model --run.output_dir=next");
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_EQ(next.err.find("eos_token_id"), std::string::npos) << next.err;
  EXPECT_EQ(read_file(run / "next/model/chat_template.jinja"), "of the user");
  EXPECT_EQ(read_file(run / "next/model/generation_config.json"), read_file(run / "out/model/generation_config.json"));
}

}  // namespace
}  // namespace octet::testing
