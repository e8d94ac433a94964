#include "octet/app/cli.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <new>
#include <string_view>

#include <CLI/CLI.hpp>

#include "octet/app/commands.h"
#include "octet/app/standard_streams.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/recipes/registry.h"
#include "octet/train/version.h"

namespace octet::app {
namespace {

constexpr const char* kIntroduction =
    "Octet trains Llama-family language models in FP8.\n"
    "\n"
    "A first run, from texts to a model that speaks:\n"
    "  octet data prepare --input ~/my-texts --output out/quickstart/corpus\n"
    "  octet train configs/quickstart.toml\n"
    "  octet generate --model out/quickstart/model --prompt \"The \"\n"
    "BF16 beside FP8, as a table and a report:\n"
    "  octet compare configs/quickstart.toml --recipes bf16,fp8_delayed,fp8_block\n";

// The name after "octet", e.g. "data prepare".
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent ? full_name(*parent) + " " + command.get_name() : "octet";
}

// The baseline, then every other.
std::vector<std::string> all_recipes() {
  std::vector<std::string> names = recipes::recipe_names();
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name == "bf16"; });
  return names;
}

// The beginning of a message, which "octet: " stands before.
std::string place_of(const CLI::App& command) { return command.get_parent() ? full_name(command).substr(6) + ": " : ""; }

class CommandLine {
 public:
  CommandLine() : root_(kIntroduction) {
    root_.name("octet");
    root_.set_help_flag("-h,--help", "This text; every command has it");
    root_.set_version_flag("--version", train::kVersion);
    root_.require_subcommand(0, 1);
    root_.allow_extras();
    root_.footer("\n`octet COMMAND --help` explains a command with an example.\n");
    add_machine();
    add_data();
    add_training();
    add_models();
    add_windows();
    add_bench();
  }

  int run(int argc, const char* const* argv) {
    argc = take_launched(argc, argv);
    try {
      root_.parse(argc, argv);
    } catch (const CLI::CallForVersion&) {
      std::cout << "octet " << train::kVersion << "\n";
      return 0;
    } catch (const CLI::Success&) {
      std::cout << root_.help();
      return 0;
    } catch (const CLI::ParseError& error) {
      const CLI::App& command = chosen();
      refuse_extras(root_);  // a mistyped option explains a missing one
      fail(ExitCode::config, place_of(command), first_line(error.what()), "; see `", full_name(command), " --help`");
    }
    refuse_extras(root_);
    const CLI::App& command = chosen();
    const auto action = actions_.find(&command);
    if (action == actions_.end()) {  // `octet`, or a group such as `octet data`
      std::cout << root_.help();
      return 0;
    }
    return action->second();
  }

 private:
  CLI::App& add(CLI::App& parent, const std::string& name, const std::string& description, const std::string& example,
                std::function<int()> action = {}) {
    CLI::App& command = *parent.add_subcommand(name, description);
    command.footer(example.empty() ? "" : "\nExample:\n  " + example + "\n");
    command.allow_extras();
    if (action) {
      actions_[&command] = std::move(action);
    } else {
      command.require_subcommand(0, 1);
    }
    return command;
  }

  // What `launch` starts stands after `--` and is read by the ranks, not here. Returns the arguments that are left.
  int take_launched(int argc, const char* const* argv) {
    if (argc < 2 || argv[1] != std::string_view("launch")) return argc;
    const auto mark = std::find(argv + 2, argv + argc, std::string_view("--"));
    if (mark != argv + argc) launch_.command.assign(mark + 1, argv + argc);
    return static_cast<int>(mark - argv);
  }

  // RUN.toml, and the --section.key=value options behind it.
  void add_run(CLI::App& command, RunFile& run) {
    command.add_option("RUN.toml", run.path, "The run; docs/config.md lists its keys")->required();
    command.footer(command.get_footer() +
                   "\nEvery key of the file is an option, too: --section.key=value, as in --training.steps=100 or\n"
                   "--precision.skip=a,b. Paths in the file are relative to the current directory.\n");
    overrides_[&command] = &run.overrides;
  }

  void add_machine() {
    CLI::App& doctor = add(root_, "doctor", "What this machine has: processor, memory, GEMM rate, FP8 self-test", "octet doctor",
                           [this] { return run_doctor(doctor_); });
    doctor.add_flag("--json", doctor_.json, "For programs");
  }

