#include "octet/app/manual/manual.h"

namespace octet::app {

// The compiler warns where a new code has no sentence here.
std::string_view meaning(ExitCode code) {
  switch (code) {
    case ExitCode::done: return "Done.";
    case ExitCode::internal:
      return "An error inside Octet, a full disk, a failed self-test or `octet convert verify`, or host memory that a supervised "
             "run used up twice.";
    case ExitCode::config:
      return "A mistake in the configuration or the arguments, or another run writes into the folder. The run is unchanged.";
    case ExitCode::does_not_fit:
      return "The run does not fit into memory, a checkpoint onto the disk, or a corpus into `--max-output`. The message says "
             "what would help. After its first step a supervised run starts again, because another program may have taken the "
             "memory for a while.";
    case ExitCode::preempted:
      return "Asked to stop by SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 or the first SIGINT, and saved. The same command continues the "
             "run if checkpoint.resume is auto.";
    case ExitCode::data:
      return "A corpus, a model directory or a checkpoint is missing, damaged or cannot be read, or an I/O error hides the "
             "token. `octet launch --supervise` starts the ranks again only after an I/O error.";
    case ExitCode::not_finite:
      return "The loss is not finite or spikes again after anomaly.max_rollbacks rollbacks, more than half of the steps were "
             "skipped, or weights or logits of a model are not finite.";
    case ExitCode::peer: return "Another rank or the interconnect failed.";
    case ExitCode::unfit:
      return "`octet doctor --gate` found a fault of this host; `octet launch --supervise` continues without the host, or "
             "ends with this code if too few are left. Or a rank differs from most ranks that must hold the same bits "
             "(health.replicas_every), or computes other bits from the same data (health.sdc_every); the supervisor then "
             "starts the ranks again.";
    case ExitCode::stalled:
      return "No rank of a supervised run made progress for comm.stall_s. `octet launch --supervise` "
             "starts the ranks again.";
    case ExitCode::interrupted: return "A second SIGINT ended the program at once, without saving.";
  }
  return "";
}

std::vector<std::pair<int, std::string_view>> exit_codes() {
  std::vector<std::pair<int, std::string_view>> codes;
  for (int code = 0; code < 256; ++code) {
    const std::string_view sentence = meaning(static_cast<ExitCode>(code));
    if (!sentence.empty()) codes.emplace_back(code, sentence);
  }
  return codes;
}

}  // namespace octet::app
