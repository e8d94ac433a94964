#include "octet/checkpoint/part.h"

#include <algorithm>
#include <map>

#include "octet/base/require.h"

namespace octet::checkpoint {

Part describe_part(const std::string& file, std::int64_t step, std::span<const Entry> entries) {
  Part result;
  result.manifest.step = step;
  for (const Entry& entry : entries) {
    const StoredTensor first = {entry.tensor.dtype, entry.global, {}};
    StoredTensor& tensor = result.manifest.tensors.try_emplace(entry.name, first).first->second;
    require(tensor.dtype == entry.tensor.dtype && tensor.shape == entry.global, "checkpoint: slices of ", entry.name,
            " disagree");
    require(
        entry.tensor.contiguous() && is_within(entry.slice, entry.global) && entry.slice.elements() == entry.tensor.elements(),
        "checkpoint: ", entry.name, " ", entry.tensor.shape, " is not the slice ", entry.slice.text(), " of ", entry.global);
    if (entry.slice.elements() == 0) continue;
    const std::size_t number = tensor.slices.size();
    const std::string stored_name = number == 0 ? entry.name : concat(entry.name, "#", number);
    tensor.slices.push_back({file, stored_name, entry.slice, 0});
    result.pieces.push_back({.tensor = entry.name,
                             .slice = number,
                             .device = entry.tensor.data,
                             .bytes = entry.tensor.bytes(),
                             .steady = entry.steady});
  }

  // Wide dtypes first: all data are aligned.
  std::map<std::string, StoredTensor>& tensors = result.manifest.tensors;
  std::stable_sort(result.pieces.begin(), result.pieces.end(), [&](const Piece& a, const Piece& b) {
    return size_of(tensors[a.tensor].dtype) > size_of(tensors[b.tensor].dtype);
  });
  std::size_t offset = 0;
  for (Piece& piece : result.pieces) {
    piece.offset = offset;
    offset += piece.bytes;
    const StoredSlice& stored = result.stored(piece);
    result.declarations.push_back({stored.name, tensors[piece.tensor].dtype, stored_shape(stored.slice)});
  }
  return result;
}

void copy_pieces(Stream& stream, const std::vector<Piece>& pieces, bool steady, std::byte* host) {
  for (const Piece& piece : pieces) {
    if (piece.steady == steady) stream.copy_to_host(host + piece.offset, piece.device, piece.bytes);
  }
  stream.synchronize();
}

}  // namespace octet::checkpoint
