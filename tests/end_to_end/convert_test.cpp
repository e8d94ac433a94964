// Tests what `octet convert` refuses and leaves alone, and how runs use directories in FP8. convert_oracle.py checks the values.
#include <limits>

#include "octet/checkpoint/model_dir.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/tensor/host_tensor.h"
#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

const std::string kCheckpoint = "out/checkpoints/step-00000006";

class Convert : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = std::make_unique<TinyRun>();
    ASSERT_EQ(made_->train("--training.steps=6 --precision.recipe=fp8_block").code, 0);
    ASSERT_EQ(made_->run("convert export --checkpoint " + kCheckpoint + " --output fp8 --dtype fp8").code, 0);
  }
  static void TearDownTestSuite() { made_.reset(); }
  // Returns a copy that a test may change.
  fs::path copy(const std::string& name) const {
    const fs::path path = folder_ / name;
    fs::copy(*made_ / name, path, fs::copy_options::recursive);
    return path;
  }
  ProgramResult run(const std::string& arguments) const { return made_->run(arguments); }

  static std::unique_ptr<TinyRun> made_;
  TemporaryFolder folder_;
};
std::unique_ptr<TinyRun> Convert::made_;

TEST_F(Convert, NothingIsOverwritten) {
  const std::string model = copy("fp8").string();
  const std::string before = read_file(fs::path(model) / "model.safetensors");
  for (const std::string command :
       {"import --input fp8", "export --checkpoint fp8", "export --checkpoint out/model --dtype fp32"}) {
    EXPECT_TRUE(refused(run("convert " + command + " --output " + model), 2, model, "exists already")) << command;
  }
  EXPECT_EQ(read_file(fs::path(model) / "model.safetensors"), before);
  // An empty folder is accepted as the output.
  fs::create_directory(folder_ / "empty");
  EXPECT_EQ(run("convert import --input fp8 --output " + (folder_ / "empty").string()).code, 0);
  EXPECT_EQ(run("convert verify fp8 " + (folder_ / "empty").string()).code, 0);
}

TEST_F(Convert, SizesOfFilesAreReadAsPeopleWriteThem) {
  for (const auto& [size, files] : std::vector<std::pair<std::string, int>>{{"35kb", 3}, {"35KiB", 2}, {"1", 21}}) {
    const fs::path output = folder_ / size;
    ASSERT_EQ(run("convert import --input fp8 --output " + output.string() + " --max-shard-size " + size).code, 0);
    const checkpoint::ModelWeights weights = checkpoint::ModelWeights::open(output);
    EXPECT_EQ(std::count_if(fs::directory_iterator(output), fs::directory_iterator(),
                            [](const fs::directory_entry& file) { return file.path().extension() == ".safetensors"; }),
              files)
        << size;
  }
  for (const std::string size : {"0", "-1", "5XB", "x"}) {
    EXPECT_TRUE(refused(run("convert import --input fp8 --output new --max-shard-size " + size), 2, "--max-shard-size")) << size;
  }
}

TEST_F(Convert, TheOutputNeedsAName) {
  EXPECT_TRUE(refused(run("convert import --input fp8 --output ''"), 2, "--output"));
  EXPECT_TRUE(refused(run("convert export --checkpoint " + kCheckpoint + " --output ''"), 2, "--output"));
  EXPECT_TRUE(refused(run("probe --model fp8 --tokens none --recipe bf16 --output ''"), 2, "--output"));
}

