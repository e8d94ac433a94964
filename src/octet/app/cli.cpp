#include "octet/app/cli.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <string_view>

#include "octet/app/local_ranks.h"
#include "octet/app/memory_fit.h"
#include "octet/app/octet.h"
#include "octet/app/standard_streams.h"
#include "octet/base/bus_error.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/recipes/registry.h"
#include "octet/storage/object_store.h"
#include "octet/telemetry/rank_page.h"

namespace octet::app {
namespace {

// Returns the names of all recipes, the baseline first.
std::vector<std::string> all_recipes() {
  std::vector<std::string> names = recipes::recipe_names();
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name == "bf16"; });
  return names;
}

// Replaces `auto` by the number of this machine's GPUs. Returns why it cannot, or "".
std::string count_gpus(std::string& ranks) {
  if (ranks != "auto") return "";
  ranks = std::to_string(cuda_device_count());
  return ranks != "0" ? "" : "`auto` is the number of GPUs, and this machine has none that Octet can use. Give a number: -n 2";
}

}  // namespace

Octet::Octet()
    : line_({.name = "octet",
             .summary = "Octet trains Llama-family language models in FP8.",
             .example = "octet data prepare --input ~/my-texts --output out/quickstart/corpus\n"
                        "  octet train configs/quickstart.toml\n"
                        "  octet generate --model out/quickstart/model --prompt \"The \"",
             .notes = "`octet COMMAND --help`, or `octet help COMMAND`, explains a command with an example."}) {
  add_data();
  add_training();
  add_models();
  add_planning();
  add_numerics();
  add_bench();
  add_program();
}

int Octet::run(int argc, const char* const* argv) {
  if (argc > 1 && argv[1] == std::string_view("help")) return line_.help({argv + 2, argv + argc});
  argc = take_launched(argc, argv);
  return line_.run(argc, argv);
}

// The command that `launch` starts follows `--`. The ranks read it. Returns the number of arguments before it.
int Octet::take_launched(int argc, const char* const* argv) {
  if (argc < 2 || argv[1] != std::string_view("launch")) return argc;
  const auto mark = std::find(argv + 2, argv + argc, std::string_view("--"));
  if (mark != argv + argc) launch_.command.assign(mark + 1, argv + argc);
  return static_cast<int>(mark - argv);
}

// Returns the arguments of a command `train ...`, or empty ones for any other command.
TrainArgs Octet::train_of(const std::vector<std::string>& command) const {
  if (command.empty() || line_.known_command(command.front()) != "train") return {};
  std::vector<const char*> arguments = {"octet"};
  for (const std::string& argument : command) arguments.push_back(argument.c_str());
  Octet reader;
  reader.only_reads_ = true;
  reader.run(static_cast<int>(arguments.size()), arguments.data());
  return reader.train_;
}

