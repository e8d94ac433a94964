// The files of earlier runs in a run folder, and how they are kept when a new history begins there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::train {

struct History {
  std::vector<std::int64_t> checkpoints;  // steps, highest first
  std::int64_t last_step = 0;             // the highest step of a checkpoint, or of a line of metrics if there is no checkpoint
  bool has_metrics = false;               // a file of lines holds something
  bool has_model = false, has_adapter = false;

  bool exported() const { return has_model || has_adapter; }
  bool empty() const { return checkpoints.empty() && !has_metrics && !exported(); }
  // "a run up to step 20 (4 checkpoints, metrics, a model)"
  std::string text() const;
};

// Reads the history in `folder`, which need not exist. Errors that may pass are retried for `retry_s` seconds. Throws
// Error{data} if the folder cannot be read.
History history_of(const std::filesystem::path& folder, double retry_s);

// Returns why a run is refused without run.set_aside: its checkpoint.resume does not continue the history in `folder`, or
// continues it only up to `kept_step`.
std::string why_in_the_way(const std::filesystem::path& folder, const History& history, std::string_view resume,
                           std::optional<std::int64_t> kept_step = std::nullopt);

// Moves the history in `folder` to folder/history/<UTC time>-step-N/ and returns the new folder: run.json, metrics, health
// samples, TensorBoard events, checkpoints, the model or the adapter, the report, and the attempts of other jobs. The new
// folder is a run folder, which `octet report` reads.
//
// With `kept_step`, the run continues after the checkpoint of that step. Then checkpoints up to it and attempts stay. Files of
// lines are cut at that step, so they are copied instead of moved. Throws Error{internal} or Error{data}; a second call moves
// the rest.
std::filesystem::path set_aside(const std::filesystem::path& folder, const History& history,
                                std::optional<std::int64_t> kept_step = std::nullopt);

// Does what set_aside() does for a run up to last_step that goes back to kept_step. However, it copies only the lines of
// metrics and other files after kept_step, and writes TensorBoard events anew from them, so that a run that goes back often
// does not fill the disk.
std::filesystem::path set_abandoned_aside(const std::filesystem::path& folder, std::int64_t last_step, std::int64_t kept_step);

}  // namespace octet::train
