// Optimizer states in host memory: moments, and master weights if there are any (Ren et al., ZeRO-Offload, 2021). They are
// divided into pieces. A piece is fetched into one of a few slots in device memory, updated there, and copied back, while other
// pieces travel (schedule.h).
#pragma once

#include <cstddef>
#include <vector>

#include "octet/device/device.h"
#include "octet/parallel/parameter.h"
#include "octet/parallel/schedule.h"

namespace octet::parallel {

class Offload {
 public:
  // Divides the states of `store`, which must be materialised and outlive this object, into pieces. A piece belongs to one unit
  // and takes at most storage().offload_slot bytes. Allocates slots of the size of the largest piece.
  Offload(Device& device, const ParameterStore& store);

  // Writes the units of the pieces and the number of slots to `shape`.
  void describe(StepShape& shape) const;
  // Returns the states of a piece that the optimizer updates. They lie in the piece's slot.
  const std::vector<StatePiece>& piece(int number) const { return pieces_[static_cast<std::size_t>(number)].states; }
  // Returns the bytes of all slots.
  std::size_t slot_bytes() const { return slots_.empty() ? 0 : slots_.size() * slots_.front().bytes(); }
  // Enqueues a task to fetch a piece or to copy it back.
  void run(Stream& stream, const Task& task) const;

 private:
  struct Copy {
    Tensor host, slot;
  };
  struct Piece {
    int unit = 0;
    std::vector<StatePiece> states;
    std::vector<Copy> copies;
  };

  // Makes the pieces. They lie in the memory of the slots if it is allocated. Returns the bytes of the largest piece.
  std::size_t lay_out(const ParameterStore& store);

  std::vector<Buffer> slots_;
  std::vector<Piece> pieces_;
};

}  // namespace octet::parallel