void Octet::add_data() {
  CLI::App& data = add(root_, {.name = "data",
                               .summary = "Prepares corpora and inspects them.",
                               .example = "octet data prepare --input ~/my-texts --output out/quickstart/corpus"});
  CLI::App& prepare =
      add(data,
          {.name = "prepare",
           .summary = "Turns texts into a corpus that training reads.",
           .example = "octet data prepare --input ~/my-texts --tokenizer byte --output out/quickstart/corpus",
           .notes = "The corpus is PREFIX.bin, PREFIX.idx and PREFIX.json. A command that was stopped continues where it "
                    "stopped."},
          [this] { return run_data_prepare(prepare_); });
  option(prepare,
         {.name = "--input",
          .help = "Files, folders or quoted patterns ('texts/*.jsonl'): text, JSONL, both also as .gz and .zst, .parquet, or "
                  "tokens. Each may also be an s3:// URL. A single - reads standard input.",
          .value = "PATH",
          .s3 = true},
         prepare_.inputs)
      ->required()
      ->expected(1, -1);
  option(prepare, {.name = "--output", .help = "Prefix of the corpus to write.", .value = "PREFIX"}, prepare_.output)->required();
  option(prepare,
         {.name = "--tokenizer",
          .help = "byte, a model directory, which may be s3://BUCKET/PREFIX, or a tokenizer file. Default: byte, or unknown if "
                  "the inputs are tokens.",
          .value = "PATH",
          .s3 = true},
         prepare_.tokenizer);
  prepare.add_flag("--append-eod,!--no-append-eod", prepare_.append_eod,
                   "End each document with the tokenizer's end-of-document token, if it has one. This is the default.");
  option(prepare,
         {.name = "--format",
          .help = "Format of every input; auto decides by the name of each file, and by the header of llm.c's token files.",
          .choices = "auto | text | jsonl | llmc | nanogpt"},
         prepare_.format)
      ->capture_default_str();
  option(prepare,
         {.name = "--field",
          .help = "Field of a JSONL line, or column of a Parquet file, that holds the text, or with --chat the conversation. "
                  "Default: text; with --chat the usual names.",
          .value = "NAME"},
         prepare_.field);
  option(prepare,
         {.name = "--chat",
          .help = "The inputs are conversations, written with this template: llama3, llama3.1, chatml, qwen3, mistral, zephyr, "
                  "or auto for the one next to the tokenizer.",
          .value = "TEMPLATE"},
         prepare_.chat);
  option(
      prepare,
      {.name = "--train-on", .help = "With --chat: the turns that are predicted with loss.", .choices = "all | assistant | last"},
      prepare_.train_on)
      ->capture_default_str();
  option(prepare,
         {.name = "--max-tokens",
          .help = "With --chat: longest conversation, in tokens; the rest is cut off. 0: no limit.",
          .value = "N",
          .range = kNotNegative},
         prepare_.max_tokens)
      ->capture_default_str();
  option(prepare,
         {.name = "--duplicates",
          .help = "What to do with documents whose tokens were seen before; ignore saves 22 to 43 bytes of memory per document.",
          .choices = "count | drop | ignore"},
         prepare_.duplicates)
      ->capture_default_str();
  size_option(prepare,
              {.name = "--max-output", .help = "Stop before the corpus is larger: 500MB, 20GB, 20GiB. Default: no limit."},
              prepare_.max_output);
  option(prepare,
         {.name = "--workers", .help = "Threads, at most four per core; 0 takes one per core.", .value = "N", .range = kNotNegative},
         prepare_.workers)
      ->capture_default_str();
  flag(prepare, json_field(), prepare_.json);

  CLI::App& inspect = add(data,
                          {.name = "inspect",
                           .summary = "Shows the contents of a corpus and checks that it is complete.",
                           .example = "octet data inspect out/quickstart/corpus"},
                          [this] { return run_data_inspect(inspect_); });
  option(inspect, {.name = "PREFIX", .help = "Prefix of the corpus: its path without .bin.", .value = "PREFIX", .s3 = true},
         inspect_.prefix)
      ->required();
  option(inspect, {.name = "--samples", .help = "Number of documents to show.", .value = "N", .range = kNotNegative}, inspect_.samples)
      ->capture_default_str();
  flag(inspect,
       {.name = "--tokens",
        .help = "Show the first 8,192 tokens of each sample, with the trained ones in green on a terminal and between ⟦ and ⟧ "
                "elsewhere."},
       inspect_.tokens);
  option(inspect,
         {.name = "--pack",
          .help = "Show how full sequences of N tokens are with data.packing = \"documents\".",
          .value = "N",
          .range = {.min = 1, .max = 1 << 30}},
         inspect_.pack);
  flag(inspect, json_field(), inspect_.json);
}

