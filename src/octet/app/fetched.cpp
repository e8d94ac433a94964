#include "octet/app/fetched.h"

#include <map>
#include <memory>
#include <utility>

#include "octet/app/job_memory.h"
#include "octet/app/work_progress.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
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

void or_use_copies_of_job(train::Config& config, const std::function<void()>& fetch) {
  try {
    return fetch();
  } catch (const storage::StoreError& error) {
    const nlohmann::json copies = json_of(text_of_job(kCopiesOfJob).value_or(""));
    if (!copies.is_object() || !train::use_copies(config, copies.get<std::map<std::string, std::string>>())) throw;
    log_shared_warning(concat(error.what(), "; goes on with the copies that this job has used before"));
  }
  fetch();
}

void remember_copies_for_job(const train::Config& config) {
  if (!config.copies.empty()) set_text_of_job(kCopiesOfJob, nlohmann::json(config.copies).dump());
}

}  // namespace octet::app
