#include "octet/checkpoint/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <system_error>
#include <vector>

#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/checksum.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/steps.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkBytes = 4 << 20;  // summed while still in cache, then written
constexpr const char* kSliceFile = "rank-00000.safetensors";

// A slice on its way into the file.
struct Piece {
  std::string tensor;
  std::size_t slice = 0;  // of the manifest's tensor
  const void* device = nullptr;
  std::size_t bytes = 0;
  std::size_t snapshot_offset = 0;
};

struct Checkpoint {
  Manifest manifest;          // sums to be filled in
  std::vector<Piece> pieces;  // in the order of the file
  std::vector<TensorDeclaration> declarations;
};

Checkpoint describe(std::int64_t step, std::span<const Entry> entries, const nlohmann::json& meta) {
  Checkpoint result;
  result.manifest.step = step;
  result.manifest.meta = meta;
  for (const Entry& entry : entries) {
    StoredTensor& tensor = result.manifest.tensors[entry.name];
    if (tensor.slices.empty()) {
      tensor.dtype = entry.tensor.dtype;
      tensor.shape = entry.global;
    }
    require(tensor.dtype == entry.tensor.dtype && tensor.shape == entry.global, "checkpoint: slices of ", entry.name,
            " disagree");
    require(
        entry.tensor.contiguous() && is_within(entry.slice, entry.global) && entry.slice.elements() == entry.tensor.elements(),
        "checkpoint: ", entry.name, " ", entry.tensor.shape, " is not the slice ", entry.slice.text(), " of ", entry.global);
    const std::size_t number = tensor.slices.size();
    const std::string stored_name = number == 0 ? entry.name : concat(entry.name, "#", number);
    tensor.slices.push_back({kSliceFile, stored_name, entry.slice, 0});
    result.pieces.push_back({entry.name, number, entry.tensor.data, entry.tensor.bytes(), 0});
  }
  for (const auto& [name, tensor] : result.manifest.tensors) {
    std::vector<Slice> slices;
    for (const StoredSlice& stored : tensor.slices) slices.push_back(stored.slice);
    require(tile_exactly(tensor.shape, slices), "checkpoint: the slices of ", name, " do not cover ", tensor.shape, " once");
  }

  // Wide dtypes first: all data are aligned.
  std::map<std::string, StoredTensor>& tensors = result.manifest.tensors;
  std::stable_sort(result.pieces.begin(), result.pieces.end(), [&](const Piece& a, const Piece& b) {
    return size_of(tensors[a.tensor].dtype) > size_of(tensors[b.tensor].dtype);
  });
  std::size_t offset = 0;
  for (Piece& piece : result.pieces) {
    piece.snapshot_offset = offset;
    offset += piece.bytes;
    const StoredTensor& tensor = tensors[piece.tensor];
    const StoredSlice& stored = tensor.slices[piece.slice];
    result.declarations.push_back({stored.name, tensor.dtype, stored_shape(stored.slice)});
  }
  return result;
}

// Gives `bytes` bytes of a piece from `offset` on, until the next call.
using Source = std::function<std::span<const std::byte>(const Piece& piece, std::size_t offset, std::size_t bytes)>;

void write_files(const fs::path& directory, Checkpoint& checkpoint, const Source& source) {
  SafetensorsWriter file(directory / kSliceFile, checkpoint.declarations);
  RunningChecksum sum;
  for (const Piece& piece : checkpoint.pieces) {
    sum.reset();
    for (std::size_t offset = 0; offset < piece.bytes; offset += kChunkBytes) {
      const auto bytes = source(piece, offset, std::min(kChunkBytes, piece.bytes - offset));
      sum.update(bytes);
      file.write(bytes);
    }
    checkpoint.manifest.tensors[piece.tensor].slices[piece.slice].sum = sum.value();
  }
  file.finish();
  write_file_atomically(directory / kManifestName, to_json(checkpoint.manifest));
}

