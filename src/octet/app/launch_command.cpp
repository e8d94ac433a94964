#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "octet/app/commands.h"
#include "octet/app/last_sentences.h"
#include "octet/app/local_ranks.h"
#include "octet/app/standard_streams.h"
#include "octet/app/supervisor.h"
#include "octet/base/require.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/train/config.h"
#include "octet/train/setup.h"
#include "octet/train/world.h"

namespace octet::app {
namespace {

constexpr double kGraceS = 20;     // for a last checkpoint
constexpr double kLastWordsS = 2;  // the supervisor starts the ranks again from the checkpoints that are there

// Prints the output of the ranks on this process's stdout and stderr: rank 0's byte for byte, the others' in whole lines with
// "[rank] ".
class Console {
 public:
  void line(int rank, StandardStream stream, std::string_view text) {
    if (rank == 0) {
      write(stream, text);
      rank_0_is_within_a_line_[index(stream)] = text.back() != '\n';
      return;
    }
    write_line(stream, fmt::format("[{}] {}", rank, text));
  }

  void note(std::string_view sentence) { write_line(StandardStream::err, fmt::format("octet launch: {}", sentence)); }

  // Returns whether output is missing, as on a full disk. A run continues without it, as it does without `launch`.
  bool stdout_failed() const { return out_.lost(); }

 private:
  static std::size_t index(StandardStream stream) { return static_cast<std::size_t>(stream); }

  void write_line(StandardStream stream, std::string text) {
    if (text.back() != '\n') text += '\n';
    if (std::exchange(rank_0_is_within_a_line_[index(stream)], false)) text.insert(0, 1, '\n');
    write(stream, text);
  }

  void write(StandardStream stream, std::string_view text) {
    if (stream == StandardStream::err) {
      err_.write(text);
    } else if (const int error = out_.write(text); out_.lost() && !std::exchange(warned_, true)) {
      note(concat("cannot write to stdout: ", std::strerror(error), "; the ranks continue without it"));
    }
  }

  LastingOutput out_{STDOUT_FILENO}, err_{STDERR_FILENO};
  bool warned_ = false;
  std::array<bool, 2> rank_0_is_within_a_line_{};
};

// The mesh of all ranks, with the shards that remain if parallel.shard = -1. The configuration has been checked.
DataMesh data_mesh_of(const train::Config& config, int ranks) {
  const train::ParallelConfig& parallel = config.parallel;
  const auto number = [](std::int64_t value) { return static_cast<int>(value); };
  DataMesh mesh{.replicate = number(parallel.replicate),
                .shard = number(parallel.shard),
                .rest = number(parallel.pipeline * parallel.context * parallel.tensor),
                .expert = number(parallel.expert),
                .global_batch = number(config.training.global_batch_size),
                .micro_batch = number(config.training.micro_batch_size)};
  if (mesh.shard < 1) mesh.shard = ranks / (mesh.replicate * mesh.rest);
  return mesh;
}

SupervisorOptions supervisor_options(const LaunchArgs& args) {
  const std::string text = train::read_config_text(args.train.run.path);
  train::Config config = train::parse_config(text, args.train.run.path.string(), args.train.run.overrides);
  if (!args.train.resume.empty()) config.checkpoint.resume = args.train.resume;
  SupervisorOptions options{.ranks = args.ranks,
                            .command = args.command,
                            .config_file = args.train.run.path,
                            .config = text,
                            .begins_as_told = config.checkpoint.resume != "auto",
                            .run_folder = config.run.output_dir,
                            .grace_s = args.grace_s.value_or(kLastWordsS),
                            .limits = {.restarts = args.restarts, .per_hour = args.restarts_per_hour},
                            .spares = args.spares,
                            .on_exclude = args.on_exclude,
                            .exclude_stragglers = args.exclude_stragglers,
                            .replicas = static_cast<int>(config.checkpoint.replicas),
                            .join_timeout_s = config.comm.join_timeout_s,
                            .silence_s = config.comm.silence_s,
                            .stall_s = config.comm.stall_s,
                            .metrics_port = static_cast<int>(config.metrics.port),
                            .metrics_address = config.metrics.address,
                            .interface = config.comm.interface,
                            .needs_token = config.comm.token != "none"};
  if (!args.hosts.empty()) options.hosts = host_list(args.hosts, &::getenv);
  const int hosts = static_cast<int>(options.hosts.hosts.size());
  demand(args.spares < hosts, ExitCode::config, "--spares ", args.spares, ": of ", hosts, " hosts at least one must run ranks");
  options.min_hosts = args.min_hosts > 0 ? args.min_hosts : hosts - args.spares;
  demand(options.min_hosts <= hosts - args.spares, ExitCode::config, "--min-hosts ", args.min_hosts, ": only ",
         hosts - args.spares, " of ", hosts, " hosts run ranks");
  train::check_config(config, std::int64_t{args.ranks} * (hosts - args.spares));  // before there is an attempt to record
  const bool on_gpus = kCudaBackend && train::device_of(config) == DeviceKind::cuda;
  options.gpus = on_gpus ? args.ranks : 0;
  options.gate = args.gate == "on" || (args.gate == "auto" && on_gpus);
  options.mesh = data_mesh_of(config, args.ranks * (hosts - args.spares));
  return options;
}

// Also checks whether the axes of the mesh divide the model, if its config.json is here. Otherwise the ranks may find the
// architecture in a checkpoint.
void check(const train::Config& config, int ranks) {
  train::check_config(config, ranks);
  if (!train::init_from_is_gone(config)) train::mesh_of(config, ranks);
}

}  // namespace

int run_launch(const LaunchArgs& args) {
  demand(!args.command.empty(), ExitCode::config,
         "nothing to run: put a command after `--`, for example `octet launch -n 2 -- train RUN.toml`");
  demand(args.command.front() != "launch", ExitCode::config,
         "`octet launch` cannot start `octet launch`: the ranks run the command after `--` themselves");

  demand(!args.supervise || args.command.front() == "train", ExitCode::config,
         "`octet launch --supervise` keeps `octet train` going, not `octet ", args.command.front(), "`");
  if (args.command.front() == "train") {
    if (args.train.run.path.empty()) return 0;  // `train --help`
    // All ranks would print the same error. supervisor_options() checks the configuration for the ranks of all hosts.
    if (!args.supervise) check(train::load_config(args.train.run.path, args.train.run.overrides), args.ranks);
  }
  std::signal(SIGPIPE, SIG_IGN);
  Console console;
  const auto output = [&](int rank, StandardStream stream, std::string_view line) { console.line(rank, stream, line); };
  const auto note = [&](std::string_view sentence) { console.note(sentence); };
  int code = 0;
  if (args.supervise) {
    SupervisorOptions options = supervisor_options(args);
    options.output = output;
    options.note = note;
    code = Supervisor(std::move(options)).run();
  } else {
    const LocalToken token;
    ProcessGroupOptions options =
        local_ranks({.count = args.ranks, .all = args.ranks, .port = free_port()}, args.command, token.variable());
    options.grace_s = args.grace_s.value_or(kGraceS);
    options.output = [&output, said = LastSentences()](int rank, StandardStream stream, std::string_view line) mutable {
      if (!said.repeats(stream, line)) output(rank, stream, line);
    };
    options.note = note;
    code = ProcessGroup(std::move(options)).run();
  }
  // The output of `octet train` matters less than its work. The output of other commands is their answer.
  demand(code != 0 || args.command.front() == "train" || !console.stdout_failed(), ExitCode::internal, "cannot write to stdout");
  return code;
}

}  // namespace octet::app