  void add_data() {
    CLI::App& data = add(root_, "data", "Corpora: prepare texts, inspect a corpus", "octet data prepare --input ~/my-texts --output data/corpus");
    CLI::App& prepare = add(data, "prepare", "Turns texts and JSONL, packed or not, into a corpus",
                            "octet data prepare --input ~/my-texts notes.jsonl --tokenizer byte --output data/corpus",
                            [this] { return run_data_prepare(prepare_); });
    prepare.add_option("--input", prepare_.inputs, "Files, folders, 'patterns*', .gz and .zst of them, .parquet; - is standard input")->required()->expected(1, -1);
    prepare.add_option("--tokenizer", prepare_.tokenizer, "byte (the default), a model directory or a tokenizer file; with tokens the one that made them, or none");
    prepare.add_flag("--append-eod,!--no-append-eod", prepare_.append_eod,
                     "End each document with the tokenizer's eos token, if it has one (the default)");
    prepare.add_option("--output", prepare_.output, "Prefix: PREFIX.bin, PREFIX.idx, PREFIX.json")->required();
    prepare.add_option("--format", prepare_.format, "Of every input: text, jsonl, or tokens of llmc or nanogpt; auto goes by the name, and llm.c's header")
        ->capture_default_str()->check(CLI::IsMember({"auto", "text", "jsonl", "llmc", "nanogpt"}));
    prepare.add_option("--field", prepare_.field, "Of a JSONL line, or column of Parquet, that holds the text")->capture_default_str();
    prepare.add_option("--duplicates", prepare_.duplicates, "Documents of the same tokens: count, drop, or ignore, which saves 22 to 43 bytes a document")
        ->capture_default_str()->check(CLI::IsMember({"count", "drop", "ignore"}));
    prepare.add_option("--workers", prepare_.workers, "Threads; 0: one per core")->capture_default_str()->check(CLI::Range(0, 1024));
    prepare.add_flag("--json", prepare_.json, "For programs");
    CLI::App& inspect = add(data, "inspect", "What a corpus holds, and whether it is whole", "octet data inspect data/corpus",
                            [this] { return run_data_inspect(inspect_); });
    inspect.add_option("PREFIX", inspect_.prefix, "Of the corpus")->required();
    inspect.add_option("--samples", inspect_.samples, "Documents to show")->capture_default_str()->check(CLI::NonNegativeNumber);
    inspect.add_flag("--json", inspect_.json, "For programs");
  }

