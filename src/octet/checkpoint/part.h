// The slices that one rank adds to a checkpoint, in the order of the rank's safetensors file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::checkpoint {

// A piece of a global tensor in device memory. Several entries may be slices of one tensor. Together, the entries of all ranks
// must cover the tensor, each element once.
struct Entry {
  std::string name;
  Tensor tensor;  // contiguous; slice.elements() elements
  Shape global;
  Slice slice;
  // Whether the tensor keeps its values until the optimizer changes it. Until then it may be copied in the background.
  bool steady = false;

  // Returns an entry for a whole tensor, with its own shape.
  static Entry whole(std::string name, const Tensor& tensor) {
    return {.name = std::move(name), .tensor = tensor, .global = tensor.shape, .slice = Slice::whole(tensor.shape)};
  }
};

// A slice and its place in the file.
struct Piece {
  std::string tensor;
  std::size_t slice = 0;  // of the manifest's tensor
  const void* device = nullptr;
  std::size_t bytes = 0;
  bool steady = false;
  std::size_t offset = 0;  // in the data of the file
};

struct Part {
  Manifest manifest;          // without sums
  std::vector<Piece> pieces;  // in the order of the file
  std::vector<TensorDeclaration> declarations;

  std::size_t bytes() const { return pieces.empty() ? 0 : pieces.back().offset + pieces.back().bytes; }
  StoredSlice& stored(const Piece& piece) { return manifest.tensors[piece.tensor].slices[piece.slice]; }
};

// Describes `entries` as slices of the file `file`. Requires that slices of one tensor agree about its dtype and shape.
Part describe_part(const std::string& file, std::int64_t step, std::span<const Entry> entries);

// Copies the pieces that are steady, or those that are not, to their offsets in `host`. Waits for the copies.
void copy_pieces(Stream& stream, const std::vector<Piece>& pieces, bool steady, std::byte* host);

}  // namespace octet::checkpoint
