// The commands. Each has one struct of options and one function, in a file of its own. A function returns the exit code, and
// throws Error if it fails. Results go to stdout, everything else to stderr.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/weight_files.h"

namespace octet::app {

// A run's TOML file and the --section.key=value options that follow it.
struct RunFile {
  std::filesystem::path path;
  std::vector<std::string> overrides;  // "section.key=value"
};

struct DoctorArgs {
  bool json = false;
  std::string gate;                    // quick | full; "": the machine is described instead
  std::filesystem::path folder = ".";  // where a run would write, with `gate`
  std::optional<int> gpus;             // that ranks would use, with `gate`; all if not given
};
int run_doctor(const DoctorArgs& args);
int run_gate(const DoctorArgs& args);

struct DataPrepareArgs {
  std::vector<std::filesystem::path> inputs;
  std::string tokenizer;   // "": byte for texts, unknown for tokens
  bool append_eod = true;  // only if the tokenizer has an end-of-document token
  std::filesystem::path output;
  std::string format = "auto";  // auto | text | jsonl | llmc | nanogpt
  std::string field;            // of a JSONL line; "": text, or with `chat` one of the usual ones
  std::string chat;             // a template's name or "auto"; "": the inputs are no conversations
  std::string train_on = "assistant";  // all | assistant | last; with `chat`
  std::int64_t max_tokens = 0;         // of a conversation; 0: no limit
  std::string duplicates = "count";  // count | drop | ignore
  std::int64_t max_output = 0;       // bytes; 0: no limit
  int workers = 0;                   // 0: one per core
  bool json = false;
};
int run_data_prepare(const DataPrepareArgs& args);

struct DataInspectArgs {
  std::filesystem::path prefix;
  std::int64_t samples = 3;
  bool tokens = false;    // whole documents, with marks for the tokens that are trained on
  std::int64_t pack = 0;  // tokens of a sequence; 0: nothing is packed
  bool json = false;
};
int run_data_inspect(const DataInspectArgs& args);

struct TrainArgs {
  RunFile run;
  std::string resume;  // auto | none | PATH; "" when not given: checkpoint.resume decides
  std::int64_t until = 0;
  bool dry_run = false;
  bool print_config = false;
};
int run_train(const TrainArgs& args);

struct EvalArgs {
  RunFile run;
  std::filesystem::path checkpoint, model;  // one of them is given
  bool json = false;
};
int run_eval(const EvalArgs& args);

struct AdviseArgs {
  RunFile run;
  std::filesystem::path health;  // fp8_health.jsonl or the folder of a run; "" when not given
  std::string device = "auto";   // auto | cpu | cuda: whether a GPU measures
  bool json = false;
};
int run_advise(const AdviseArgs& args);

struct PlanArgs {
  RunFile run;
  std::string gpus;  // "256xH100"
  int nodes = 0;     // 0: of 8 GPUs
  bool search = false;
  bool schedule = false;
  bool parameters = false;
  bool goodput = false;
  double mtbf_hours = 50'000;     // of one GPU
  std::string storage;            // "20GB" a second; "": 1 GB for each node
  std::optional<int> stage;       // of the pipeline
  std::filesystem::path picture;  // "": none
  bool json = false;
};
int run_plan(const PlanArgs& args);

struct CompareArgs {
  RunFile run;
  std::vector<std::string> recipes;
  std::vector<int> gpus;            // numbers of ranks, each with every recipe; empty: in this process
  std::filesystem::path output;     // "" when not given: run.output_dir
  double time_budget_s = 0;         // above 0: training.steps is lowered, by a rule that is printed, to fit
  bool json = false;
};
int run_compare(const CompareArgs& args);

struct LaunchArgs {
  int ranks = 0;
  std::optional<double> grace_s;     // how long the other ranks have to end by themselves after one failed
  std::vector<std::string> command;  // the arguments after `--`: a command of this same program
  bool supervise = false;
  int restarts = 3, restarts_per_hour = 20;
  std::string hosts;  // "auto" or "a,b,c"; "": this one
  int spares = 0;
  int min_hosts = 0;  // 0: all except the spares
  std::string on_exclude;
  int exclude_stragglers = 0;  // slow intervals; 0: never
  std::string gate = "auto";  // auto | on | off
  TrainArgs train;            // the command, with `supervise`
};
int run_launch(const LaunchArgs& args);

struct StatusArgs {
  std::filesystem::path run;
  bool json = false, code = false;
};
int run_status(const StatusArgs& args);

struct ReportArgs {
  std::vector<std::filesystem::path> directories;
  std::filesystem::path output;     // folder of report.html; "" when not given: the first directory
  std::optional<std::string> baseline;  // name of a run; not given: bf16, if there is such a run
  std::string title;
  bool json = false;
  std::filesystem::path picture;    // SVG to write; "" when not given
  std::string theme;                // light | dark; "": both, as NAME-light.svg and NAME-dark.svg
  bool watch = false;
  int port = 8808;                  // of --watch; 0: one that is free
};
int run_report(const ReportArgs& args);

struct GenerateArgs {
  std::filesystem::path model;      // Hugging Face directory or checkpoint
  std::optional<std::string> prompt;
  std::string chat;                 // template; "": the prompt is continued as it is
  std::string system;               // with `chat`: the system message
  std::int64_t max_tokens = 128;
  double temperature = 0.8;         // 0: always the likeliest
  std::uint64_t seed = 42;
  std::string device = "auto";
};
int run_generate(const GenerateArgs& args);

struct ProbeArgs {
  std::filesystem::path model;
  std::filesystem::path tokens;
  std::filesystem::path calibrate;  // "": the tokens
  std::string recipe;
  std::string device = "cpu";
  std::filesystem::path output;
  bool grads = false;
  std::int64_t steps = 0;
  std::string dump;                 // pattern of linears; "" for none
  std::vector<std::string> set;     // "section.key=value" of a run's TOML
};
int run_probe(const ProbeArgs& args);

struct QuantizeArgs {
  std::filesystem::path input;
  std::string recipe;
  std::string role;                 // activation | weight | gradient
  std::optional<double> scale;
  std::filesystem::path output;
  std::string device = "cpu";
  std::vector<std::string> set;     // "precision.key=value"
  std::filesystem::path state, state_out;  // "" when not given
};
int run_quantize(const QuantizeArgs& args);

struct BenchArgs {
  RunFile run;              // step and checkpoint only; step without a path: the quickstart's model
  double seconds = 10;      // step of a run: how long
  int saves = 5;            // checkpoint only
  int ranks = 0;            // comm only; 0: all GPUs, or two on the CPU
  std::string device = "auto";      // comm only: auto | cpu | cuda
  std::filesystem::path json;       // file to write; "" when not given
};
int run_bench_gemm(const BenchArgs& args);
int run_bench_quantize(const BenchArgs& args);
int run_bench_attention(const BenchArgs& args);
int run_bench_kernels(const BenchArgs& args);
int run_bench_comm(const BenchArgs& args);
int run_bench_loader(const BenchArgs& args);
int run_bench_step(const BenchArgs& args);
int run_bench_run(const BenchArgs& args);  // `bench step` with a RUN.toml
int run_bench_checkpoint(const BenchArgs& args);

struct BenchTokenizeArgs {
  std::string tokenizer;
  std::filesystem::path input;      // JSONL with "text"
  std::filesystem::path json;       // file to write; "" when not given
};
int run_bench_tokenize(const BenchTokenizeArgs& args);

struct ConvertImportArgs {
  std::filesystem::path input;       // Hugging Face directory
  std::filesystem::path output;      // a new one
  std::string dtype = "bf16";        // bf16 | fp32
  std::int64_t max_shard_size = checkpoint::kMaxShardBytes;
};
int run_convert_import(const ConvertImportArgs& args);

struct ConvertExportArgs {
  std::filesystem::path checkpoint;  // step-00001000, or a Hugging Face directory
  std::filesystem::path output;      // a new Hugging Face directory
  std::string dtype = "bf16";        // bf16 | fp32 | fp8
  bool adapter = false;              // only the adapters, as a directory of PEFT
  std::int64_t max_shard_size = checkpoint::kMaxShardBytes;
};
int run_convert_export(const ConvertExportArgs& args);

struct ConvertVerifyArgs {
  std::filesystem::path a, b;        // Hugging Face directories
  double tolerance = 1e-4;
  std::filesystem::path tokens;      // safetensors; "" when not given: random
  std::uint64_t seed = 42;
  bool weights_only = false;
  bool json = false;
};
int run_convert_verify(const ConvertVerifyArgs& args);

}  // namespace octet::app
