// Mistakes of users. Each gives one line on stderr with the value and the file, the right exit code, and no files.
#include <limits>

#include "octet/checkpoint/model_dir.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/tensor/host_tensor.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

class BadInput : public ::testing::Test {
 protected:
  // Replaces `right`, which run.toml must contain, by `wrong`.
  void edit(const std::string& right, const std::string& wrong) const {
    std::string text = tiny_toml();
    const std::size_t at = text.find(right);
    ASSERT_NE(at, std::string::npos) << right;
    write_text(run_ / "run.toml", text.replace(at, right.size(), wrong));
  }
  ::testing::AssertionResult nothing_written() const {
    if (fs::exists(run_ / "out/checkpoints") && !fs::is_empty(run_ / "out/checkpoints")) return ::testing::AssertionFailure();
    return fs::exists(run_ / "out/model") ? ::testing::AssertionFailure() : ::testing::AssertionSuccess();
  }
  // Returns "run.toml:27: " if line 27 of run.toml begins with `text`.
  static std::string line(const std::string& text) {
    const std::string toml = tiny_toml();
    return "run.toml:" + std::to_string(1 + count_lines(toml.substr(0, toml.find("\n" + text) + 1))) + ": ";
  }
  TinyRun run_;
};

// --- The configuration ------------------------------------------------------------------------------------------------------

TEST_F(BadInput, FilesThatAreNoConfiguration) {
  EXPECT_TRUE(refused(run_.run("train nowhere.toml"), 2, "nowhere.toml", "No such file"));
  EXPECT_TRUE(refused(run_.run("train ."), 2, "."));
  edit("lr = 3e-3", "lr = = 3e-3");
  EXPECT_TRUE(refused(run_.train(), 2, line("lr = ")));
  edit("[optimizer]", "[optimizer");
  EXPECT_TRUE(refused(run_.train(), 2, line("[optimizer]")));
  edit("steps = 24", "steps = 24\nsteps = 25");
  EXPECT_TRUE(refused(run_.train(), 2, line("[optimizer]"), "steps"));
  write_text(run_ / "run.toml", std::string("\0\xFF\xFE", 3));
  EXPECT_TRUE(refused(run_.train(), 2, "run.toml"));
  write_text(run_ / "run.toml", "");
  EXPECT_TRUE(refused(run_.train(), 2, "run.toml", "model"));
}

TEST_F(BadInput, DevicesThatAreNone) {
  EXPECT_TRUE(refused(run_.train("--run.device=tpu"), 2, "tpu"));
  EXPECT_TRUE(refused(run_.run("generate --model nowhere --prompt a --device tpu"), 2, "`tpu` must be one of auto | cpu | cuda"));
}

TEST_F(BadInput, KeysAndValues) {
  edit("lr = 3e-3", "learning_rate = 3e-3");
  EXPECT_TRUE(refused(run_.train(), 2, line("lr = "), "learning_rate", "did you mean optimizer.lr?"));
  edit("[optimizer]", "[optimiser]");
  EXPECT_TRUE(refused(run_.train(), 2, line("[optimizer]"), "optimiser", "did you mean optimizer?"));
  edit("lr = 3e-3", "lr = \"fast\"");
  EXPECT_TRUE(refused(run_.train(), 2, line("lr = "), "optimizer.lr", "must be a number"));
  edit("steps = 24", "steps = 2.5");
  EXPECT_TRUE(refused(run_.train(), 2, line("steps"), "training.steps", "2.5"));
  edit("steps = 24", "steps = -1");
  EXPECT_TRUE(refused(run_.train(), 2, line("steps"), "training.steps", "-1"));
  edit("micro_batch_size = 2", "micro_batch_size = 3");
  EXPECT_TRUE(refused(run_.train(), 2, "run.toml", "global_batch_size = 4", "micro_batch_size = 3"));
  edit("recipe = \"fp8_delayed\"", "recipe = \"fp8_delaid\"");
  EXPECT_TRUE(refused(run_.train(), 2, "run.toml", "fp8_delaid", "did you mean fp8_delayed?"));
  edit("amax_history_len = 8", "skip = [\"*.mlp.up\"]");
  EXPECT_TRUE(refused(run_.train(), 2, "precision.skip", "*.mlp.up", "matches no linear layer"));
  edit("seq_len = 32", "seq_len = 65");
  EXPECT_TRUE(refused(run_.train(), 2, "run.toml", "training.seq_len = 65", "max_position_embeddings = 64"));
  edit("hidden_size = 32", "hidden_size = 40");
  EXPECT_TRUE(refused(run_.train(), 2, "40", "multiples of 16"));
  edit("num_key_value_heads = 2", "num_key_value_heads = 3");
  EXPECT_TRUE(refused(run_.train(), 2, "run.toml", "num_key_value_heads", "3"));
  EXPECT_FALSE(fs::exists(run_ / "out"));
}