  void add_training() {
    CLI::App& train = add(root_, "train", "Trains a model as a TOML file says", "octet train configs/quickstart.toml --training.steps=100",
                          [this] { return run_train(train_); });
    add_run(train, train_.run);
    train.add_option("--resume", train_.resume, "auto, none or a checkpoint's folder (instead of checkpoint.resume)");
    train.add_flag("--dry-run", train_.dry_run, "Print the precision table and the memory plan, train nothing");
    train.add_flag("--print-config", train_.print_config, "Print every key with its value and train nothing");

    CLI::App& eval = add(root_, "eval", "Held-out loss of a checkpoint",
                         "octet eval configs/quickstart.toml --checkpoint out/quickstart/checkpoints/step-00000300",
                         [this] { return run_eval(eval_); });
    add_run(eval, eval_.run);
    eval.add_option("--checkpoint", eval_.checkpoint, "Folder of a checkpoint")->required();
    eval.add_flag("--json", eval_.json, "For programs");

    CLI::App& compare = add(root_, "compare", "Trains the same model with several recipes: one table, one report",
                            "octet compare configs/quickstart.toml --recipes bf16,fp8_delayed,fp8_current,fp8_block",
                            [this] {
                              if (compare_.recipes == std::vector<std::string>{"all"}) compare_.recipes = all_recipes();
                              return run_compare(compare_);
                            });
    add_run(compare, compare_.run);
    compare.add_option("--recipes", compare_.recipes, "Names with commas between, or `all`")->required()->delimiter(',');
    compare.add_option("--gpus", compare_.gpus, "1,2,4: train on each of these numbers of GPUs (on a CPU: of ranks) and compare these, too")
        ->delimiter(',');
    compare.add_option("--output", compare_.output, "Folder of the runs and the report; default: run.output_dir");
    compare.add_option("--time-budget", compare_.time_budget_s, "Seconds: fewer steps on a slow machine, by a rule that is printed")
        ->check(CLI::NonNegativeNumber);
    compare.add_flag("--json", compare_.json, "For programs");
    compare.footer(compare.get_footer() +
                   "\nWith --gpus the scaling is weak, as articles print it: every GPU keeps its batch. training.global_batch_size is that of the\n"
                   "smallest number and grows with it, while steps and learning rate stay, so losses are compared on the same number only.\n"
                   "Samples come in one order: a step of four GPUs has those of four steps of one. Stopped, the same command goes on.\n");

    CLI::App& launch = add(root_, "launch", "Runs a command of octet as several ranks on this machine: launch -n N -- COMMAND ...",
                           "octet launch -n 8 -- train configs/llama3.1-8b.toml --training.steps=100",
                           [this] { return run_launch(launch_); });
    launch.add_option("-n", launch_.ranks, "How many ranks")->required();
    launch.add_option("--grace", launch_.grace_s, "Seconds from the failure of one rank until the others are killed")
        ->capture_default_str();
    launch.footer(launch.get_footer() +
                  "\nEach rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, ...). Rank 0 is heard as if it ran alone, the\n"
                  "lines of the others begin with [rank]. Signals go to every rank; the exit code is that of the first rank to fail.\n"
                  "Under torchrun, srun and mpirun call the command itself.\n");

    CLI::App& advise = add(root_, "advise", "What each recipe costs a run, linear by linear, and which one to take",
                           "octet advise configs/llama3.1-8b.toml --health out/llama3.1-8b-fp8", [this] { return run_advise(advise_); });
    add_run(advise, advise_.run);
    advise.add_option("--health", advise_.health, "fp8_health.jsonl or the folder of a run: names layers to keep in BF16");
    advise.add_option("--device", advise_.device, "auto, cpu or cuda: on a GPU the times are measured, too")->capture_default_str();
    advise.add_flag("--json", advise_.json, "For programs");

    CLI::App& plan = add(root_, "plan", "What a run takes and how fast it should be on many GPUs; needs none",
                         "octet plan configs/llama3.1-8b.toml --gpus 256xH100 --search --training.global_batch_size=512",
                         [this] { return run_plan(plan_); });
    add_run(plan, plan_.run);
    plan.add_option("--gpus", plan_.gpus, "How many of what: 8xH100, 64xH200")->required();
    plan.add_option("--nodes", plan_.nodes, "That they are in; default: 8 in a node")->check(CLI::PositiveNumber);
    CLI::Option* search =
        plan.add_flag("--search", plan_.search, "Try every layout: [parallel], checkpointing and micro-batch; print the best ten");
    plan.add_option("--picture", plan_.picture, "Also draw the memory of a GPU as a stacked bar: FILE.svg")->excludes(search);
    CLI::Option* json = plan.add_flag("--json", plan_.json, "For programs");
    plan.add_flag("--schedule", plan_.schedule, "Print when each part of a step should run, stream by stream")
        ->excludes(search)
        ->excludes(json);

    CLI::App& report = add(root_, "report", "Draws report.html of one run, or of several side by side",
                           "octet report out/quickstart/bf16 out/quickstart/fp8_block", [this] { return run_report(report_); });
    report.add_option("DIR", report_.directories, "Folders of runs, or one folder that holds several")->required()->expected(1, -1);
    report.add_option("--output", report_.output, "Folder of report.html; default: the first DIR");
    report.add_option("--baseline", report_.baseline, "Name of the run that others are compared with")->capture_default_str();
    report.add_option("--title", report_.title, "Of the page");
    report.add_flag("--json", report_.json, "Print report.json instead of the table");
    CLI::Option* picture = report.add_option("--picture", report_.picture, "Also write curves and table as NAME-light.svg and NAME-dark.svg: NAME.svg");
    report.add_option("--theme", report_.theme, "light or dark: write this picture alone, under the name given")
        ->check(CLI::IsMember({"light", "dark"}))
        ->needs(picture);
    CLI::Option* watch = report.add_flag("--watch", report_.watch, "Serve the report of running runs on 127.0.0.1, reloading itself; writes no file");
    report.add_option("--port", report_.port, "Port of --watch; 0 takes one that is free")->capture_default_str()->check(CLI::Range(0, 65535))->needs(watch);
    watch->excludes(picture)->excludes("--output")->excludes("--json");
  }