void Octet::add_training() {
  CLI::App& train = add(root_,
                        {.name = "train",
                         .summary = "Trains a model with the settings of a TOML file.",
                         .example = "octet train configs/quickstart.toml --optimizer.lr=3e-4 --run.output_dir=out/lower-lr",
                         .notes = "A run that was stopped continues from its newest checkpoint by the same command, unless "
                                  "checkpoint.resume is none or names one."},
                        [this] { return only_reads_ ? 0 : run_train(train_); });
  line_.takes_run(train, train_.run);
  option(
      train,
      {.name = "--resume",
       .help = "auto, none, or the folder of a checkpoint or a run, which may be s3://BUCKET/PREFIX; replaces checkpoint.resume.",
       .value = "DIR",
       .s3 = true},
      train_.resume);
  option(train,
         {.name = "--until",
          .help = "Train up to this step, save and end. The same command without --until continues; if checkpoint.resume is none "
                  "or names a checkpoint, add --resume auto. "
                  "Learning rates are those of the whole run.",
          .value = "STEP",
          .range = {.min = 1}},
         train_.until);
  flag(train, {.name = "--dry-run", .help = "Print the precision of each layer and the memory plan, then stop."}, train_.dry_run);
  flag(train, {.name = "--print-config", .help = "Print every key with its value, then stop."}, train_.print_config);

  add_eval();

  CLI::App& compare =
      add(root_,
          {.name = "compare",
           .summary = "Trains the same model with several recipes and prints one table and one report.",
           .example = "octet compare configs/quickstart.toml --recipes bf16,fp8_delayed,fp8_block",
           .notes = "With --gpus every GPU keeps its batch (weak scaling). training.global_batch_size is the batch of the "
                    "smallest number of GPUs and grows with the number; steps and learning rate stay. So compare losses only "
                    "on the same number of GPUs. Samples always come in the same order: one step of four GPUs has the samples "
                    "of four steps of one GPU. A comparison with --gpus that was stopped continues by the same command. "
                    "Without --gpus, the same command trains everything again."},
          [this] {
            if (compare_.recipes == std::vector<std::string>{"all"}) compare_.recipes = all_recipes();
            return run_compare(compare_);
          });
  line_.takes_run(compare, compare_.run);
  option(compare, {.name = "--recipes", .help = "Recipes separated by commas, or all.", .value = "RECIPE,..."}, compare_.recipes)
      ->required()
      ->delimiter(',');
  option(compare,
         {.name = "--gpus",
          .help = "Numbers of GPUs (on the CPU: of ranks) separated by commas. Trains each recipe on each number.",
          .value = "N,..."},
         compare_.gpus)
      ->delimiter(',');
  option(compare, {.name = "--output", .help = "Folder of the runs and of the report. Default: run.output_dir.", .value = "DIR"},
         compare_.output);
  option(compare,
         {.name = "--time-budget",
          .help = "Takes fewer steps if needed, so that the comparison ends in about this time. The rule is printed.",
          .value = "SECONDS",
          .range = kNotNegative},
         compare_.time_budget_s);
  flag(compare, json_field(), compare_.json);

  CLI::App& launch =
      add(root_,
          {.name = "launch",
           .summary = "Runs a command as several ranks, on this machine or on several machines.",
           .example = "octet launch -n 2 -- train configs/quickstart.toml --training.micro_batch_size=8 "
                      "--run.output_dir=out/two-ranks",
           .notes = "The command comes after `--`. Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, ...), and "
                    "OCTET_TOKEN_FILE with the token of the job, which is a new one unless OCTET_TOKEN_FILE or OCTET_TOKEN gives "
                    "one. The output of rank 0 appears as if it ran alone; lines of other ranks begin with [rank]. If several "
                    "ranks end with the same sentence, only the first prints it. Signals go to "
                    "every rank. The exit code is that of the first rank to fail.\n\nUnder torchrun, srun or mpirun, call `octet "
                    "train` itself. It runs as a single rank in the shell of a Slurm allocation, which has SLURM_NTASKS without "
                    "SLURM_PROCID, and in a pod that has only JOB_COMPLETION_INDEX.",
           .tail = "-- COMMAND [ARGUMENT...]"},
          [this] {
            launch_.train = train_of(launch_.command);
            return run_launch(launch_);
          });
  option(launch,
         {.name = "-n",
          .help = "Number of ranks on this machine. auto: one for each GPU that CUDA_VISIBLE_DEVICES leaves.",
          .value = "N|auto",
          .range = {.min = 1, .max = kMostRanks}},
         launch_.ranks)
      ->required()
      ->transform(CLI::Validator(count_gpus, ""));
  option(launch,
         {.name = "--grace",
          .help = "How long the other ranks may run on after one has failed, before they are killed. Default: 20, with --supervise 2.",
          .value = "SECONDS",
          .range = {.min = 0, .max = 7 * 24 * 3600}},
         launch_.grace_s);
  CLI::Option* supervise = flag(
      launch,
      {.name = "--supervise", .help = "Start `octet train` again after a crash, a kill or a lost rank, from the newest checkpoint."},
      launch_.supervise);
  option(launch,
         {.name = "--restarts",
          .help = "Give up after N restarts in a row without a newer checkpoint.",
          .value = "N",
          .range = kNotNegative},
         launch_.restarts)
      ->capture_default_str()
      ->needs(supervise);
  option(launch,
         {.name = "--restarts-per-hour",
          .help = "Give up after N restarts within an hour; 0 sets no limit.",
          .value = "N",
          .range = kNotNegative},
         launch_.restarts_per_hour)
      ->capture_default_str()
      ->needs(supervise);
  CLI::Option* hosts =
      option(launch,
             {.name = "--hosts",
              .help = "Run on these hosts, with -n ranks on each. Start the same command on every one of them. Names may hold "
                      "ranges: node[1-3]. auto takes the hosts that Slurm, PyTorchJob or SageMaker names.",
              .value = "auto|A,B,..."},
             launch_.hosts)
          ->check([](const std::string& list) {
            return list.empty() ? "the list is empty; perhaps a variable of the shell is not set" : "";
          })
          ->needs(supervise);
  option(launch,
         {.name = "--spares",
          .help = "Keep N hosts idle; one takes over when another host is lost.",
          .value = "N",
          .range = kNotNegative},
         launch_.spares)
      ->capture_default_str()
      ->needs(hosts);
  option(launch,
         {.name = "--min-hosts",
          .help = "Continue with fewer ranks as long as at least N hosts remain. Default: all except the spares.",
          .value = "N",
          .range = kNotNegative},
         launch_.min_hosts)
      ->needs(hosts);
  option(launch,
         {.name = "--on-exclude",
          .help = "Run this command when a host is found unfit, and when the run continues without a host that failed in two of "
                  "three attempts or was slow. The command gets OCTET_NODE, OCTET_CODE and OCTET_REASON. Octet does not wait for "
                  "the command to end.",
          .value = "COMMAND"},
         launch_.on_exclude)
      ->needs(hosts);
  option(launch,
         {.name = "--exclude-stragglers",
          .help = "Let a spare take the place of a host with a straggler (health.straggler), at the next checkpoint after "
                  "it was slow in N logged intervals. 0: never.",
          .value = "N",
          .range = kNotNegative},
         launch_.exclude_stragglers)
      ->capture_default_str()
      ->needs(hosts);
  option(launch,
         {.name = "--gate",
          .help = "Run `octet doctor --gate` on each host before its ranks start, and continue without unfit hosts. auto: "
                  "only if ranks train on GPUs.",
          .choices = "auto | on | off"},
         launch_.gate)
      ->capture_default_str()
      ->needs(supervise);

  CLI::App& status =
      add(root_,
          {.name = "status",
           .summary = "Shows how far a run is, which process runs it, its newest checkpoint, and what went wrong.",
           .example = "octet status out/quickstart/fp8_delayed",
           .notes = "Reads only the run's folder. Also shows the ranks if `octet launch --supervise` runs on this machine."},
          [this] { return run_status(status_); });
  option(status, {.name = "DIR", .help = "Folder of the run.", .value = "DIR"}, status_.run)->required();
  CLI::Option* as_json = flag(status, json_field(), status_.json);
  flag(status,
       {.name = "--code",
        .help = "Print nothing and exit with the code of the last process that trained: 137 if it was killed and no "
                "supervisor saw it, 0 while it runs. For job scripts."},
       status_.code)
      ->excludes(as_json);

  CLI::App& report = add(root_,
                         {.name = "report",
                          .summary = "Writes report.html about one run, or about several side by side.",
                          .example = "octet report out/quickstart"},
                         [this] { return run_report(report_); });
  option(report, {.name = "DIR", .help = "Folders of runs, or one folder that holds several.", .value = "DIR"}, report_.directories)
      ->required()
      ->expected(1, -1);
  CLI::Option* output =
      option(report, {.name = "--output", .help = "Folder of report.html. Default: the first DIR.", .value = "DIR"}, report_.output);
  option(report, {.name = "--baseline", .help = "Name of the run that the others are compared with. Default: bf16.", .value = "NAME"},
         report_.baseline);
  option(report, {.name = "--title", .help = "Title of the page.", .value = "TEXT"}, report_.title);
  CLI::Option* json = flag(report, {.name = "--json", .help = "Print the report's data as JSON instead of a table."}, report_.json);
  CLI::Option* picture = option(report,
                                {.name = "--picture",
                                 .help = "Also draw curves and table, light and dark: NAME.svg writes NAME-light.svg and NAME-dark.svg.",
                                 .value = "FILE"},
                                report_.picture);
  option(report,
         {.name = "--theme", .help = "Write the picture only in this theme, under the given name.", .choices = "light | dark"},
         report_.theme)
      ->needs(picture);
  CLI::Option* watch = flag(report,
                            {.name = "--watch",
                             .help = "Serve the report of running runs on 127.0.0.1. The page reloads itself. No file is "
                                     "written."},
                            report_.watch);
  option(report,
         {.name = "--port", .help = "Port of --watch. 0 takes a free port.", .value = "PORT", .range = {.min = 0, .max = 65535}},
         report_.port)
      ->capture_default_str()
      ->needs(watch);
  watch->excludes(picture)->excludes(output)->excludes(json);
}