TEST_F(Convert, AFailureLeavesNothing) {
  const fs::path broken = copy("fp8");
  fs::resize_file(broken / "model.safetensors", fs::file_size(broken / "model.safetensors") - 1);
  EXPECT_TRUE(refused(run("convert import --input " + broken.string() + " --output " + (folder_ / "new").string()), 76,
                      "model.safetensors"));
  // The disk is full halfway, because files may have at most 8 blocks of 512 bytes.
  EXPECT_TRUE(refused(made_->run("convert import --input fp8 --output " + (folder_ / "new").string(), "ulimit -f 8; exec"), 1,
                      "cannot write"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 1);
}

TEST_F(Convert, EverythingWrongIsSaidAtOnce) {
  const fs::path broken = copy("fp8");
  checkpoint::SafetensorsFile file = checkpoint::SafetensorsFile::open(*made_ / "fp8/model.safetensors");
  std::vector<checkpoint::NamedTensor> tensors;
  HostTensor wrong(DType::f32, {2, 2});
  for (const checkpoint::TensorInfo& info : file.tensors()) {
    std::string name = info.name;
    if (name == "model.norm.weight") name = "model.norn.weight";
    tensors.push_back({name, info.name == "model.layers.0.mlp.up_proj.weight_scale_inv" ? wrong.view() : file.get(info)});
  }
  checkpoint::write_safetensors(broken / "model.safetensors", tensors);
  for (const std::string command : {"convert import --output new --input ", "generate --prompt x --model "}) {
    EXPECT_TRUE(refused(
        run(command + broken.string()), 76, "1 missing tensor: \"model.norm.weight\" (did you mean model.norn.weight?)",
        "1 unexpected tensor: \"model.norn.weight\"",
        "1 unfit tensor: \"model.layers.0.mlp.up_proj.weight_scale_inv\" is F32 [2, 2], expected F32, BF16, F16 or F64 [1, 1]"))
        << command;
  }
}

TEST_F(Convert, OtherQuantisationsAreRefused) {
  const fs::path other = copy("fp8");
  Json config = json_of(read_file(other / "config.json"));
  config["quantization_config"]["quant_method"] = "awq";
  write_text(other / "config.json", config.dump());
  for (const std::string command :
       {"convert import --output new --input ", "convert verify fp8 ", "generate --prompt x --model "}) {
    EXPECT_TRUE(refused(run(command + other.string()), 76, "quant_method = \"awq\" is not supported")) << command;
  }
}

TEST_F(Convert, KeepsWhatOtherProgramsRead) {
  const fs::path from = folder_ / "from", to = folder_ / "to";
  fs::copy(*made_ / "out/model", from);
  Json config = json_of(read_file(from / "config.json"));
  EXPECT_EQ(config["tokenizer"], "byte");
  config["dtype"] = config["torch_dtype"] = "float32";
  write_text(from / "config.json", config.dump());
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) write_text(from / name, name);
  const ProgramResult result = run("convert import --dtype bf16 --input " + from.string() + " --output " + to.string());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) EXPECT_EQ(read_file(to / name), name);
  for (const char* key : {"dtype", "torch_dtype"}) EXPECT_EQ(json_of(read_file(to / "config.json"))[key], "bfloat16") << key;
}

// A run starts from the values of the codes, in FP32 master weights and therefore also in BF16.
TEST_F(Convert, ARunBeginsWithADirectoryInFp8) {
  ASSERT_EQ(run("convert import --input fp8 --output plain").code, 0);
  const std::string toml = R"([run]
device = "cpu"
threads = 1
[[data.source]]
path = "corpus"
[training]
seq_len = 32
global_batch_size = 2
steps = 1
[optimizer]
lr = 0
[precision]
recipe = "bf16"
)";
  for (const std::string from : {"fp8", "plain"}) {
    write_text(*made_ / (from + ".toml"), toml + "[model]\ninit_from = \"" + from + "\"\n");
    const ProgramResult trained = run("train " + from + ".toml --run.output_dir=from-" + from);
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_EQ(run("convert verify --tolerance 0 plain from-" + from + "/model").code, 0) << from;
  }
  // Each of four ranks reads its shards of codes and scales, some of which are columns.
  const ProgramResult many =
      run("launch -n 4 -- train fp8.toml --parallel.tensor=2 --training.micro_batch_size=1 --run.output_dir=many");
  ASSERT_EQ(many.code, 0) << many.err;
  EXPECT_EQ(run("convert verify --tolerance 0 plain many/model").code, 0);
  EXPECT_EQ(run("generate --model fp8 --prompt 'the ' --max-tokens 8 --temperature 0").out,
            run("generate --model plain --prompt 'the ' --max-tokens 8 --temperature 0").out);
}

TEST_F(Convert, TheFormIsSaid) {
  const ProgramResult result =
      run("convert export --checkpoint " + kCheckpoint + " --output " + (folder_ / "x").string() + " --dtype fp8");
  EXPECT_NE(result.out.find("14 matrices in fp8, the rest in bf16"), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("x: 14 FP8 matrices have a dimension that is not a multiple of 128 ("), std::string::npos)
      << result.err;
  EXPECT_EQ(run("convert verify out/model fp8 --weights-only --tolerance 0.07").code, 0);
  EXPECT_TRUE(
      refused(run("convert verify out/model fp8 --tolerance 0.001 --json"), 1, "out/model and fp8 differ: ", "above 0.001"));
}

TEST_F(Convert, VerifySaysWhichArchitectureDiffers) {
  const fs::path other = copy("fp8");
  Json config = json_of(read_file(other / "config.json"));
  config["num_key_value_heads"] = 4;
  config["rope_theta"] = 5000.0;
  config["initializer_range"] = 0.5;  // does not affect what the model computes
  write_text(other / "config.json", config.dump());
  EXPECT_TRUE(refused(run("convert verify fp8 " + other.string()), 1,
                      "have different architectures: num_key_value_heads = 2 and 4, rope_theta = 10000.0 and 5000.0"));
  EXPECT_TRUE(refused(run("convert verify fp8 nowhere"), 76, "nowhere"));
}