  void add_models() {
    CLI::App& generate = add(root_, "generate", "Lets a model write on",
                             "octet generate --model out/quickstart/model --prompt \"The \" --max-tokens 200",
                             [this] { return run_generate(generate_); });
    generate.add_option("--model", generate_.model, "Hugging Face directory")->required();
    generate.add_option("--prompt", generate_.prompt, "Text to go on from")->required();
    generate.add_option("--max-tokens", generate_.max_tokens, "To write")->capture_default_str()->check(CLI::PositiveNumber);
    generate.add_option("--temperature", generate_.temperature, "0: always the likeliest")->capture_default_str()->check(CLI::NonNegativeNumber);
    generate.add_option("--seed", generate_.seed, "Of the sampling")->capture_default_str();
    generate.add_option("--device", generate_.device, "auto, cpu or cuda")->capture_default_str();

    add_convert();
  }

  void add_convert() {
    CLI::App& convert = add(root_, "convert", "Between checkpoints and Hugging Face directories",
                            "octet convert export --checkpoint out/run/checkpoints/step-00001000 --output out/model");
    const auto add_output = [](CLI::App& command, std::filesystem::path& output, std::int64_t& max_shard_size) {
      command.add_option("--output", output, "Directory to write; it must not exist, and appears when it is complete")->required();
      command.add_option("--max-shard-size", max_shard_size, "Of a file of weights: 500MB, 5GB, 4GiB; default 5GB")
          ->transform(CLI::AsSizeValue(true))
          ->check(CLI::PositiveNumber);
    };
    CLI::App& importing = add(convert, "import", "A Hugging Face directory in any form as plain weights",
                              "octet convert import --input models/llama-fp8 --output models/llama-bf16",
                              [this] { return run_convert_import(import_); });
    importing.add_option("--input", import_.input, "Hugging Face directory")->required();
    add_output(importing, import_.output, import_.max_shard_size);
    importing.add_option("--dtype", import_.dtype, "Of the weights: bf16 or fp32")->capture_default_str()->check(CLI::IsMember({"bf16", "fp32"}));
    importing.footer(importing.get_footer() +
                     "\nTraining, evaluation and generation read every form by themselves ([model] init_from = DIR): one file or shards, in\n"
                     "F32, BF16, F16, or FP8 with 128 x 128 scales. Import checks a directory without a run, and writes it in the one form that\n"
                     "all programs read: BF16, to nearest even (F16 and F32 have values that BF16 has not).\n");
    CLI::App& exporting = add(convert, "export", "The model of a checkpoint as a Hugging Face directory",
                              "octet convert export --checkpoint out/run/checkpoints/step-00001000 --output out/model --dtype fp8",
                              [this] { return run_convert_export(export_); });
    exporting.add_option("--checkpoint", export_.checkpoint, "Folder of a checkpoint, or a Hugging Face directory")->required();
    add_output(exporting, export_.output, export_.max_shard_size);
    exporting.add_option("--dtype", export_.dtype, "Of the weights: bf16, fp32 or fp8")
        ->capture_default_str()
        ->check(CLI::IsMember({"bf16", "fp32", "fp8"}));
    exporting.footer(exporting.get_footer() +
                     "\nfp8: the linears of the blocks as E4M3 codes with 128 x 128 scales, as fp8_block trains, for inference servers; embedding,\n"
                     "head and norms in BF16.\n");
    CLI::App& verify = add(convert, "verify", "Whether two Hugging Face directories hold the same model",
                           "octet convert verify out/model models/saved-by-transformers", [this] { return run_convert_verify(verify_); });
    verify.add_option("A", verify_.a, "Hugging Face directory")->required();
    verify.add_option("B", verify_.b, "Another")->required();
    verify.add_option("--tolerance", verify_.tolerance, "Largest difference of each tensor, relative to its largest element")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    verify.add_option("--tokens", verify_.tokens, "safetensors with tokens [B, T]; default: random ones");
    verify.add_option("--seed", verify_.seed, "Of the random tokens")->capture_default_str();
    verify.add_flag("--weights-only", verify_.weights_only, "Compute nothing: for models that do not fit into memory in FP32");
    verify.add_flag("--json", verify_.json, "Every tensor, for programs");
    verify.footer(verify.get_footer() +
                  "\nCompares architecture, names and weights, then logits, loss and all gradients in FP32 on the CPU. Exit code 1 names the\n"
                  "worst tensor. A directory in FP8 beside its BF16 needs a larger tolerance.\n");
  }

