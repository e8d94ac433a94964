// Importing a directory takes little memory, however large the directory is.
#include <fcntl.h>
#include <unistd.h>

#include "octet/base/json.h"
#include "octet/checkpoint/model_weights.h"
#include "support/program.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// The model has 1.5 GB of F32 zeros in sparse files. The embedding and the head have half a GiB each. The program gets 900 MB of
// address space, part of which it needs for itself and its libraries.
TEST(ConvertMemory, AnImportNeedsLessThanTheModel) {
  const TemporaryFolder folder;
  const std::int64_t vocab = 1 << 17, dim = 1 << 10, ffn = 1 << 15;
  const Json config = {{"model_type", "llama"},         {"vocab_size", vocab},         {"hidden_size", dim},
                       {"intermediate_size", ffn},      {"num_hidden_layers", 1},      {"num_attention_heads", 8},
                       {"max_position_embeddings", 64}, {"tie_word_embeddings", false}};
  Json header;
  std::int64_t end = 0;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    std::int64_t bytes = 4;
    for (const std::int64_t d : shape) bytes *= d;
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  add("model.embed_tokens.weight", {vocab, dim});
  add("lm_head.weight", {vocab, dim});
  add("model.norm.weight", {dim});
  const std::string layer = "model.layers.0.";
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) add(layer + "self_attn." + name + ".weight", {dim, dim});
  add(layer + "mlp.gate_proj.weight", {ffn, dim});
  add(layer + "mlp.up_proj.weight", {ffn, dim});
  add(layer + "mlp.down_proj.weight", {dim, ffn});
  add(layer + "input_layernorm.weight", {dim});
  add(layer + "post_attention_layernorm.weight", {dim});

  fs::create_directory(folder / "in");
  std::ofstream(folder / "in/config.json") << config;
  const std::string text = header.dump();
  {
    std::ofstream file(folder / "in/model.safetensors", std::ios::binary);
    const std::uint64_t length = text.size();
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text;
  }
  const auto size = static_cast<std::uint64_t>(end) + text.size() + 8;
  ASSERT_GE(size, std::uint64_t{1'490'000'000});
  fs::resize_file(folder / "in/model.safetensors", size);

  for (const std::string command :
       {"import --input in --output out", "export --checkpoint in --output fp8 --dtype fp8", "verify in fp8 --weights-only"}) {
    const ProgramResult result = run_program("convert " + command, folder.path(), "ulimit -v 900000; exec");
    EXPECT_EQ(result.code, 0) << command << ": " << result.err;
  }
  EXPECT_EQ(checkpoint::ModelWeights::open(folder / "out").names().size(), 12u);
}

}  // namespace
}  // namespace octet::testing
