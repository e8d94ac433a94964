#include "octet/checkpoint/snapshots.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "octet/base/checksum.h"
#include "octet/base/clock.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/start_thread.h"
#include "octet/telemetry/rank_page.h"

namespace octet::checkpoint {
namespace {

// Shows others the step of this rank's newest snapshot, which holds the present state if the run has just continued from it.
void show(std::int64_t step) {
  telemetry::own_page().snapshot_step = step;
  telemetry::own_page().snapshot_ns = telemetry::monotonic_ns();
}

std::string line_of(const std::vector<SnapshotId>& ids) {
  std::string line;
  for (const SnapshotId& id : ids) line += concat(id.attempt, " ", id.step, " ");
  return line;
}

// Cuts the pieces, which lie in locked memory from its byte `begin` on, where stretches of that memory meet.
std::vector<Piece> cut_into_stretches(const std::vector<Piece>& pieces, std::size_t begin) {
  std::vector<Piece> cut;
  for (Piece piece : pieces) {
    const std::size_t end = piece.offset + piece.bytes;
    while (piece.offset < end) {
      piece.bytes = std::min(end - piece.offset, PageLock::kStretch - (begin + piece.offset) % PageLock::kStretch);
      cut.push_back(piece);
      piece.offset += piece.bytes;
      piece.device = static_cast<const std::byte*>(piece.device) + piece.bytes;
    }
  }
  return cut;
}

std::vector<SnapshotId> ids_in(const std::string& line) {
  std::istringstream text(line);
  std::vector<SnapshotId> ids;
  for (SnapshotId id; text >> id.attempt >> id.step;) ids.push_back(id);
  return ids;
}

}  // namespace

Snapshots::Snapshots(SnapshotsOptions options) : options_(std::move(options)) {
  for (const SnapshotSlot& slot : options_.slots.own) slots_.push_back({.writer = SlotWriter(slot)});
}

Snapshots::~Snapshots() { wait(); }

Snapshots::Slot& Snapshots::next_slot() {
  std::vector<std::int64_t> steps;
  for (const Slot& slot : slots_) steps.push_back(slot.step);
  return slots_[slot_to_fill(steps, common_)];
}

std::optional<Reader> Snapshots::newest(const Ranks& ranks, const std::string& timeline,
                                        const std::function<bool(std::int64_t step, const nlohmann::json& meta)>& usable,
                                        const std::function<void(std::string_view)>& on_warning) {
  std::map<SnapshotId, Manifest> mine;
  for (const SnapshotSlot& slot : options_.slots.host) {
    // All ranks of the host look here. The one that has probably written the list says that it is damaged.
    const bool own = std::any_of(options_.slots.own.begin(), options_.slots.own.end(),
                                 [&](const SnapshotSlot& of_rank) { return of_rank.manifest == slot.manifest; });
    std::optional<Manifest> found = manifest_in(slot, own ? std::function<void(std::string_view)>(log_warning) : nullptr);
    if (found && is_of(*found, timeline, options_.rank, options_.size)) mine.emplace(id_of(*found), std::move(*found));
  }
  std::map<SnapshotId, Replica> elsewhere;
  if (options_.replicas) {
    for (Replica& replica : options_.replicas->find(timeline, !mine.empty(), on_warning)) {
      const SnapshotId id = id_of(replica.manifest);
      elsewhere.emplace(id, std::move(replica));
    }
  }
  std::map<SnapshotId, Manifest> on_disk;
  if (options_.local) {
    std::string newer;
    try {
      for (Manifest& manifest : options_.local->find(timeline, log_warning)) {
        const SnapshotId id = id_of(manifest);
        on_disk.emplace(id, std::move(manifest));
      }
    } catch (const NewerVersion& error) {
      newer = error.what();
    }
    newer = common_failure(ranks, "versions of local copies", newer);
    demand(newer.empty(), ExitCode::data, newer, ", or move this copy away");
  }
  const auto manifest_of = [&](const SnapshotId& id) -> const Manifest& {
    if (const auto found = mine.find(id); found != mine.end()) return found->second;
    if (const auto found = elsewhere.find(id); found != elsewhere.end()) return found->second.manifest;
    return on_disk.at(id);
  };
  std::set<SnapshotId, std::greater<>> all_ids;
  for (const auto& [id, manifest] : mine) all_ids.insert(id);
  for (const auto& [id, replica] : elsewhere) all_ids.insert(id);
  for (const auto& [id, manifest] : on_disk) all_ids.insert(id);
  std::vector<SnapshotId> ids(all_ids.begin(), all_ids.end());
  for (const std::string& line : gather(ranks, "snapshots", line_of(ids))) {
    const std::vector<SnapshotId> theirs = ids_in(line);
    std::erase_if(ids, [&](const SnapshotId& id) { return std::find(theirs.begin(), theirs.end(), id) == theirs.end(); });
  }
  if (ranks.rank == 0)
    std::erase_if(ids, [&](const SnapshotId& id) { return !usable(id.step, manifest_of(id).meta.at("run")); });
  for (Slot& slot : slots_) {
    const std::optional<Manifest> found = manifest_in(slot.writer.slot());
    slot.step = found && is_of(*found, timeline, options_.rank, options_.size) ? found->step : -1;
  }
  for (const SnapshotId& id : ids_in(broadcast(ranks, "common", line_of(ids)))) {
    demand(all_ids.contains(id), ExitCode::peer, "rank 0 goes on from step ", id.step, " of attempt ", id.attempt,
           ", of which there is no snapshot");
    const std::string name = concat(id.attempt, "/", id.step);
    const nlohmann::json meta = json_of(broadcast(ranks, concat("meta/", name), manifest_of(id).meta.at("run").dump()));
    std::optional<Reader> reader;
    const auto damage_of = [&](const std::filesystem::path& folder, const std::function<Manifest()>& find) -> std::string {
      try {
        Manifest manifest = find();
        manifest.meta = meta;
        reader = Reader::of_part(folder, std::move(manifest));
        return "";
      } catch (const Error& error) {
        if (error.code() != ExitCode::data) throw;
        return error.what();
      }
    };
    std::string damage;
    if (mine.contains(id)) damage = damage_of(kDescriptors, [&] { return mine.at(id); });
    if (const auto replica = elsewhere.find(id); !reader && replica != elsewhere.end()) {
      if (!damage.empty()) log_warning(concat(damage, "; takes the replica at ", replica->second.place));
      damage = damage_of(kDescriptors, [&] { return fetch(replica->second); });
    }
    if (const auto copy = on_disk.find(id); !reader && copy != on_disk.end()) {
      if (!damage.empty()) log_warning(concat(damage, "; takes the copy in ", options_.local->folder().string()));
      damage = damage_of(options_.local->folder(), [&] { return copy->second; });
    }
    const std::string all = common_failure(ranks, concat("damage/", name), damage);
    if (all.empty()) return reader;
    const char* const where = mine.contains(id) || elsewhere.contains(id) ? " in memory" : " on the local disk";
    on_warning(concat("the snapshot of step ", id.step, where, " cannot be used: ", all));
  }
  return std::nullopt;
}

// Also replaces a damaged snapshot of the same step.
Manifest Snapshots::fetch(const Replica& replica) {
  const std::int64_t step = replica.manifest.step;
  for (Slot& slot : slots_) {
    if (slot.step == step) slot.step = -1;
  }
  Slot& slot = next_slot();
  slot.step = -1;
  options_.replicas->fetch(replica, slot.writer);
  slot.step = step;
  return manifest_in(slot.writer.slot()).value();
}

void Snapshots::go_on(const std::string& timeline, std::int64_t step) {
  wait();
  timeline_ = timeline;
  last_ = common_ = -1;
  common_stays_ = failed_ = false;
  for (Slot& slot : slots_) {
    const std::optional<Manifest> found = manifest_in(slot.writer.slot());
    const bool stays = found && is_of(*found, timeline, options_.rank, options_.size) && found->step <= step;
    slot.step = stays ? found->step : -1;
    if (!stays) slot.writer.empty();
    last_ = std::max(last_, slot.step);
  }
  if (options_.local) {
    try {
      options_.local->go_on(timeline, step);
    } catch (const Error& error) {
      log_warning(error.what());
    }
  }
  show(std::max<std::int64_t>(last_, 0));
  if (step >= 0 || !options_.replicas || !options_.replicas->keeps()) return;
  try {
    options_.replicas->forget();
  } catch (const Error& error) {
    log_warning(error.what());
  }
}

void Snapshots::prepare(Device& device, std::span<const Entry> entries) {
  wait();
  const Part part = describe_part("", 0, entries);
  const std::size_t bytes = safetensors_header(part.declarations).size() + part.bytes();
  pending_ = start_or_run("the maker of room for snapshots", [this, &device, bytes]() -> Failure {
    try {
      for (Slot& slot : slots_) {
        slot.writer.make_room(bytes);
        slot.writer.lock(device);
      }
    } catch (const std::exception& error) {
      return {"memory for snapshots is not reserved", error.what()};
    }
    return {};
  });
}

void Snapshots::save(std::int64_t step, Stream& stream, std::span<const Entry> entries, const nlohmann::json& meta) {
  wait();
  if (!std::exchange(common_stays_, false)) common_ = last_;
  last_ = step;
  failed_ = true;  // until it is complete
  Slot& slot = next_slot();
  slot.step = -1;
  slot.writer.empty();
  Part part = describe_part(slot.writer.data_file(), step, entries);
  part.manifest.meta = snapshot_meta(timeline_, options_.attempt, options_.rank, options_.size, meta);

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
  auto copy = [this, step, &slot, part = std::move(part), early = std::move(early), copied = std::move(copied),
               start = Clock::now()]() mutable -> Failure {
    std::span<const std::byte> data;
    try {
      data = fill(slot, part, early, copied);
    } catch (const std::exception& error) {
      return {concat("the snapshot of step ", step, " was not taken"), error.what()};
    }
    slot.step = step;
    show(step);
    return copy_elsewhere(data, part.manifest, start);
  };
  pending_ = start_or_run("the copier of snapshots", std::move(copy));
}

Snapshots::Failure Snapshots::copy_elsewhere(std::span<const std::byte> data, const Manifest& manifest, Clock::time_point start) {
  Failure failure;
  const auto copy = [&](const char* lacks, const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      if (failure.reason.empty()) {
        failure = {concat("the snapshot of step ", manifest.step, " ", lacks), error.what()};
      } else {
        failure.reason += concat("; it ", lacks, " either: ", error.what());
      }
    }
  };
  if (options_.replicas && options_.replicas->keeps()) {
    copy("has no replica", [&] { options_.replicas->keep(data, manifest, common_); });
  }
  took_s_ = seconds_since(start);
  if (options_.local) {
    copy("has no copy in checkpoint.local_dir", [&] { options_.local->keep(data, manifest, common_); });
  }
  failed_ = !failure.reason.empty();
  return failure;
}

std::span<const std::byte> Snapshots::fill(Slot& slot, Part& part, const std::vector<Piece>& early, std::promise<void>& copied) {
  const std::string header = safetensors_header(part.declarations);
  const std::size_t bytes = header.size() + part.bytes();
  std::byte *memory = nullptr, *data = nullptr;
  try {
    memory = slot.writer.make_room(bytes);
    std::memcpy(memory, header.data(), header.size());
    data = memory + header.size();
    copy_pieces(*copies_, cut_into_stretches(part.pieces, header.size()), true, data);
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
  slot.writer.publish(part.manifest);
  return {memory, bytes};
}

void Snapshots::wait_for_copy() {
  if (copied_.valid()) copied_.wait();
}

bool Snapshots::busy() const {
  return pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void Snapshots::wait() {
  if (!pending_.valid()) return;
  const Failure failure = pending_.get();
  const bool is_new = std::exchange(trouble_, failure.reason) != failure.reason;
  if (is_new && !failure.reason.empty()) log_warning(concat(failure.what, ": ", failure.reason));
}

}  // namespace octet::checkpoint
