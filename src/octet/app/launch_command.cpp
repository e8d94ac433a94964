#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "octet/app/commands.h"
#include "octet/app/local_ranks.h"
#include "octet/app/standard_streams.h"
#include "octet/app/supervisor.h"
#include "octet/base/require.h"
#include "octet/train/config.h"

namespace octet::app {
namespace {

constexpr double kGraceS = 20;     // for a last checkpoint
constexpr double kLastWordsS = 2;  // the supervisor starts the ranks again from the checkpoints that are there

// What the ranks say, on this process's own stdout and stderr: rank 0 byte for byte, the others in whole lines with "[rank] ".
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

  // A full disk under the log must not end a run, as it does not end one without `launch`; it is said at the end. Neither must a
  // reader that has gone, which is no failure.
  bool stdout_failed() const { return stdout_error_ != 0 && stdout_error_ != EPIPE && stdout_error_ != EIO; }

 private:
  static std::size_t index(StandardStream stream) { return static_cast<std::size_t>(stream); }

  void write_line(StandardStream stream, std::string text) {
    if (text.back() != '\n') text += '\n';
    if (std::exchange(rank_0_is_within_a_line_[index(stream)], false)) text.insert(0, 1, '\n');
    write(stream, text);
  }

  void write(StandardStream stream, std::string_view text) {
    if (failed_[index(stream)]) return;
    const int error = (stream == StandardStream::out ? out_ : err_).write(text);
    failed_[index(stream)] = error != 0;
    if (stream == StandardStream::out) stdout_error_ = error;
  }

  OutputText out_{STDOUT_FILENO}, err_{STDERR_FILENO};
  std::array<bool, 2> rank_0_is_within_a_line_{}, failed_{};
  int stdout_error_ = 0;  // errno
};

}  // namespace

int run_launch(const LaunchArgs& args) {
  demand(!args.command.empty(), ExitCode::config,
         "nothing to run: put a command after `--`, for example `octet launch -n 2 -- train RUN.toml`");
  demand(args.command.front() != "launch", ExitCode::config,
         "`octet launch` cannot start `octet launch`: the ranks run the command after `--` themselves");

  demand(!args.supervise || args.command.front() == "train", ExitCode::config,
         "`octet launch --supervise` keeps `octet train` going, not `octet ", args.command.front(), "`");
  if (args.supervise && args.run.path.empty()) return 0;  // `train --help`
  std::signal(SIGPIPE, SIG_IGN);
  Console console;
  const auto output = [&](int rank, StandardStream stream, std::string_view line) { console.line(rank, stream, line); };
  const auto note = [&](std::string_view sentence) { console.note(sentence); };
  int code = 0;
  if (args.supervise) {
    code = Supervisor({.ranks = args.ranks,
                       .command = args.command,
                       .run_folder = train::load_config(args.run.path, args.run.overrides).run.output_dir,
                       .grace_s = args.grace_s.value_or(kLastWordsS),
                       .limits = {.restarts = args.restarts, .per_hour = args.restarts_per_hour},
                       .output = output,
                       .note = note})
               .run();
  } else {
    const LocalToken token;
    ProcessGroupOptions options = local_ranks(args.ranks, args.command, token);
    options.grace_s = args.grace_s.value_or(kGraceS);
    options.output = output;
    options.note = note;
    code = ProcessGroup(std::move(options)).run();
  }
  demand(code != 0 || !console.stdout_failed(), ExitCode::internal, "cannot write to stdout");
  return code;
}

}  // namespace octet::app
