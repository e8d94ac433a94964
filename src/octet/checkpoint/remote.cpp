#include "octet/checkpoint/remote.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <future>
#include <map>
#include <utility>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/start_thread.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/steps.h"
#include "octet/checkpoint/untrusted.h"
#include "octet/telemetry/format.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAbandoned = "abandoned";
constexpr std::size_t kSumDigits = 16;
constexpr std::size_t kUploads = 4;  // files at a time

// The step of "step-00001000-0123456789abcdef".
std::optional<std::int64_t> step_of_name(std::string_view name) {
  const std::size_t dash = name.rfind('-');
  if (dash == std::string_view::npos || name.size() - dash - 1 != kSumDigits || !name.starts_with("step-") || dash < 5) return {};
  std::int64_t step = 0;
  const char* const end = name.data() + dash;
  const auto [stop, error] = std::from_chars(name.data() + 5, end, step);
  if (error != std::errc() || stop != end || step < 0 || step_name(step) != name.substr(0, dash)) return {};
  return step;
}

// Returns the folder for a checkpoint of this step whose manifest has this text.
storage::ObjectUrl folder_for(storage::ObjectStore& store, const storage::ObjectUrl& url, std::int64_t step,
                              std::string_view manifest) {
  RunningChecksum sum;
  sum.update(manifest);
  for (;; sum.update("again")) {
    const storage::ObjectUrl folder = url.below(concat(step_name(step), "-", sum.hex()));
    if (!store.find(folder.below(kAbandoned))) return folder;
  }
}

void send_file(storage::ObjectStore& store, const storage::ObjectUrl& url, const fs::path& file,
               const std::function<void()>& sent) {
  const auto told = [&](std::int64_t) {
    if (sent) sent();
  };
  if (store.put_file(url, file, told)) return;
  const auto there = store.find(url);
  const std::size_t bytes = FileReader(file).size();
  demand(there && there->bytes == bytes, ExitCode::data, url.text(),
         ": there is another object of this name; it is not overwritten");
}

// Removes interrupted fetches of older checkpoints, which nobody will continue.
void remove_other_fetches(const fs::path& root, const fs::path& unfinished) {
  if (!path_exists(root)) return;
  for (const fs::path& path : entries_of(root)) {
    if (path != unfinished && path.filename().string().starts_with("fetching-")) remove_tree(path);
  }
}

}  // namespace

std::vector<RemoteCheckpoint> remote_checkpoints(storage::ObjectStore& store, const storage::ObjectUrl& url) {
  std::map<std::string, RemoteCheckpoint> found;
  std::vector<RemoteCheckpoint> complete;
  for (storage::ListedObject& object : store.list(url)) {
    const std::size_t slash = object.name.find('/');
    if (slash == std::string::npos) continue;
    std::string name = object.name.substr(0, slash), file = object.name.substr(slash + 1);
    const std::optional<std::int64_t> step = step_of_name(name);
    if (!step || !is_file_name(file)) continue;
    RemoteCheckpoint& checkpoint = found[name];
    checkpoint.step = *step;
    checkpoint.name = std::move(name);
    if (file == kAbandoned) {
      checkpoint.abandoned = true;
      continue;
    }
    if (file == kManifestName) {
      using Time = std::chrono::system_clock;
      checkpoint.written =
          Time::time_point(std::chrono::duration_cast<Time::duration>(std::chrono::nanoseconds(object.written_ns)));
    }
    object.name = std::move(file);
    checkpoint.files.push_back(std::move(object));
  }
  for (auto& [name, checkpoint] : found) {
    const auto is_manifest = [](const storage::ListedObject& file) { return file.name == kManifestName; };
    if (std::any_of(checkpoint.files.begin(), checkpoint.files.end(), is_manifest)) complete.push_back(std::move(checkpoint));
  }
  std::sort(complete.begin(), complete.end(), [](const RemoteCheckpoint& a, const RemoteCheckpoint& b) {
    return std::pair(a.step, a.written) > std::pair(b.step, b.written);
  });
  return complete;
}