  // The windows onto the numerics.
  void add_windows() {
    CLI::App& probe = add(root_, "probe", "Logits, loss and gradients of a model, to check it against another program",
                          "octet probe --model DIR --tokens tokens.safetensors --recipe fp32 --output out.safetensors --grads",
                          [this] { return run_probe(probe_); });
    probe.add_option("--model", probe_.model, "Hugging Face directory")->required();
    probe.add_option("--tokens", probe_.tokens, "safetensors with tokens [B, T] and optionally targets [B, T]")->required();
    probe.add_option("--recipe", probe_.recipe, "fp32, bf16, fp8_delayed, ...")->required();
    probe.add_option("--device", probe_.device, "cpu or cuda")->capture_default_str();
    probe.add_option("--output", probe_.output, "safetensors to write")->required();
    probe.add_flag("--grads", probe_.grads, "Write every gradient, too");
    probe.add_option("--steps", probe_.steps, "Train so many steps (AdamW, lr 1e-3)")->check(CLI::NonNegativeNumber);
    probe.add_option("--dump", probe_.dump, "Write the operands and products of linears that this pattern matches");
    probe.add_option("--set", probe_.set, "section.key=value of a run's TOML; may be repeated")->expected(1)->take_all();

    CLI::App& quantize = add(root_, "quantize", "FP8 codes and scales of tensors, to check the numerics",
                             "octet quantize --input x.safetensors --recipe fp8_block --role activation --output q.safetensors",
                             [this] { return run_quantize(quantize_); });
    quantize.add_option("--input", quantize_.input, "safetensors with 2-D tensors, BF16, F16 or F32")->required();
    quantize.add_option("--recipe", quantize_.recipe, "fp8_delayed, fp8_current, ...")->required();
    quantize.add_option("--role", quantize_.role, "activation, weight or gradient")
        ->required()
        ->check(CLI::IsMember({"activation", "weight", "gradient"}));
    quantize.add_option("--scale", quantize_.scale, "Fixes the scale (per-tensor recipes)");
    quantize.add_option("--output", quantize_.output, "safetensors to write")->required();
    quantize.add_option("--device", quantize_.device, "cpu or cuda")->capture_default_str();
    quantize.add_option("--set", quantize_.set, "precision.key=value; may be repeated")->expected(1)->take_all();
    quantize.add_option("--state", quantize_.state, "safetensors with the state of delayed scaling to begin with");
    quantize.add_option("--state-out", quantize_.state_out, "safetensors for its state at the end");
  }

  void add_bench() {
    CLI::App& bench = add(root_, "bench", "Speed of the parts, beside what this machine could do", "octet bench gemm --json gemm.json");
    const auto add_kind = [&](const std::string& name, const std::string& description, int (*command)(const BenchArgs&)) {
      CLI::App& kind = add(bench, name, description, "octet bench " + name, [this, command] { return command(bench_); });
      kind.add_option("--json", bench_.json, "File to write the numbers to");
      return &kind;
    };
    add_kind("gemm", "Matrix products, in BF16 and FP8", run_bench_gemm);
    add_kind("quantize", "Casts to FP8 with their amax", run_bench_quantize);
    add_kind("attention", "Attention, forward and backward", run_bench_attention);
    add_kind("kernels", "The memory-bound ops of a step, on a GPU", run_bench_kernels);
    add_kind("loader", "Batches of a corpus for 8 ranks of this host", run_bench_loader);
    CLI::App& tokenize = add(bench, "tokenize", "A tokenizer, on one core and on all",
                             "octet bench tokenize --tokenizer models/llama3 --input documents.jsonl",
                             [this] { return run_bench_tokenize(tokenize_); });
    tokenize.add_option("--tokenizer", tokenize_.tokenizer, "byte, a model directory or a tokenizer file")->required();
    tokenize.add_option("--input", tokenize_.input, "JSONL whose lines have a \"text\"")->required();
    tokenize.add_option("--json", tokenize_.json, "File to write the numbers to");
    CLI::App& comm = *add_kind("comm", "Collectives between GPUs over NCCL, or on the CPU over Gloo", run_bench_comm);
    comm.add_option("-n,--ranks", bench_.ranks, "Ranks, threads of this process: all GPUs, or two on the CPU");
    comm.add_option("--device", bench_.device, "auto, cpu or cuda")->capture_default_str();
    CLI::App& step = *add_kind("step", "A training step: of every recipe, or of a run, op by op", run_bench_step);
    step.add_option("RUN.toml", bench_.run.path, "A run: its step is timed op by op; without it every recipe of a small model");
    step.add_option("--seconds", bench_.seconds, "How long a run's steps are timed")->capture_default_str();
    overrides_[&step] = &bench_.run.overrides;
  }

