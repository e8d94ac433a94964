// Writes checkpoints: named slices of global tensors and a JSON object, complete or absent whatever happens to the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/slice.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::checkpoint {

// A piece of a global tensor in device memory. Several entries may be slices of one tensor; together they must cover it.
struct Entry {
  std::string name;
  Tensor tensor;  // contiguous; slice.elements() elements
  Shape global;
  Slice slice;

  // All of a tensor, under its own shape.
  static Entry whole(std::string name, const Tensor& tensor) {
    return {std::move(name), tensor, tensor.shape, Slice::whole(tensor.shape)};
  }
};

enum class WriteMode : std::uint8_t {
  behind,  // save copies to host memory, allocated once and reused, and a thread writes it
  now,     // save writes, and returns when the checkpoint is there
};

struct WriterOptions {
  std::filesystem::path root;  // .../checkpoints, made if need be
  int keep_latest_k = 3;       // 0: all
  WriteMode mode = WriteMode::behind;
};

// A checkpoint is written as step-00001000.tmp-PID, synced, its manifest last, and renamed last; an older one of the same step
// is exchanged for it. After that the checkpoints beyond the keep_latest_k highest steps go, never the one just written; whatever
// is deleted is renamed away first. One writer per root.
class Writer {
 public:
  // Removes what killed runs left half-written in the root. Throws Error{internal} "PATH: reason".
  explicit Writer(WriterOptions options);
  // Waits; a failure that nobody asked for becomes a warning.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Waits for the save before and throws its failure, if any, instead of saving: call again to save. When it returns the
  // entries may change. Failures to write (a full disk) throw Error{internal}, one line: here with WriteMode::now, otherwise
  // from the next save or wait; nothing of a failed checkpoint stays behind, the older ones stay, and training may go on.
  // `meta` must be an object. On the meta device nothing happens.
  void save(std::int64_t step, Queue& queue, std::span<const Entry> entries, const nlohmann::json& meta);
  // Returns when the last save is on the disk, or throws its failure, once.
  void wait();

  // Deletes checkpoints with a step above last_step: training went back and another history begins.
  void rewind(std::int64_t last_step);

 private:
  WriterOptions options_;
  std::unique_ptr<std::byte[]> snapshot_;
  std::size_t snapshot_bytes_ = 0;
  std::future<void> pending_;
};

}  // namespace octet::checkpoint