TEST_F(BadInput, Options) {
  EXPECT_TRUE(refused(run_.train("--optimizer.learning_rate=1"), 2, "--optimizer.learning_rate=1", "did you mean optimizer.lr?"));
  EXPECT_TRUE(refused(run_.train("--optimizer.lr=fast"), 2, "--optimizer.lr=fast", "must be a number"));
  EXPECT_TRUE(refused(run_.train("--precision.recipe=fp8_blok"), 2, "fp8_blok", "did you mean fp8_block?"));
  EXPECT_TRUE(refused(run_.train("--precision.skip='*.nothing'"), 2, "*.nothing", "matches no linear layer"));
  EXPECT_TRUE(refused(run_.train("--precision.skip='*.q_proj'"), 2, "*.q_proj",
                      "matches a part of model.layers.0.self_attn.q_proj.fused"));
  EXPECT_TRUE(refused(run_.train("--precision.skip='a\nfake: line'"), 2, "a\\nfake: line", "matches no linear layer"));
  EXPECT_TRUE(refused(run_.train("--model.init_from='a\nfake: line'"), 76, "a\\nfake: line"));
  EXPECT_TRUE(refused(run_.train("--dryrun"), 2, "--dryrun", "did you mean --dry-run?"));
  EXPECT_TRUE(refused(run_.train("another.toml"), 2, "another.toml"));
  EXPECT_TRUE(refused(run_.run("train"), 2, "RUN.toml"));
  EXPECT_TRUE(refused(run_.run("trian run.toml"), 2, "trian", "did you mean train?"));
  EXPECT_TRUE(refused(run_.run("eval run.toml"), 2, "--checkpoint"));
  EXPECT_TRUE(refused(run_.run("compare run.toml --recipes bf16,fp9"), 2, "fp9"));
  EXPECT_TRUE(refused(run_.train("--precision.recipe=mxfp8 --run.device=cuda"), 2, "mxfp8", "precision.emulate = true"));
  EXPECT_FALSE(fs::exists(run_ / "out"));
}

// --- The corpus -------------------------------------------------------------------------------------------------------------

TEST_F(BadInput, Corpora) {
  EXPECT_TRUE(refused(run_.train("--data.source.0.path=nowhere"), 76, "nowhere"));
  EXPECT_TRUE(refused(run_.train("--training.seq_len=64 --data.split=0.0,1.0"), 2, "data.split"));
  EXPECT_TRUE(refused(run_.train("--data.source.0.split=validation"), 2, "nothing to train on"));
  EXPECT_TRUE(refused(run_.train("--data.source.0.split=held_out"), 2, "auto | train | validation"));

  for (const char* end : {".idx", ".bin", ".json"})
    fs::copy(run_ / (std::string("corpus") + end), run_ / (std::string("bad") + end));
  const std::string with_bad = "--data.source.0.path=bad";
  for (const std::uintmax_t size : {std::uintmax_t{0}, std::uintmax_t{20}, fs::file_size(run_ / "corpus.idx") - 1}) {
    fs::resize_file(run_ / "bad.idx", size);
    EXPECT_TRUE(refused(run_.train(with_bad), 76, "bad.idx")) << size;
    fs::copy(run_ / "corpus.idx", run_ / "bad.idx", fs::copy_options::overwrite_existing);
  }
  fs::resize_file(run_ / "bad.bin", fs::file_size(run_ / "bad.bin") - 1);
  EXPECT_TRUE(refused(run_.train(with_bad), 76, "bad.bin"));
  fs::remove(run_ / "bad.bin");
  EXPECT_TRUE(refused(run_.train(with_bad), 76, "bad.bin"));

  write_corpus(run_ / "short", {"a few letters"});
  EXPECT_TRUE(refused(run_.train("--data.source.0.path=short"), 76, "short"));
  EXPECT_TRUE(nothing_written());
}

