#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "octet/app/octet.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/require.h"

namespace octet::app {
namespace {

// Why a measurement may not write its numbers to this path, or "". It replaces only numbers of an earlier one: rows with seconds,
// or the object of a whole step. The parser asks before the measurement, which may take minutes.
std::string why_not_replaced(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path(), folder = parent.empty() ? "." : parent;
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return concat(folder.string(), ": cannot write to this folder: ", std::strerror(errno));
  try {
    if (!path_exists(path)) return "";
    const nlohmann::json json = parse_json(read_file(file_to_replace(path)), path);
    const nlohmann::json& first = json.is_array() && !json.empty() ? json.front() : json;
    if (!first.contains("seconds") && !first.contains("step_seconds"))
      return concat(path, ": this JSON is not from `octet bench`. Give another name, or remove it first");
  } catch (const Error& error) {
    return concat(error.what(), ". Give another name, or remove it first");
  }
  return "";
}

}  // namespace

void Octet::add_eval() {
  CLI::App& eval = add(
      root_,
      {.name = "eval",
       .summary = "Computes the held-out loss of a checkpoint, or of a model with or without an adapter.",
       .example = "octet eval configs/quickstart.toml --checkpoint out/quickstart/fp8_delayed\n  "
                  "octet eval configs/quickstart.toml --model out/quickstart/fp8_delayed/model",
       .notes = "With --model, a model directory is used instead of [model] and [lora] of RUN.toml. If it is an adapter, the "
                "model that it names is loaded, too. Everything else is as in a run that begins with this model: recipe, text "
                "and scales."},
      [this] { return run_eval(eval_); });
  line_.takes_run(eval, eval_.run);
  CLI::Option* const checkpoint =
      option(eval,
             {.name = "--checkpoint",
              .help = "Folder of a checkpoint, or of a run, which stands for its newest checkpoint. Required without --model.",
              .value = "DIR",
              .s3 = true},
             eval_.checkpoint);
  option(eval,
         {.name = "--model",
          .help = "Hugging Face directory, adapter directory of PEFT, checkpoint, or folder of a run: its newest checkpoint.",
          .value = "DIR",
          .s3 = true},
         eval_.model)
      ->excludes(checkpoint);
  flag(eval, json_field(), eval_.json);
}

void Octet::add_models() {
  CLI::App& generate =
      add(root_,
          {.name = "generate",
           .summary = "Continues a text with a model, or chats with it.",
           .example = "octet generate --model out/quickstart/fp8_delayed --prompt \"The \" --max-tokens 200\n  "
                      "octet generate --model out/quickstart/fp8_delayed --chat chatml",
           .notes = "With --chat the model answers every line of the standard input, and remembers the conversation. /quit or "
                    "the end of the input ends it. With --prompt too, it answers only the prompt."},
          [this] {
            // The parser leaves an option without a value empty, as if it were not there.
            const bool chats = root_.get_subcommand("generate")->count("--chat") > 0;
            if (chats && generate_.chat.empty()) generate_.chat = "auto";
            return run_generate(generate_);
          });
  option(generate,
         {.name = "--model",
          .help = "Hugging Face directory, adapter directory of PEFT, checkpoint, or folder of a run: its newest checkpoint.",
          .value = "DIR",
          .s3 = true},
         generate_.model)
      ->required();
  option(generate, {.name = "--prompt", .help = "Text to continue, or with --chat to answer.", .value = "TEXT"}, generate_.prompt);
  option(generate,
         {.name = "--chat",
          .help = "Chat with this template: llama3, llama3.1, chatml, qwen3, mistral, zephyr, or auto for the one next to the "
                  "tokenizer. Default: auto.",
          .value = "TEMPLATE"},
         generate_.chat)
      ->expected(0, 1);
  option(generate, {.name = "--system", .help = "With --chat: the system message.", .value = "TEXT"}, generate_.system);
  option(generate,
         {.name = "--max-tokens",
          .help = "Largest number of tokens to write, with --chat in each answer.",
          .value = "N",
          .range = kAtLeastOne},
         generate_.max_tokens)
      ->capture_default_str();
  option(generate,
         {.name = "--temperature",
          .help = "Randomness; 0 always takes the most likely token.",
          .value = "NUMBER",
          .range = kNotNegative},
         generate_.temperature)
      ->capture_default_str();
  option(generate, {.name = "--seed", .help = "Seed of the sampling.", .value = "N"}, generate_.seed)->capture_default_str();
  device_option(generate, generate_.device);
  add_convert();
}

void Octet::add_convert() {
  CLI::App& convert =
      add(root_, {.name = "convert",
                  .summary = "Converts between checkpoints and Hugging Face directories.",
                  .example = "octet convert export --checkpoint out/quickstart/fp8_delayed --output out/exported"});
  const auto add_output = [this](CLI::App& command, std::filesystem::path& output, std::int64_t& max_shard_size) {
    option(command,
           {.name = "--output",
            .help = "Directory to write. It must be empty or must not exist, and appears when it is complete.",
            .value = "DIR"},
           output)
        ->required();
    size_option(command, {.name = "--max-shard-size", .help = "Largest file of weights: 500MB, 5GB, 4GiB. Default: 5GB."}, max_shard_size);
  };
  CLI::App& exporting = add(
      convert,
      {.name = "export",
       .summary = "Writes the model of a checkpoint as a Hugging Face directory.",
       .example = "octet convert export --checkpoint out/quickstart/fp8_delayed --output out/quickstart-fp8 --dtype fp8",
       .notes = "fp8 writes the linear layers of the blocks as E4M3 codes with 128 x 128 scales, as fp8_block trains them, for "
                "inference "
                "servers. Embedding, head and norms stay in BF16. Adapters are added to the weights of the model that the run "
                "began with."},
      [this] { return run_convert_export(export_); });
  option(exporting,
         {.name = "--checkpoint",
          .help = "Folder of a checkpoint or of a run, or a Hugging Face directory, or an adapter directory of PEFT.",
          .value = "DIR",
          .s3 = true},
         export_.checkpoint)
      ->required();
  add_output(exporting, export_.output, export_.max_shard_size);
  CLI::Option* dtype =
      option(exporting, {.name = "--dtype", .help = "Type of the weights.", .choices = "bf16 | fp32 | fp8"}, export_.dtype)
          ->capture_default_str();
  flag(exporting, {.name = "--adapter", .help = "Write only the adapters of a run with [lora], as a directory of PEFT."},
       export_.adapter)
      ->excludes(dtype);

  CLI::App& importing =
      add(convert,
          {.name = "import",
           .summary = "Rewrites a Hugging Face directory of any form as plain weights.",
           .example = "octet convert import --input out/quickstart-fp8 --output out/quickstart-bf16",
           .notes = "Training, evaluation and generation read every form by themselves ([model] init_from = DIR): one file or "
                    "shards, in F32, BF16, F16, or FP8 with 128 x 128 scales. Import checks a directory without a run. It writes "
                    "BF16, which all programs read, rounded to nearest even: BF16 cannot represent all values of F16 and F32."},
          [this] { return run_convert_import(import_); });
  option(importing, {.name = "--input", .help = "Hugging Face directory.", .value = "DIR", .s3 = true}, import_.input)->required();
  add_output(importing, import_.output, import_.max_shard_size);
  option(importing, {.name = "--dtype", .help = "Type of the weights.", .choices = "bf16 | fp32"}, import_.dtype)->capture_default_str();

  CLI::App& verify =
      add(convert,
          {.name = "verify",
           .summary = "Compares two Hugging Face directories: do they hold the same model?",
           .example = "octet convert verify out/quickstart-fp8 out/quickstart-bf16",
           .notes = "Compares architecture, names and weights, then logits, loss and all gradients in FP32 on the CPU. If "
                    "they differ, the exit code is 1 and the message names the worst tensor. To compare an FP8 directory with "
                    "its BF16 original, set a larger tolerance."},
          [this] { return run_convert_verify(verify_); });
  option(verify, {.name = "A", .help = "Hugging Face directory.", .value = "DIR", .s3 = true}, verify_.a)->required();
  option(verify, {.name = "B", .help = "Another Hugging Face directory.", .value = "DIR", .s3 = true}, verify_.b)->required();
  option(verify,
         {.name = "--tolerance",
          .help = "Largest difference that a tensor may have, relative to its largest element.",
          .value = "NUMBER",
          .range = kNotNegative},
         verify_.tolerance)
      ->capture_default_str();
  option(verify, {.name = "--tokens", .help = "safetensors file with tokens [B, T]. Default: random tokens.", .value = "FILE"},
         verify_.tokens);
  option(verify, {.name = "--seed", .help = "Seed of the random tokens.", .value = "N"}, verify_.seed)->capture_default_str();
  flag(verify, {.name = "--weights-only", .help = "Compare only the weights. For models that do not fit into memory in FP32."},
       verify_.weights_only);
  flag(verify, {.name = "--json", .help = "Print every tensor as JSON, for programs."}, verify_.json);
}

// Windows onto the numbers, for comparison with other programs.
void Octet::add_numerics() {
  CLI::App& probe =
      add(root_,
          {.name = "probe",
           .summary = "Writes logits, loss and gradients of a model, to compare them with another program.",
           .example = "octet probe --model out/quickstart/fp8_delayed --tokens tokens.safetensors --recipe fp32 "
                      "--output probe.safetensors --grads",
           .notes = "You make tokens.safetensors yourself. In Python, with the packages numpy and safetensors:\n"
                    "  safetensors.numpy.save_file({\"tokens\": numpy.array([[84, 104, 101, 32]])}, \"tokens.safetensors\")"},
          [this] { return run_probe(probe_); });
  option(probe, {.name = "--model",
          .help = "Hugging Face directory, adapter directory of PEFT, or folder of a run: its model or adapter.",
          .value = "DIR",
          .s3 = true},
         probe_.model)
      ->required();
  option(probe, {.name = "--tokens", .help = "safetensors file with tokens [B, T] and optionally targets [B, T].", .value = "FILE"},
         probe_.tokens)
      ->required();
  option(probe, {.name = "--recipe", .help = "Precision of the linear layers.", .value = "RECIPE"}, probe_.recipe)->required();
  option(probe, {.name = "--output", .help = "safetensors file to write.", .value = "FILE"}, probe_.output)->required();
  option(probe, {.name = "--device", .help = "Device that computes.", .choices = "cpu | cuda"}, probe_.device)->capture_default_str();
  option(probe,
         {.name = "--calibrate",
          .help = "Set the scales of fp8_delayed from the tokens of this file; default: those of --tokens.",
          .value = "FILE"},
         probe_.calibrate);
  flag(probe, {.name = "--grads", .help = "Also write every gradient."}, probe_.grads);
  option(probe,
         {.name = "--steps",
          .help = "Then train this many steps on the tokens (AdamW, lr 1e-3), and write the loss of each as `losses`. The other "
                  "outputs are those before the first step.",
          .value = "N",
          .range = {.min = 0, .max = 1 << 20}},
         probe_.steps);
  option(probe,
         {.name = "--dump",
          .help = "Write the operands and products of the FP8 linear layers that match; needs --steps.",
          .value = "PATTERN"},
         probe_.dump);
  option(probe,
         {.name = "--set",
          .help = "A key of a run: one of [precision], [optimizer] or [activation_checkpoint], training.micro_batch_size, "
                  "training.grad_dtype, run.seed, run.threads or run.deterministic. May be repeated.",
          .value = "KEY=VALUE"},
         probe_.set)
      ->expected(1)
      ->take_all();

  CLI::App& quantize = add(
      root_,
      {.name = "quantize",
       .summary = "Writes the FP8 codes and scales of tensors, to check the numerics.",
       .example = "octet quantize --input out/quickstart/fp8_delayed/model/model.safetensors --recipe fp8_block --role weight "
                  "--output codes.safetensors"},
      [this] { return run_quantize(quantize_); });
  option(quantize, {.name = "--input", .help = "safetensors file with 2-D tensors in BF16, F16 or F32.", .value = "FILE"}, quantize_.input)
      ->required();
  option(quantize, {.name = "--recipe", .help = "FP8 recipe that quantises.", .value = "FP8_RECIPE"}, quantize_.recipe)
      ->required();
  option(quantize,
         {.name = "--role", .help = "Role of the tensors in a linear layer.", .choices = "activation | weight | gradient"},
         quantize_.role)
      ->required();
  option(quantize, {.name = "--output", .help = "safetensors file to write.", .value = "FILE"}, quantize_.output)->required();
  option(quantize, {.name = "--scale", .help = "Use this scale. For recipes with one scale per tensor.", .value = "NUMBER"},
         quantize_.scale);
  option(quantize, {.name = "--device", .help = "Device that computes.", .choices = "cpu | cuda"}, quantize_.device)->capture_default_str();
  option(quantize, {.name = "--set", .help = "A key of [precision]: precision.key=value. May be repeated.", .value = "KEY=VALUE"},
         quantize_.set)
      ->expected(1)
      ->take_all();
  option(quantize, {.name = "--state", .help = "safetensors file with the state of delayed scaling to begin with.", .value = "FILE"},
         quantize_.state);
  option(quantize, {.name = "--state-out", .help = "safetensors file to write that state to at the end.", .value = "FILE"},
         quantize_.state_out);
}

void Octet::add_bench() {
  CLI::App& bench = add(root_, {.name = "bench",
                                .summary = "Measures the speed of Octet's parts and compares it with the limits of this "
                                           "machine.",
                                .example = "octet bench gemm --json gemm.json"});
  const auto json = [this](CLI::App& command, std::filesystem::path& file) {
    option(command, {.name = "--json", .help = "File to write the numbers to.", .value = "FILE"}, file)->check(why_not_replaced);
  };
  const auto add_kind = [&](const char* name, const char* summary, int (*run)(const BenchArgs&)) -> CLI::App& {
    CLI::App& kind =
        add(bench, {.name = name, .summary = summary, .example = concat("octet bench ", name)}, [this, run] { return run(bench_); });
    json(kind, bench_.json);
    return kind;
  };
  add_kind("gemm", "Measures matrix products in BF16 and FP8.", run_bench_gemm);
  add_kind("quantize", "Measures casts to FP8 with their amax.", run_bench_quantize);
  add_kind("attention", "Measures attention, forward and backward.", run_bench_attention);
  add_kind("kernels", "Measures the memory-bound kernels of a step on a GPU.", run_bench_kernels);
  add_kind("loader", "Measures how fast a corpus is read for 8 ranks of this machine.", run_bench_loader);
  CLI::App& tokenize = add(bench,
                           {.name = "tokenize",
                            .summary = "Measures a tokenizer on one core and on all.",
                            .example = "octet bench tokenize --tokenizer byte --input documents.jsonl",
                            .notes = "documents.jsonl is your own file, with a line {\"text\": \"...\"} for each document."},
                           [this] { return run_bench_tokenize(tokenize_); });
  option(tokenize, {.name = "--tokenizer", .help = "byte, a model directory or a tokenizer file.", .value = "PATH"}, tokenize_.tokenizer)
      ->required();
  option(tokenize, {.name = "--input", .help = "JSONL file whose lines have a \"text\".", .value = "FILE"}, tokenize_.input)->required();
  json(tokenize, tokenize_.json);
  CLI::App& comm = add_kind("comm", "Measures collectives between GPUs over NCCL, or on the CPU over Gloo.", run_bench_comm);
  option(comm,
         {.name = "-n,--ranks",
          .help = "Ranks, as threads of this process. Default: all GPUs, or two on the CPU.",
          .value = "N",
          .range = {.min = 2, .max = 64}},
         bench_.ranks);
  device_option(comm, bench_.device);
  CLI::App& step = add_kind("step", "Measures a training step: of every recipe, or of a run, kernel by kernel.", run_bench_step);
  option(step,
         {.name = "RUN.toml",
          .help = "Run whose step is measured. Without it: a step of a small model in every recipe.",
          .value = "FILE"},
         bench_.run.path);
  option(step, {.name = "--seconds", .help = "How long the steps of a run are measured.", .value = "SECONDS", .range = kPositive},
         bench_.seconds)
      ->capture_default_str();
  line_.takes_keys(step, bench_.run);
  CLI::App& checkpoint =
      add(bench,
          {.name = "checkpoint",
           .summary = "Measures how long a save stops training, and how fast a checkpoint is copied and written.",
           .example = "octet bench checkpoint configs/quickstart.toml"},
          [this] { return run_bench_checkpoint(bench_); });
  json(checkpoint, bench_.json);
  option(checkpoint, {.name = "RUN.toml", .help = "Run whose saves are measured.", .value = "FILE"}, bench_.run.path)->required();
  option(checkpoint, {.name = "--saves", .help = "How many saves of each kind are measured.", .value = "N", .range = kAtLeastOne},
         bench_.saves)
      ->capture_default_str();
  line_.takes_keys(checkpoint, bench_.run);
}

}  // namespace octet::app