void Octet::add_planning() {
  CLI::App& advise = add(root_,
                         {.name = "advise",
                          .summary = "Shows what each recipe gains and costs for this model, layer by layer, and recommends one.",
                          .example = "octet advise configs/quickstart.toml --health out/quickstart/fp8_delayed"},
                         [this] { return run_advise(advise_); });
  line_.takes_run(advise, advise_.run);
  option(advise,
         {.name = "--health", .help = "fp8_health.jsonl of a run, or its folder. Names the layers to keep in BF16.", .value = "PATH"},
         advise_.health);
  device_option(advise, advise_.device, "Device to advise for; on a GPU the times are measured.");
  flag(advise, json_field(), advise_.json);

  CLI::App& plan = add(root_,
                       {.name = "plan",
                        .summary = "Predicts the memory and the speed of a run on many GPUs. Needs no GPU.",
                        .example = "octet plan configs/llama3.1-8b.toml --gpus 8xH100"},
                       [this] { return run_plan(plan_); });
  line_.takes_run(plan, plan_.run);
  option(plan, {.name = "--gpus", .help = "Number and kind of the GPUs: 8xH100, 64xH200.", .value = "NxGPU"}, plan_.gpus)->required();
  option(plan,
         {.name = "--nodes", .help = "Number of machines. Default: one for every 8 GPUs.", .value = "N", .range = kAtLeastOne},
         plan_.nodes);
  CLI::Option* search =
      flag(plan,
           {.name = "--search",
            .help = "Try every mesh and micro-batch size, keep as much in memory as fits, and print the best ten."},
           plan_.search);
  option(plan,
         {.name = "--picture",
          .help = "Also draw the memory of a GPU as a stacked bar, or with --schedule the schedule, to this SVG file.",
          .value = "FILE"},
         plan_.picture)
      ->excludes(search);
  flag(plan, json_field(), plan_.json);
  CLI::Option* schedule =
      flag(plan, {.name = "--schedule", .help = "Print when each part of a step should run, stream by stream."}, plan_.schedule)
          ->excludes(search);
  CLI::Option* parameters = flag(plan,
                                 {.name = "--parameters",
                                  .help = "Print which copies of each parameter a rank holds, and how much memory "
                                          "they take."},
                                 plan_.parameters)
                                ->excludes(search)
                                ->excludes(schedule);
  CLI::Option* goodput = flag(plan,
                              {.name = "--goodput",
                               .help = "Print the share of time that saves and failures leave for training, and how often "
                                       "to save."},
                              plan_.goodput)
                             ->excludes(search)
                             ->excludes(schedule)
                             ->excludes(parameters);
  option(plan,
         {.name = "--mtbf",
          .help = "With --goodput: mean hours between two failures of one GPU, whatever fails.",
          .value = "HOURS",
          .range = kPositive},
         plan_.mtbf_hours)
      ->needs(goodput);
  option(plan,
         {.name = "--storage",
          .help = "With --goodput: bytes per second that all nodes together read or write: 20GB. Default: 1 GB for each node.",
          .value = "BYTES"},
         plan_.storage)
      ->needs(goodput);
  option(plan,
         {.name = "--stage",
          .help =
              "Pipeline stage to plan. By default memory is that of the fullest stage, and times are those of the busiest stage.",
          .value = "N",
          .range = {.min = 0}},
         plan_.stage)
      ->excludes(search);
}