TEST_F(BadInput, EvaluationsThatGiveNoLossSayWhy) {
  ASSERT_EQ(run_.train("--training.steps=1 --checkpoint.interval=0 --optimizer.lr=1e30 --optimizer.weight_decay=1e30 "
                       "--lr_scheduler.warmup_steps=0 --lr_scheduler.decay=constant")
                .code,
            77);
  const std::string eval = "eval run.toml --checkpoint out/checkpoints/step-00000001 ";
  EXPECT_TRUE(refused(run_.run(eval + "--data.split=1,0"), 2, "no held-out text; set data.split"));
  EXPECT_TRUE(refused(run_.run(eval + "--evaluation.sequences=0"), 2, "evaluation.sequences = 0"));
  EXPECT_TRUE(refused(run_.run(eval), 77, "step-00000001: the held-out loss is not finite"));
}

TEST_F(BadInput, TextsToPrepare) {
  EXPECT_TRUE(refused(run_.run("data prepare --input nowhere --output new"), 76, "nowhere"));
  write_text(run_ / "empty.txt", "");
  EXPECT_TRUE(refused(run_.run("data prepare --input empty.txt --output new"), 76, "empty.txt", "no documents"));
  write_text(run_ / "broken.jsonl", "{\"text\": \"fine\"}\n{\"text\": \n");
  EXPECT_TRUE(refused(run_.run("data prepare --input broken.jsonl --output new"), 76, "broken.jsonl:2"));
  EXPECT_TRUE(refused(run_.run("data prepare --input corpus.bin --output new"), 2, "corpus.bin",
                      "path = \"corpus\" in [[data.source]]"));
  write_text(run_ / "tokens.bin", std::string("\0\1\377\377", 4));
  const ProgramResult tokens = run_.run("data prepare --input tokens.bin --output new");
  EXPECT_EQ(tokens.code, 76) << tokens.err;
  EXPECT_NE(tokens.err.find("tokens.bin: skipped: not UTF-8 text, wrong from byte 0 on; --format nanogpt takes"), std::string::npos)
      << tokens.err;
  for (const char* end : {".idx", ".bin", ".json"}) EXPECT_FALSE(fs::exists(run_ / (std::string("new") + end)));
}

TEST_F(BadInput, TokensBeyondTheVocabulary) {
  EXPECT_TRUE(refused(run_.train("--model.vocab_size=112"), 76, "corpus.json: the corpus has token ",
                      ", which is outside the model's vocabulary of 112; prepare the corpus"));
  EXPECT_FALSE(fs::exists(run_ / "out/checkpoints"));
  // A corpus of an earlier version does not say which token is its largest. Then one appears in the middle of the run. The
  // progress so far is saved.
  Json info = json_of(read_file(run_ / "corpus.json"));
  ASSERT_EQ(info.erase("largest_token"), 1u);
  write_text(run_ / "corpus.json", info.dump());
  const ProgramResult result = run_.train("--model.vocab_size=112 --checkpoint.interval=1 --evaluation.interval=0");
  EXPECT_EQ(result.code, 76) << result.err;
  std::istringstream lines(result.err);
  std::string warning, error, more;
  ASSERT_TRUE(std::getline(lines, warning) && std::getline(lines, error)) << result.err;
  EXPECT_FALSE(std::getline(lines, more)) << result.err;
  EXPECT_EQ(warning, "warning: corpus.json: its vocabulary has 256 tokens, the model's 112; a token beyond it will stop the run");
  EXPECT_EQ(error.rfind("octet: corpus.bin: ", 0), 0u) << error;
  EXPECT_NE(error.find("112"), std::string::npos) << error;
}

// --- Model directories ------------------------------------------------------------------------------------------------------

class BadModel : public BadInput {
 protected:
  BadModel() {
    EXPECT_EQ(run_.train("--training.steps=1 --run.output_dir=made").code, 0);
    const checkpoint::SafetensorsFile file = checkpoint::SafetensorsFile::open(run_ / "made/model/model.safetensors");
    for (const checkpoint::TensorInfo& info : file.tensors()) {
      const Tensor tensor = file.get(info);
      HostTensor copy(tensor.dtype, tensor.shape);
      std::memcpy(copy.data(), tensor.data, tensor.bytes());
      tensors_.emplace_back(info.name, std::move(copy));
    }
  }
  // Writes a directory "bad" with these tensors.
  void write(const std::vector<std::pair<std::string, HostTensor>>& tensors) const {
    fs::create_directories(run_ / "bad");
    fs::copy(run_ / "made/model/config.json", run_ / "bad/config.json", fs::copy_options::overwrite_existing);
    std::vector<checkpoint::NamedTensor> named;
    for (const auto& [name, tensor] : tensors) named.push_back({name, tensor.view()});
    checkpoint::write_safetensors(run_ / "bad/model.safetensors", named);
  }
  template <class... Parts>
  ::testing::AssertionResult refused_everywhere(const Parts&... parts) const {
    const auto trained = refused(run_.train("--model.init_from=bad"), 76, parts...);
    if (!trained) return trained;
    if (!nothing_written()) return ::testing::AssertionFailure() << "something was written";
    return refused(run_.run("generate --model bad --prompt x"), 76, parts...);
  }
  std::size_t index_of(const std::string& name) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].first == name) return i;
    }
    ADD_FAILURE() << name;
    return 0;
  }
  std::vector<std::pair<std::string, HostTensor>> tensors_;
};

