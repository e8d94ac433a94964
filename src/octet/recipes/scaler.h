// Where a delayed scale comes from: the state of all tensors of a model, in device memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/comm/group.h"
#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::recipes {

// Which ranks have the state of an operand.
enum class HeldBy : std::uint8_t {
  all,        // every rank, and one scale
  some,       // this rank and others, but not all: an expert's
  elsewhere,  // not this rank, which knows the name alone
};

class ScaleState {
 public:
  explicit ScaleState(const Recipe& recipe) : recipe_(recipe) {}

  // Registers operand `role` of linear `layer`; returns its index. Before materialise. All ranks register the same, in the same
  // order.
  int add(const std::string& layer, Role role, HeldBy held = HeldBy::all);
  // Allocates; scales are 1 and histories 0. Nothing to allocate for a recipe without history.
  void materialise(Queue& queue);

  // Empty of what this rank does not hold.
  ScaleSlot slot(int index) const;
  // This step's amaxes become the largest of all ranks of all groups, which must cast alike: of what all ranks hold over
  // `groups`, of what some hold over as many `groups_of_some`, of which those that differ are exchanged one after the other.
  // Before update().
  void reduce(Queue& queue, Arena& scratch, const std::vector<comm::Group*>& groups,
              const std::vector<comm::Group*>& groups_of_some);
  void reduce(Queue& queue, Arena& scratch, const std::vector<comm::Group*>& groups) { reduce(queue, scratch, groups, groups); }
  // After an optimizer step whose found_inf is known: docs/numerics.md, "Delayed scaling".
  void update(Queue& queue, const float* found_inf);

  // fp8.<layer>.<x|w|g>.scale [1] and .amax_history [len], F32, as a checkpoint or a dump holds them.
  struct Named {
    std::string name;
    Tensor tensor;  // of what is held elsewhere the shape alone
    HeldBy held = HeldBy::all;
  };
  // Of all operands, in the order in which they were registered.
  std::vector<Named> tensors() const;

 private:
  struct Operand {
    std::string layer;
    Role role;
    HeldBy held;
    std::int64_t row = -1;  // of the state; -1: held elsewhere
  };
  Recipe recipe_;
  std::vector<Operand> operands_;
  std::int64_t rows_of_all_ = 0;  // which come first
  Buffer scale_buffer_, history_buffer_, format_buffer_, weight_buffer_;
  Tensor scale_, history_, format_, is_weight_;
};

}  // namespace octet::recipes