  const CLI::App& chosen() const {
    const CLI::App* command = &root_;
    for (auto next = command->get_subcommands(); !next.empty(); next = command->get_subcommands()) command = next.front();
    return *command;
  }

  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  static std::vector<std::string> option_names(const CLI::App& command) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    return names;
  }

  // What no option or command took: a run's --section.key=value, or a mistake.
  void refuse_extras(CLI::App& command) {
    const auto overrides = overrides_.find(&command);
    for (const std::string& extra : command.remaining()) {
      const std::string name = extra.substr(0, extra.find('='));
      if (name.rfind("--", 0) == 0 && name.find('.') != std::string::npos && overrides != overrides_.end()) {
        overrides->second->push_back(extra.substr(2));
        continue;
      }
      std::string advice;
      if (name.size() > 1 && name[0] == '-') {
        advice = did_you_mean(name, option_names(command));
        if (advice.empty() && overrides != overrides_.end()) advice = "; keys of the run are --section.key=value";
        fail(ExitCode::config, place_of(command), "unknown option ", extra, advice);
      }
      std::vector<std::string> names;
      for (const CLI::App* child : command.get_subcommands([](const CLI::App*) { return true; })) names.push_back(child->get_name());
      if (!names.empty()) {
        fail(ExitCode::config, place_of(command), "unknown command ", extra, did_you_mean(extra, names));
      }
      fail(ExitCode::config, place_of(command), "unexpected argument ", extra,
           command.get_name() == "launch" ? "; what the ranks run stands after `--`" : "");
    }
    for (CLI::App* child : command.get_subcommands()) refuse_extras(*child);
  }

  CLI::App root_;
  std::map<const CLI::App*, std::function<int()>> actions_;
  std::map<const CLI::App*, std::vector<std::string>*> overrides_;

  DoctorArgs doctor_;
  DataPrepareArgs prepare_;
  DataInspectArgs inspect_;
  TrainArgs train_;
  EvalArgs eval_;
  AdviseArgs advise_;
  PlanArgs plan_;
  CompareArgs compare_;
  LaunchArgs launch_;
  ReportArgs report_;
  GenerateArgs generate_;
  ProbeArgs probe_;
  QuantizeArgs quantize_;
  BenchArgs bench_;
  BenchTokenizeArgs tokenize_;
  ConvertImportArgs import_;
  ConvertExportArgs export_;
  ConvertVerifyArgs verify_;
};

int say(const char* message, ExitCode code) {
  std::cout.flush();
  std::fflush(stdout);
  std::fprintf(stderr, "octet: %s\n", message);
  return static_cast<int>(code);
}

}  // namespace

int run(int argc, const char* const* argv) {
  try {
    hold_standard_streams();
    const int code = CommandLine().run(argc, argv);
    std::cout.flush();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) || !std::cout) return say("cannot write to stdout", ExitCode::internal);
    return code;
  } catch (const Error& error) {
    return say(error.what(), error.code());
  } catch (const std::bad_alloc&) {
    return say("out of memory", ExitCode::internal);
  } catch (const std::exception& error) {
    return say(concat("internal error: ", error.what()).c_str(), ExitCode::internal);
  }
}

}  // namespace octet::app