void send_checkpoint(storage::ObjectStore& store, const storage::ObjectUrl& url, std::int64_t step, const fs::path& folder,
                     const std::function<void()>& sent, const fs::path& beside) {
  const storage::ObjectUrl to = folder_for(store, url, step, read_file(folder / kManifestName));
  std::vector<fs::path> files;
  for (const fs::path& path : entries_of(folder)) {
    if (is_file(path) && path.filename() != kManifestName) files.push_back(path);
  }
  std::atomic<std::size_t> next = 0;
  std::vector<std::future<void>> uploads;
  for (std::size_t i = 0; i < std::min(kUploads, files.size()); ++i) {
    uploads.push_back(start_task("an upload of a checkpoint", [&] {
      for (std::size_t file; (file = next++) < files.size();) {
        send_file(store, to.below(files[file].filename().string()), files[file], sent);
      }
    }));
  }
  for (std::future<void>& upload : uploads) upload.wait();  // all use what is on this stack
  for (std::future<void>& upload : uploads) upload.get();
  if (path_exists(beside)) {
    for (const fs::path& path : entries_of(beside)) {
      store.put_file(to.below(path.filename().string()), path, [&](std::int64_t) {
        if (sent) sent();
      });
    }
  }
  send_file(store, to.below(kManifestName), folder / kManifestName, sent);
}

void fetch_checkpoint(storage::ObjectStore& store, const storage::ObjectUrl& url, const RemoteCheckpoint& from,
                      const fs::path& root, const storage::CopyProgress& progress) {
  const fs::path to = root / step_name(from.step), unfinished = root / ("fetching-" + from.name);
  require(!path_exists(to), "checkpoint: ", to.string(), " is there");
  remove_other_fetches(root, unfinished);
  make_folders(unfinished);
  std::int64_t total = 0, done = 0;
  for (const storage::ListedObject& file : from.files) total += static_cast<std::int64_t>(file.bytes);
  for (const storage::ListedObject& file : from.files) {
    const fs::path path = unfinished / file.name;
    if (!path_exists(path)) {
      storage::copy_to_file(store, url.below(from.name).below(file.name), {.bytes = file.bytes, .tag = ""}, path,
                            [&](std::int64_t bytes) {
                              if (progress) progress(done + bytes, total);
                            });
    }
    done += static_cast<std::int64_t>(file.bytes);
  }
  sync_directory(unfinished);
  Reader::open(unfinished);
  if (std::rename(unfinished.c_str(), to.c_str()) != 0) fail_errno(ExitCode::internal, to, "cannot rename");
  sync_directory(root);
}

void abandon_checkpoints(storage::ObjectStore& store, const storage::ObjectUrl& url, std::int64_t after_step) {
  for (const RemoteCheckpoint& checkpoint : remote_checkpoints(store, url)) {
    if (checkpoint.step > after_step && !checkpoint.abandoned) {
      store.put_text(url.below(checkpoint.name).below(kAbandoned), concat("The run went back to step ", after_step, ".\n"));
    }
  }
}

RemoteCopies::RemoteCopies(RemoteOptions options, std::optional<RemoteCheckpoint> newest)
    : options_(std::move(options)), store_(options_.retry_s), newest_(std::move(newest)) {}

RemoteCopies::~RemoteCopies() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void RemoteCopies::copy(std::int64_t step, fs::path folder) {
  const std::lock_guard lock(mutex_);
  if (waiting_ && failure_.empty()) {
    log_info(concat("the checkpoint of step ", waiting_->step, " is not copied to ", options_.url.text(),
                    ", which is slower than saving"));
  }
  waiting_ = Checkpoint{.step = step, .folder = std::move(folder)};
  if (!thread_.joinable()) thread_ = start_thread("the copier of checkpoints", [this] { run(); });
  wake_.notify_all();
}

