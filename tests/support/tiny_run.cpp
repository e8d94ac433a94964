#include "support/tiny_run.h"

#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "octet/base/file.h"
#include "octet/base/rng.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/steps.h"
#include "octet/data/corpus_writer.h"
#include "octet/data/tokenizer/byte.h"

namespace octet::testing {

void write_corpus(const std::filesystem::path& prefix, const std::vector<std::string>& documents) {
  const data::ByteTokenizer tokenizer;
  data::CorpusWriter writer(prefix, tokenizer);
  for (const std::string& document : documents) {
    std::vector<std::int32_t> ids;
    tokenizer.encode(document, ids);
    writer.append(ids);
    writer.end_document();
  }
  writer.finish();
}

std::vector<std::string> tiny_documents(int documents, int words) {
  const std::vector<std::string> vocabulary = {"the ",     "model ",     "learns ",  "a scale ", "of each ",
                                               "tensor, ", "step by ",   "step. ",   "Codes ",   "saturate ",
                                               "and ",     "gradients ", "vanish; ", "weights ", "move "};
  const Rng rng(11, RngStream::test);
  std::vector<std::string> result;
  for (int d = 0; d < documents; ++d) {
    std::string text;
    for (int w = 0; w < words; ++w) {
      text += vocabulary[rng.word64(static_cast<std::uint64_t>(d * words + w)) % vocabulary.size()];
    }
    result.push_back(text);
  }
  return result;
}

std::string tiny_toml() {
  return R"([run]
name = "tiny"
output_dir = "out"
device = "cpu"
threads = 1
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 64
tokenizer = "byte"
[[data.source]]
path = "corpus"
[data]
split = [0.9, 0.1]
[training]
seq_len = 32
micro_batch_size = 2
global_batch_size = 4
steps = 24
[optimizer]
lr = 3e-3
[lr_scheduler]
warmup_steps = 5
[precision]
recipe = "fp8_delayed"
amax_history_len = 8
[evaluation]
interval = 10
sequences = 7
[checkpoint]
interval = 5
mtbf_hours = 0
[metrics]
log_freq = 1
health_freq = 7
)";
}

TinyRun::TinyRun(const std::vector<std::string>& documents) {
  write_text(folder_ / "run.toml", tiny_toml());
  write_corpus(folder_ / "corpus", documents);
}

pid_t TinyRun::pid_of_rank(int rank) const {
  const std::string variable = std::string(1, '\0') + "RANK=" + std::to_string(rank) + std::string(1, '\0');
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path() / "cwd", error) != std::filesystem::canonical(folder_.path())) continue;
    std::stringstream environment;  // reads until the end, because files in /proc have size 0
    environment << '\0' << std::ifstream(entry.path() / "environ").rdbuf();
    if (environment.str().find(variable) != std::string::npos) return std::stoi(entry.path().filename());
  }
  return -1;
}

std::vector<Json> read_lines(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(json_of(line));
  return lines;
}

std::map<std::int64_t, Json> metrics_of(const std::filesystem::path& run) {
  std::map<std::int64_t, Json> result;
  for (const Json& line : read_lines(run / "metrics.jsonl")) {
    EXPECT_TRUE(result.emplace(line["step"].get<std::int64_t>(), line).second) << "step " << line["step"] << " twice";
  }
  return result;
}

std::map<std::string, std::string> tensors_of(const std::filesystem::path& path) {
  const checkpoint::SafetensorsFile file = checkpoint::SafetensorsFile::open(path);
  std::map<std::string, std::string> result;
  for (const checkpoint::TensorInfo& info : file.tensors()) {
    const Tensor tensor = file.get(info.name);
    result[info.name] = std::string(reinterpret_cast<const char*>(tensor.data), tensor.bytes());
  }
  return result;
}

std::filesystem::path last_checkpoint(const std::filesystem::path& run) {
  const auto all = checkpoint::find_checkpoints(run / "checkpoints");
  return all.empty() ? std::filesystem::path() : all.front().path;
}

std::map<std::string, std::string> outcome_of(const std::filesystem::path& run) {
  std::map<std::string, std::string> result;
  for (auto [step, line] : metrics_of(run)) {
    for (const char* measured : {"step_time_s", "data_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu",
                                 "samples_per_s", "comm_exposed_s", "pipeline_bubble_s", "eta_s"}) {
      line.erase(measured);
    }
    result["metrics.jsonl, step " + std::to_string(step)] = line.dump();
  }
  result["fp8_health.jsonl"] = read_file(run / "fp8_health.jsonl");
  for (const std::string name : {"model/model.safetensors", "model/config.json"}) {  // absent if `--until` ended the run
    if (std::filesystem::exists(run / name)) result[name] = read_file(run / name);
  }
  const std::filesystem::path last = last_checkpoint(run);
  result["last checkpoint"] = last.filename().string();
  for (auto& [name, bytes] : tensors_of(last / "rank-00000.safetensors")) result["tensor " + name] = std::move(bytes);
  nlohmann::json meta = checkpoint::parse_manifest(read_file(last / "manifest.json"), "manifest").meta;
  meta.erase("config");  // contains the output directory
  meta.erase("toml");
  meta.erase("changes");  // such as the mesh of fewer hosts, with which a supervisor goes on after a fault
  result["meta"] = meta.dump();
  return result;
}

::testing::AssertionResult same_outcome(const std::map<std::string, std::string>& actual,
                                        const std::map<std::string, std::string>& expected) {
  for (const auto& [name, value] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end()) return ::testing::AssertionFailure() << name << " is missing";
    if (found->second == value) continue;
    const bool text = name.rfind("m", 0) == 0 && value.size() < 10000 && name.find("safetensors") == std::string::npos;
    return ::testing::AssertionFailure() << name << " differs"
                                         << (text ? ":\n" + found->second + "\nexpected\n" + value : std::string());
  }
  for (const auto& [name, value] : actual) {
    if (!expected.count(name)) return ::testing::AssertionFailure() << name << " is too much";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace octet::testing