// Gives `from` the name `to`; what stood there is gone afterwards.
void replace_directory(const fs::path& from, const fs::path& to) {
  const auto check = [&](int result) {
    demand(result == 0, ExitCode::internal, to.string(), ": cannot rename: ", std::strerror(errno));
  };
  std::error_code ignored;
  if (!fs::exists(to, ignored)) {
    check(::rename(from.c_str(), to.c_str()));
    return;
  }
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(from, ignored);
    return;
  }
  // A file system without exchange: a kill between the renames loses this step, and the one before it is used.
  const fs::path away = fs::path(from).concat(kReplaced);
  check(::rename(to.c_str(), away.c_str()));
  check(::rename(from.c_str(), to.c_str()));
  fs::remove_all(away, ignored);
}

void write_checkpoint(const WriterOptions& options, Checkpoint& checkpoint, const Source& source) {
  const fs::path final_path = options.root / step_name(checkpoint.manifest.step);
  const fs::path temporary = unfinished_name(final_path);
  std::error_code error;
  try {
    fs::remove_all(temporary, error);
    demand(fs::create_directories(temporary, error) && !error, ExitCode::internal, temporary.string(),
           ": cannot create: ", error.message());
    write_files(temporary, checkpoint, source);
    replace_directory(temporary, final_path);
  } catch (const Error& failure) {
    fs::remove_all(temporary, error);
    fail(ExitCode::internal, "the checkpoint of step ", checkpoint.manifest.step, " is not saved: ", failure.what());
  }
  sync_directory(options.root);

  if (options.keep_latest_k <= 0) return;
  const std::vector<StepDirectory> all = find_checkpoints(options.root);
  for (std::size_t i = static_cast<std::size_t>(options.keep_latest_k); i < all.size(); ++i) {
    if (all[i].step != checkpoint.manifest.step) discard_checkpoint(all[i].path);
  }
}

}  // namespace

Writer::Writer(WriterOptions options) : options_(std::move(options)) {
  std::error_code error;
  std::filesystem::create_directories(options_.root, error);
  demand(!error, ExitCode::internal, options_.root.string(), ": cannot create: ", error.message());
  remove_unfinished(options_.root);
}

Writer::~Writer() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

void Writer::save(std::int64_t step, Queue& queue, std::span<const Entry> entries, const nlohmann::json& meta) {
  require(step >= 0 && meta.is_object(), "checkpoint: step ", step, ", meta must be an object");
  wait();
  if (queue.kind() == DeviceKind::meta) return;
  Checkpoint checkpoint = describe(step, entries, meta);

  std::size_t wanted = kChunkBytes;
  if (options_.mode == WriteMode::behind && !checkpoint.pieces.empty()) {
    wanted = checkpoint.pieces.back().snapshot_offset + checkpoint.pieces.back().bytes;
  }
  if (wanted > snapshot_bytes_) {
    snapshot_.reset();
    snapshot_ = std::make_unique_for_overwrite<std::byte[]>(wanted);
    snapshot_bytes_ = wanted;
  }

  if (options_.mode == WriteMode::now) {
    write_checkpoint(options_, checkpoint, [&](const Piece& piece, std::size_t offset, std::size_t bytes) {
      queue.copy_to_host(snapshot_.get(), static_cast<const std::byte*>(piece.device) + offset, bytes);
      queue.synchronize();
      return std::span<const std::byte>(snapshot_.get(), bytes);
    });
    return;
  }
  for (const Piece& piece : checkpoint.pieces)
    queue.copy_to_host(snapshot_.get() + piece.snapshot_offset, piece.device, piece.bytes);
  queue.synchronize();
  pending_ = std::async(std::launch::async, [this, checkpoint = std::move(checkpoint)]() mutable {
    write_checkpoint(options_, checkpoint, [this](const Piece& piece, std::size_t offset, std::size_t bytes) {
      return std::span<const std::byte>(snapshot_.get() + piece.snapshot_offset + offset, bytes);
    });
  });
}

void Writer::wait() {
  if (pending_.valid()) pending_.get();
}

void Writer::rewind(std::int64_t last_step) {
  wait();
  for (const StepDirectory& checkpoint : find_checkpoints(options_.root)) {
    if (checkpoint.step > last_step) discard_checkpoint(checkpoint.path);
  }
  sync_directory(options_.root);
}

}  // namespace octet::checkpoint