// A model whose config.json ties the head to the embedding, and which has one more tensor: a head that is the embedding times
// `factor`.
fs::path tied_model_with_head(const fs::path& to, float factor) {
  fs::copy(fs::path(golden_dir()) / "llama/gqa-tied/model", to, fs::copy_options::recursive);
  const checkpoint::SafetensorsFile file = checkpoint::SafetensorsFile::open(to / "model.safetensors");
  std::vector<checkpoint::NamedTensor> tensors;
  for (const checkpoint::TensorInfo& info : file.tensors()) tensors.push_back({info.name, file.get(info)});
  const Tensor embedding = file.get("model.embed_tokens.weight");
  HostTensor head(embedding.dtype, embedding.shape);
  for (std::int64_t i = 0; i < embedding.elements(); ++i) head.view().as<float>()[i] = factor * embedding.as<float>()[i];
  tensors.push_back({"lm_head.weight", head.view()});
  checkpoint::write_safetensors(to / "with_head", tensors);
  fs::rename(to / "with_head", to / "model.safetensors");
  Json config = json_of(read_file(to / "config.json"));
  config["tokenizer"] = "byte";
  write_text(to / "config.json", config.dump());
  return to;
}

// transformers uses such a head if it differs from the embedding.
TEST_F(Convert, AHeadOfItsOwnIsNotDropped) {
  const std::string same = tied_model_with_head(folder_ / "same", 1).string();
  const std::string other = tied_model_with_head(folder_ / "other", 2).string();
  EXPECT_EQ(run("convert import --input " + same + " --output " + (folder_ / "plain").string()).code, 0);
  for (const std::string& command : {"convert verify " + same + " ", std::string("generate --prompt '!' --model "),
                                     "convert import --output " + (folder_ / "new").string() + " --input "}) {
    EXPECT_TRUE(refused(run(command + other), 76, other + ": \"lm_head.weight\" differs from \"model.embed_tokens.weight\"",
                        "set tie_word_embeddings = false"))
        << command;
  }
}

// Values that are not finite may be wanted, so the tensors are written.
TEST_F(Convert, NamesATensorThatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::string model = tied_model_with_head(folder_ / "model", 1).string(), output = (folder_ / "new").string();
  EXPECT_EQ(run("convert import --input " + model + " --output " + output).err.find("NaN"), std::string::npos);
  const checkpoint::SafetensorsFile file = checkpoint::SafetensorsFile::open(folder_ / "model/model.safetensors");
  std::vector<checkpoint::NamedTensor> tensors;
  for (const checkpoint::TensorInfo& info : file.tensors()) tensors.push_back({info.name, file.get(info)});
  const Tensor norm = file.get("model.norm.weight");
  HostTensor wrong(norm.dtype, norm.shape);
  for (const float value : {infinity, 3.4e38f}) {  // the second number becomes infinite in BF16
    for (std::int64_t i = 0; i < norm.elements(); ++i) wrong.view().as<float>()[i] = value;
    for (checkpoint::NamedTensor& tensor : tensors) {
      if (tensor.name == "model.norm.weight") tensor.tensor = wrong.view();
    }
    fs::create_directories(folder_ / "wrong");
    fs::copy(folder_ / "model/config.json", folder_ / "wrong/config.json", fs::copy_options::overwrite_existing);
    checkpoint::write_safetensors(folder_ / "wrong/model.safetensors", tensors);
    fs::remove_all(output);
    const ProgramResult result = run("convert import --input " + (folder_ / "wrong").string() + " --output " + output);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.err.find("1 tensor has values that are NaN or infinite: model.norm.weight"), std::string::npos)
        << result.err;
  }
}

TEST_F(Convert, VerifyComputesOnGivenTokens) {
  HostTensor tokens(DType::i32, {1, 70});
  for (int i = 0; i < 70; ++i) tokens.view().as<std::int32_t>()[i] = i;
  checkpoint::write_safetensors(folder_ / "long", {{"tokens", tokens.view()}});
  checkpoint::write_safetensors(folder_ / "short", {{"tokens", tokens.view().reshape({2, 35})}});
  EXPECT_TRUE(refused(run("convert verify fp8 fp8 --tokens " + (folder_ / "long").string()), 2, "70 tokens a row"));
  EXPECT_EQ(run("convert verify fp8 fp8 --tokens " + (folder_ / "short").string()).code, 0);
}

}  // namespace
}  // namespace octet::testing
