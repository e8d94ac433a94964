#include "octet/train/disk_space.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "octet/base/clock.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/process_identity.h"
#include "octet/base/retry.h"
#include "octet/checkpoint/steps.h"
#include "octet/telemetry/format.h"
#include "octet/telemetry/rank_page.h"

namespace octet::train {

void check_space(const Config& config, std::uint64_t each, std::int64_t step, std::int64_t steps, NoRoom no_room) {
  const std::filesystem::path folder = config.run.output_dir;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || step == steps) return;
  const CheckpointConfig& c = config.checkpoint;
  const auto text = [](std::uint64_t bytes) { return telemetry::format_bytes(bytes); };
  if (space.available < each) {
    const std::string lack = concat(folder.string(), ": the next checkpoint takes ", text(each), ", and ", text(space.available),
                                    " are free. Make room");
    demand(no_room == NoRoom::warn, ExitCode::does_not_fit, lack, ", or give another run.output_dir");
    return log_warning(concat(lack, "; the run goes on meanwhile"));
  }
  const std::int64_t saves = (c.interval > 0 ? (steps - 1) / c.interval - step / c.interval : 0) + 1;
  const auto checkpoints = retry(c.retry_s, [&] { return checkpoint::find_checkpoints(folder / "checkpoints"); });
  const auto there = static_cast<std::int64_t>(checkpoints.size());
  // One more than are kept: the oldest goes after the newest is there.
  std::int64_t more = c.keep_latest_k == 0 ? saves : std::min(saves, std::max<std::int64_t>(1, c.keep_latest_k + 1 - there));
  if (c.keep_latest_k > 0 && c.keep_every > 0) more = std::min(saves, more + (steps - step) / std::max(c.keep_every, c.interval));
  if (config.evaluation.keep_best) more += 2;  // the best one, and the one before it until the new one is there
  const double needed = static_cast<double>(more) * static_cast<double>(each);
  if (needed <= static_cast<double>(space.available)) return;
  log_warning(concat(folder.string(), ": up to ", more, " more checkpoints of ", text(each), " will be kept at a time, and ",
                     text(space.available),
                     " are free: a save may fail. checkpoint.interval, keep_latest_k and keep_every set how many there are"));
}

void wait_for_room(const std::filesystem::path& folder, double limit_s) {
  constexpr std::size_t kBytes = 64 << 10;  // of all small files together, with some to spare
  constexpr double kLookS = 0.5;
  const std::filesystem::path probe = folder / concat(".room-", ProcessIdentity::mine().pid);
  const Clock::time_point start = Clock::now();
  for (bool waited = false;; waited = true) {
    try {
      write_file_atomically(probe, std::string(kBytes, ' '));
      return remove_tree(probe);
    } catch (const SystemError& error) {
      if (error.number() != ENOSPC && error.number() != EDQUOT) return;
      if (seconds_since(start) >= limit_s)
        throw SystemError(
            ExitCode::internal,
            concat(error.what(), ", also after ", limit_s, " s of waiting; make room, and give the same command again"),
            error.number());
      if (!waited) log_warning(concat(error.what(), "; waiting up to ", limit_s, " s for room"));
    }
    telemetry::own_page().mark();
    std::this_thread::sleep_for(std::chrono::duration<double>(kLookS));
  }
}

}  // namespace octet::train