// About the program itself.
void Octet::add_program() {
  CLI::App& doctor =
      add(root_,
          {.name = "doctor",
           .summary = "Describes this machine, runs an FP8 self-test, and says how to fix problems.",
           .example = "octet doctor",
           .notes = "With `--gate` it answers one question: may this host take part in a run? It ends with 0, or with 79 "
                    "and one sentence if the host must not. It writes and reads a file, multiplies matrices of small "
                    "integers on the CPU and on the GPUs and checks every result to the bit, and asks NVIDIA's driver for "
                    "errors. `octet launch --supervise` runs it before ranks."},
          [this] { return doctor_.gate.empty() ? run_doctor(doctor_) : run_gate(doctor_); });
  flag(doctor, json_field(), doctor_.json);
  CLI::Option* gate = option(doctor,
                             {.name = "--gate",
                              .help = "Check only what makes this host unfit. quick takes about 3 s, full about 60 s on GPUs and "
                                      "5 s on a CPU. full also compares the speeds of the GPUs.",
                              .choices = "quick | full"},
                             doctor_.gate);
  option(doctor, {.name = "--folder", .help = "The folder of the run. Default: this one.", .value = "DIR"}, doctor_.folder)
      ->needs(gate);
  option(doctor,
         {.name = "--gpus",
          .help = "Check the first N GPUs; a missing one is a fault. Default: all.",
          .value = "N",
          .range = kNotNegative},
         doctor_.gpus)
      ->needs(gate);

  CLI::App& manual = add(root_,
                         {.name = "manual",
                          .summary = "Prints the reference: commands, configuration, files and exit codes.",
                          .example = "octet manual configuration precision",
                          .notes = "Topics:\n" + manual_topics()},
                         [this] { return run_manual(manual_, line_.describe()); });
  CLI::Option* topic =
      option(manual, {.name = "TOPIC", .help = "What to print, as Markdown. Default: commands.", .choices = kManualTopics}, manual_.topic);
  option(manual, {.name = "NAME", .help = "A command, a section of the configuration, or a file. Default: all of them.", .value = "NAME"},
         manual_.name)
      ->expected(0, -1);
  option(
      manual,
      {.name = "--output",
       .help = "Instead of printing, write the man pages and the completion of every shell below this folder, in the layout of "
               "/usr/share.",
       .value = "DIR"},
      manual_.output)
      ->excludes(topic);

  CLI::App& completion =
      add(root_,
          {.name = "completion",
           .summary = "Prints the completion script of a shell.",
           .example = "octet completion bash > octet.bash",
           .notes = "For this shell only:\n"
                    "  bash   source <(octet completion bash)\n"
                    "  zsh    source <(octet completion zsh)\n"
                    "  fish   octet completion fish | source\n"
                    "Add the line to ~/.bashrc, to ~/.zshrc after compinit, or to ~/.config/fish/config.fish to keep it."},
          [this] { return run_completion(shell_, line_.describe()); });
  option(completion, {.name = "SHELL", .help = "Name of the shell.", .choices = "bash | zsh | fish"}, shell_)->required();
}

