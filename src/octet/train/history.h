// What earlier runs left in a run folder, and how it is kept when another history begins there.
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

// Reads what is in `folder`, which need not exist. Errors that may pass are retried for `retry_s` seconds. Throws Error{data} if
// the folder cannot be read.
History history_of(const std::filesystem::path& folder, double retry_s);

// Returns why a run is refused without run.set_aside: its checkpoint.resume does not continue the history that is in `folder`, or
// continues it only up to `kept_step`.
std::string why_in_the_way(const std::filesystem::path& folder, const History& history, std::string_view resume,
                           std::optional<std::int64_t> kept_step = std::nullopt);

// Moves the history in `folder` to folder/history/<UTC time>-step-N/ and returns the new folder: run.json, metrics, health
// samples, TensorBoard events, checkpoints, the model or the adapter, the report, and the attempts of other jobs than this one. The
// new folder is a run folder, which `octet report` reads.
//
// With `kept_step` the run goes on after the checkpoint of that step: checkpoints up to it and attempts stay, and files of lines,
// which are cut at that step, are copied instead of moved. Throws Error{internal} or Error{data}; a second call moves the rest.
std::filesystem::path set_aside(const std::filesystem::path& folder, const History& history,
                                std::optional<std::int64_t> kept_step = std::nullopt);

// What set_aside() does for a run up to last_step that goes back to kept_step, but of metrics and other lines only those after
// kept_step are copied, and TensorBoard events are written anew from them: a run that goes back often must not fill the disk.
std::filesystem::path set_abandoned_aside(const std::filesystem::path& folder, std::int64_t last_step, std::int64_t kept_step);

}  // namespace octet::train