void RemoteCopies::abandon(AbandonedSteps steps) {
  const std::lock_guard lock(mutex_);
  if (waiting_ && waiting_->step > steps.after) waiting_.reset();
  if (abandoned_) steps = {.after = std::min(steps.after, abandoned_->after), .last = std::max(steps.last, abandoned_->last)};
  if (options_.remember) options_.remember(steps);
  abandoned_ = steps;
  ++abandons_;
  if (!thread_.joinable()) thread_ = start_thread("the copier of checkpoints", [this] { run(); });
  wake_.notify_all();
}

bool RemoteCopies::uses(std::int64_t step) const {
  const std::lock_guard lock(mutex_);
  return (waiting_ && waiting_->step == step) || (sending_ && sending_->step == step);
}

std::string RemoteCopies::wait() {
  std::unique_lock lock(mutex_);
  ++waiters_;  // whatever failed is tried at once
  failure_.clear();
  wake_.notify_all();
  idle_.wait(lock, [&] { return !busy_ && ((!waiting_ && !abandoned_) || !failure_.empty()); });
  --waiters_;
  wake_.notify_all();  // retries in the background what has failed
  return failure_;
}

std::string RemoteCopies::age_of_newest() const {
  if (!newest_) return "there is none yet";
  const std::chrono::duration<double> age = std::chrono::system_clock::now() - newest_->written;
  return concat("the newest there is of step ", newest_->step, " and ", telemetry::format_duration(std::max(0.0, age.count())),
                " old");
}

void RemoteCopies::attempt(const std::optional<AbandonedSteps>& abandoned, const std::optional<Checkpoint>& sent) {
  const auto go_on = [&] {
    if (stop_) throw Error(ExitCode::internal, "the run ends");
    if (options_.alive) options_.alive();
  };
  go_on();
  if (abandoned) abandon_checkpoints(store_, options_.url, abandoned->after);
  if (sent) send_checkpoint(store_, options_.url, sent->step, sent->folder, go_on, options_.beside);
}

void RemoteCopies::forget_abandoned() {
  if (!std::exchange(abandoned_, std::nullopt) || !options_.remember) return;
  try {
    options_.remember(std::nullopt);
  } catch (const Error& error) {  // the next process marks them again
    log_warning(error.what());
  }
}

void RemoteCopies::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto has_work = [&] { return stop_ || ((waiting_ || abandoned_) && (failure_.empty() || waiters_ == 0)); };
    wake_.wait(lock, has_work);
    if (stop_) return;
    busy_ = true;
    sending_ = std::exchange(waiting_, std::nullopt);
    const std::optional<AbandonedSteps> abandoned = abandoned_;
    const std::int64_t abandons = abandons_;
    lock.unlock();
    std::string failure;
    try {
      attempt(abandoned, sending_);
      if (sending_ && options_.copied) options_.copied(sending_->step);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    busy_ = false;
    failure_ = failure;
    if (failure.empty()) {
      if (abandons_ == abandons) forget_abandoned();  // else what was just sent may have to be marked, too
      if (sending_)
        newest_ = RemoteCheckpoint{.step = sending_->step, .name = "", .written = std::chrono::system_clock::now(), .files = {}};
    } else if (!stop_) {
      const std::string what = sending_
                                   ? concat("the checkpoint of step ", sending_->step, " is not copied to ", options_.url.text())
                                   : concat("checkpoints in ", options_.url.text(), " are not marked as abandoned");
      log_warning(concat(what, ": ", failure, "; ", age_of_newest(),
                         waiters_ > 0 ? "" : concat("; trying again in ", options_.again_s, " s")));
      // The run had gone back before it saved what was sent, unless it has gone back again since.
      const bool counts = sending_ && (abandons_ == abandons || sending_->step <= abandoned_->after);
      if (!waiting_ && counts) waiting_ = sending_;
    }
    sending_.reset();
    idle_.notify_all();
    if (!failure.empty() && waiters_ == 0) {
      wake_.wait_for(lock, std::chrono::duration<double>(options_.again_s), [&] { return stop_ || waiters_ > 0; });
    }
  }
}

}  // namespace octet::checkpoint