namespace {

int say_lines(const std::string& text, ExitCode code) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", text.c_str());
  return static_cast<int>(code);
}

// A file name with a line feed must not look like a second line.
int say(const std::string& message, ExitCode code) {
  std::string line;
  for (const char c : message) line += c == '\n' ? std::string("\\n") : std::string(1, c);
  return say_lines(line, code);
}

}  // namespace

int run(int argc, const char* const* argv) {
  // A supervisor that sees this flag starts the ranks again.
  std::atomic<bool>& storage_failed = telemetry::own_page().storage_failed;
  tell_bus_errors(storage_failed);
  try {
    hold_standard_streams();
    const int code = Octet().run(argc, argv);
    const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout);  // never after outlive_stdout()
    return code == 0 && lost ? say("octet: cannot write to stdout", ExitCode::internal) : code;
  } catch (const UsageError& error) {
    return say(error.what(), error.code());
  } catch (const DoesNotFit& error) {
    return say_lines(concat("octet: ", error.what()), error.code());
  } catch (const SystemError& error) {
    storage_failed = error.may_pass();
    return say(concat("octet: ", error.what()), error.code());
  } catch (const storage::StoreError& error) {
    storage_failed = error.fault() == storage::StoreError::Fault::no_answer;
    return say(concat("octet: ", error.what()), error.code());
  } catch (const Error& error) {
    return say(concat("octet: ", error.what()), error.code());
  } catch (const std::system_error& error) {
    if (std::ferror(stdout)) {  // thrown by fmt::print
      return say(concat("octet: cannot write to stdout: ", error.code().message()), ExitCode::internal);
    }
    return say(concat("octet: internal error: ", error.what()), ExitCode::internal);
  } catch (const std::bad_alloc&) {
    return say("octet: out of memory", ExitCode::internal);
  } catch (const std::exception& error) {
    return say(concat("octet: internal error: ", error.what()), ExitCode::internal);
  }
}

}  // namespace octet::app
