#include "octet/checkpoint/snapshots.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>

#include "octet/base/checksum.h"
#include "octet/base/clock.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/start_thread.h"
#include "octet/base/system_call.h"
#include "octet/telemetry/rank_page.h"

namespace octet::checkpoint {
namespace {

constexpr const char* kFolder = "/proc/self/fd";  // where a descriptor has a path

// What a slot holds for this rank on a timeline; nothing if it is empty, or was being written when its rank was killed.
std::optional<Manifest> manifest_in(const SnapshotSlot& slot, const SnapshotsOptions& options, const std::string& timeline) {
  try {
    const std::string path = concat(kFolder, "/", slot.manifest);
    Manifest manifest = parse_manifest_part(read_file(path), path);
    const nlohmann::json& meta = manifest.meta;
    const bool fits = meta.at("timeline") == timeline && meta.at("rank") == options.rank && meta.at("ranks") == options.size;
    return fits ? std::optional(std::move(manifest)) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void empty(const SnapshotSlot& slot) {
  if (::ftruncate(slot.manifest, 0) != 0) fail_errno(ExitCode::internal, "cannot empty a snapshot");
}

// Lets others see the step of this rank's newest snapshot, which holds the present state if the run has just gone on from it.
void show(std::int64_t step) {
  telemetry::own_page().snapshot_step = step;
  telemetry::own_page().snapshot_ns = telemetry::monotonic_ns();
}

std::string line_of(const std::vector<std::int64_t>& steps) {
  std::string line;
  for (const std::int64_t step : steps) line += concat(step, " ");
  return line;
}

std::vector<std::int64_t> steps_in(const std::string& line) {
  std::istringstream text(line);
  return {std::istream_iterator<std::int64_t>(text), {}};
}

}  // namespace

Snapshots::Snapshots(SnapshotsOptions options) : options_(std::move(options)) {
  for (const SnapshotSlot& slot : options_.slots.own) rooms_.push_back({.slot = slot});
}

Snapshots::~Snapshots() {
  wait();
  for (const Room& room : rooms_) {
    if (room.memory) ::munmap(room.memory, room.bytes);
  }
}

std::optional<Reader> Snapshots::newest(const Ranks& ranks, const std::string& timeline,
                                        const std::function<bool(std::int64_t step, const nlohmann::json& meta)>& usable,
                                        const std::function<void(std::string_view)>& on_warning) const {
  std::map<std::int64_t, Manifest> mine;
  for (const SnapshotSlot& slot : options_.slots.host) {
    if (std::optional<Manifest> found = manifest_in(slot, options_, timeline)) mine.emplace(found->step, std::move(*found));
  }
  std::vector<std::int64_t> steps;
  for (const auto& [step, manifest] : mine) steps.insert(steps.begin(), step);
  for (const std::string& line : gather(ranks, "steps", line_of(steps))) {
    const std::vector<std::int64_t> theirs = steps_in(line);
    std::erase_if(steps, [&](std::int64_t step) { return std::find(theirs.begin(), theirs.end(), step) == theirs.end(); });
  }
  if (ranks.rank == 0) std::erase_if(steps, [&](std::int64_t step) { return !usable(step, mine.at(step).meta.at("run")); });
  for (const std::int64_t step : steps_in(broadcast(ranks, "common", line_of(steps)))) {
    std::optional<Reader> reader;
    std::string damage;
    const auto found = mine.find(step);
    try {
      demand(found != mine.end(), ExitCode::peer, "rank 0 goes on from step ", step, ", of which there is no snapshot");
      Manifest manifest = found->second;
      manifest.meta = json_of(broadcast(ranks, concat("meta/", step), manifest.meta.at("run").dump()));
      reader = Reader::of_part(kFolder, std::move(manifest));
    } catch (const Error& error) {
      if (error.code() != ExitCode::data) throw;
      damage = error.what();
    }
    const std::string all = common_failure(ranks, concat("damage/", step), damage);
    if (all.empty()) return reader;
    on_warning(concat("the snapshot of step ", step, " in memory is damaged: ", all));
  }
  return std::nullopt;
}

void Snapshots::go_on(const std::string& timeline, std::int64_t step) {
  wait();
  timeline_ = timeline;
  std::int64_t newest = 0;
  for (Room& room : rooms_) {
    const std::optional<Manifest> found = manifest_in(room.slot, options_, timeline);
    room.step = found && found->step <= step ? found->step : -1;
    if (room.step < 0) empty(room.slot);
    newest = std::max(newest, room.step);
  }
  show(newest);
}

void Snapshots::save(std::int64_t step, Stream& stream, std::span<const Entry> entries, const nlohmann::json& meta) {
  wait();
  Room& room = *std::min_element(rooms_.begin(), rooms_.end(), [](const Room& a, const Room& b) { return a.step < b.step; });
  room.step = -1;
  empty(room.slot);
  Part part = describe_part(std::to_string(room.slot.data), step, entries);
  part.manifest.meta = {{"timeline", timeline_}, {"rank", options_.rank}, {"ranks", options_.size}, {"run", meta}};

  std::vector<Piece> early;
  std::size_t bytes = 0;
  for (const Piece& piece : part.pieces) {
    if (piece.steady) continue;
    early.push_back(piece);
    early.back().offset = std::exchange(bytes, bytes + piece.bytes);
  }
  early_.resize(bytes);
  copy_pieces(stream, early, false, early_.data());
  if (!copies_) copies_ = stream.device().make_stream();
  copies_->wait(*stream.record());

  std::promise<void> copied;
  copied_ = copied.get_future();
  pending_ = start_task("the copier of snapshots", [this, step, &room, part = std::move(part), early = std::move(early),
                                                    copied = std::move(copied), start = Clock::now()]() mutable {
    std::string failure;
    try {
      fill(room, part, early, copied);
      room.step = step;
      show(step);
      took_s_ = seconds_since(start);
    } catch (const std::exception& error) {
      failure = concat("the snapshot of step ", step, " was not taken: ", error.what());
    }
    return failure;
  });
}

void Snapshots::fill(Room& room, Part& part, const std::vector<Piece>& early, std::promise<void>& copied) {
  const std::string header = safetensors_header(part.declarations);
  std::byte* data = nullptr;
  try {
    make_room(room, header.size() + part.bytes());
    std::memcpy(room.memory, header.data(), header.size());
    data = room.memory + header.size();
    copy_pieces(*copies_, part.pieces, true, data);
  } catch (...) {
    copied.set_value();
    throw;
  }
  copied.set_value();
  auto next = early.begin();
  RunningChecksum sum;
  for (const Piece& piece : part.pieces) {
    if (!piece.steady) std::memcpy(data + piece.offset, early_.data() + (next++)->offset, piece.bytes);
    sum.reset();
    sum.update(std::span<const std::byte>(data + piece.offset, piece.bytes));
    part.stored(piece).sum = sum.value();
  }
  if (options_.may_publish) options_.may_publish();
  const std::string text = to_json(part.manifest);
  const ssize_t written = ::pwrite(room.slot.manifest, text.data(), text.size(), 0);
  if (written < 0) fail_errno(ExitCode::internal, "cannot write the list of a snapshot");
  require(static_cast<std::size_t>(written) == text.size(), "a snapshot's list was cut at ", written, " bytes");
}

// Reserves the memory, because a write to a page that the kernel cannot give would kill the process.
void Snapshots::make_room(Room& room, std::size_t bytes) {
  if (room.memory && room.bytes == bytes) return;
  if (room.memory) ::munmap(std::exchange(room.memory, nullptr), room.bytes);
  const auto size = static_cast<off_t>(bytes);
  if (::ftruncate(room.slot.data, size) != 0 || ::fallocate(room.slot.data, 0, 0, size) != 0)
    fail_errno(ExitCode::internal, concat("no memory for a snapshot of ", bytes, " bytes"));
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, room.slot.data, 0);
  if (memory == MAP_FAILED) fail_errno(ExitCode::internal, "cannot map the memory for snapshots");
  room.memory = static_cast<std::byte*>(memory);
  room.bytes = bytes;
}

void Snapshots::wait_for_copy() {
  if (copied_.valid()) copied_.wait();
}

bool Snapshots::busy() const {
  return pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void Snapshots::wait() {
  if (!pending_.valid()) return;
  const std::string failure = pending_.get();
  if (!failure.empty() && std::exchange(trouble_, failure) != failure) log_warning(failure);
}

}  // namespace octet::checkpoint
