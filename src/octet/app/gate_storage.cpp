#include <unistd.h>

#include <cerrno>

#include "octet/app/gate.h"
#include "octet/app/gpu_facts.h"
#include "octet/base/clock.h"
#include "octet/base/file.h"
#include "octet/base/process_identity.h"
#include "octet/base/system_call.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

constexpr std::size_t kTrialBytes = std::size_t{1} << 20;
// Room for logs and metrics. `octet train`, which knows the size of a checkpoint, checks whether one fits.
constexpr std::int64_t kLeastRoom = std::int64_t{64} << 20;

// Removes the file, also after a failure.
struct Removed {
  std::filesystem::path path;
  ~Removed() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
};

}  // namespace

StorageState try_storage(const std::filesystem::path& folder) {
  StorageState state{.folder = folder, .space = space_of(folder)};
  const ProcessIdentity mine = ProcessIdentity::mine();
  // Several hosts may share the folder, and their process ids may be the same.
  const Removed file{folder / concat("gate-", mine.host, "-", mine.pid, "-", mine.start_ticks, ".tmp")};
  std::string bytes(kTrialBytes, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 24);
  const Clock::time_point start = Clock::now();
  try {
    FileWriter writer(file.path);
    writer.write(bytes);
    writer.finish();
    if (read_file(file.path) == bytes)
      state.write_s = seconds_since(start);
    else
      state.trouble = file.path.string() + ": what is read is not what was written";
  } catch (const SystemError& error) {
    state.trouble = error.what();
    state.may_pass = error.may_pass();
    state.no_room = error.number() == ENOSPC || error.number() == EDQUOT;
  } catch (const Error& error) {
    state.trouble = error.what();
  }
  return state;
}

std::vector<Fact> storage_facts(const StorageState& storage, GateKind kind) {
  const Verdict full = kind == GateKind::full ? Verdict::bad : Verdict::warn;
  const std::string folder = storage.folder.string();
  std::vector<Fact> facts = {{.name = "storage.folder", .value = folder}};
  Fact room{.name = "storage.free_bytes", .label = "storage"};
  room.value = storage.space ? Json(storage.space->free_bytes) : Json();
  room.text = folder + ": " +
              (storage.space ? telemetry::format_bytes(static_cast<std::uint64_t>(storage.space->free_bytes)) : "?") + " free";
  // Some network file systems report 0 of 0 bytes.
  if (storage.space && storage.space->total_bytes > 0 && storage.space->free_bytes < kLeastRoom)
    judge(room, full,
          room.text +
              ", and a run needs 64 MiB for its logs alone. Delete what is no longer needed there, or set run.output_dir "
              "to a folder with more room.");
  facts.push_back(std::move(room));
  facts.push_back({.name = "storage.write_seconds",
                   .label = "written and read",
                   .value = json_or_null(storage.write_s),
                   .text = storage.write_s ? "1.00 MiB in " + telemetry::format_duration(*storage.write_s) : "failed"});
  Fact trouble{.name = "storage.trouble", .value = storage.trouble};
  if (!storage.trouble.empty())
    judge(
        trouble, storage.no_room ? full : Verdict::bad,
        storage.trouble + (storage.may_pass ? ". This may pass; start again when the storage answers."
                                            : ". Look at how the folder is mounted on this host, at its rights and its quota."));
  facts.push_back(std::move(trouble));
  facts.push_back({.name = "storage.may_pass", .value = storage.may_pass});
  return facts;
}

}  // namespace octet::app