TEST_F(BadModel, WeightsThatDoNotFit) {
  const std::string up = "model.layers.1.mlp.up_proj.weight", norm = "model.norm.weight";
  write(tensors_);
  EXPECT_EQ(run_.run("generate --model bad --prompt x --max-tokens 1").code, 0) << "the directory is good as it is";

  auto tensors = tensors_;
  tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(index_of(up)));
  write(tensors);
  EXPECT_TRUE(refused_everywhere("bad", up, "missing"));

  tensors = tensors_;
  tensors.emplace_back("model.layers.2.mlp.up_proj.weight", tensors_[index_of(up)].second);
  write(tensors);
  EXPECT_TRUE(refused_everywhere("bad", "model.layers.2.mlp.up_proj.weight"));

  tensors = tensors_;
  tensors[index_of(up)].second = HostTensor(DType::bf16, {32, 64});
  write(tensors);
  EXPECT_TRUE(refused_everywhere("bad", up, "[32, 64]", "[64, 32]"));

  tensors = tensors_;
  tensors[index_of(norm)].second = HostTensor(DType::i32, {32});
  write(tensors);
  EXPECT_TRUE(refused_everywhere("bad", norm, "I32"));
}

TEST_F(BadModel, FilesThatAreBroken) {
  write(tensors_);
  const fs::path weights = run_ / "bad/model.safetensors";
  const std::string whole = read_file(weights);
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{100}, whole.size() / 2, whole.size() - 1}) {
    write_text(weights, whole.substr(0, size));
    EXPECT_TRUE(refused_everywhere("bad/model.safetensors")) << size;
  }
  write_text(weights, whole + "x");
  EXPECT_TRUE(refused_everywhere("bad/model.safetensors"));
  write_text(weights, std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", 8) + whole.substr(8));  // a header of 2^63 - 1 bytes
  EXPECT_TRUE(refused_everywhere("bad/model.safetensors"));
  write_text(weights, whole);

  const std::string config = read_file(run_ / "bad/config.json");
  for (const std::string& text : {std::string(), config.substr(0, config.size() / 2), std::string("[1, 2]")}) {
    write_text(run_ / "bad/config.json", text);
    EXPECT_TRUE(refused_everywhere("bad/config.json")) << text;
  }
  write_text(run_ / "bad/config.json", std::string(config).replace(config.find("\"silu\""), 6, R"("si\u0000lu")"));
  EXPECT_TRUE(refused(run_.run("generate --model bad --prompt x"), 76, "bad/config.json: hidden_act", "NUL"));
  write_text(run_ / "bad/config.json", "{}");  // `train` takes what is missing from its own [model]
  EXPECT_TRUE(refused(run_.run("generate --model bad --prompt x"), 76, "bad/config.json"));
  fs::remove(run_ / "bad/config.json");
  EXPECT_TRUE(refused_everywhere("bad/config.json"));
  EXPECT_TRUE(refused(run_.train("--model.init_from=nowhere"), 76, "nowhere"));
}

TEST_F(BadInput, PlacesThatCannotBeWritten) {
  write_text(run_ / "file", "in the way");
  EXPECT_TRUE(refused(run_.train("--run.output_dir=file/out"), 2, "file/out"));
  EXPECT_TRUE(refused(run_.train("--run.output_dir=/proc/octet"), 2, "/proc/octet"));
  EXPECT_TRUE(refused(run_.run("compare run.toml --recipes bf16 --output a\xFF"), 2, "--output a\\xff: not UTF-8 text"));
  EXPECT_TRUE(refused(run_.run("train run.toml --print-config", "exec 1>/dev/full; exec"), 1, "No space left on device"));
}

}  // namespace
}  // namespace octet::testing
