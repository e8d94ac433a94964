#include "octet/app/fetched.h"

#include <memory>
#include <utility>

#include "octet/app/work_progress.h"
#include "octet/telemetry/rank_page.h"

namespace octet::app {

storage::CopyProgress show_copy(const std::string& label) {
  const auto progress = std::make_shared<WorkProgress>(label);
  return [progress, before = std::int64_t{0}](std::int64_t done, std::int64_t total) mutable {
    if (std::exchange(before, done) != done) telemetry::own_page().mark();  // a copy may take longer than a supervisor waits
    (*progress)(done, total);
  };
}

train::Config load_run(const RunFile& run, train::Fetch what) {
  train::Config config = train::load_config(run.path, run.overrides);
  train::fetch_inputs(config, what, show_copy);
  return config;
}

std::filesystem::path fetched_folder(const std::filesystem::path& path, train::Fetch what) {
  return train::fetch_folder(path, what, show_copy);
}

std::filesystem::path fetched_checkpoint(const std::filesystem::path& path) {
  return train::fetch_checkpoint(path, train::Fetch::everything, show_copy);
}

}  // namespace octet::app
