// The state of delayed scaling: scales and amax histories of all quantised operands of a model, in device memory.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/comm/group.h"
#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::recipes {

// Which ranks hold the state of an operand.
enum class HeldBy : std::uint8_t {
  all,        // every rank holds it, and all have the same scale
  some,       // this rank holds it, but not every rank does; for example, a weight of an expert
  elsewhere,  // this rank does not hold it and knows only its name
};

class ScaleState {
 public:
  explicit ScaleState(const Recipe& recipe) : recipe_(recipe) {}

  // Registers operand `role` of linear layer `layer` and returns its index. Call it before materialise(). All ranks must register
  // the same operands in the same order.
  int add(const std::string& layer, Role role, HeldBy held = HeldBy::all);
  // Allocates the state of the registered operands, as new. Allocates nothing if this rank holds no
  // operand.
  void materialise(Stream& stream);
  // Makes the state new: scales are 1 and histories 0. Waits.
  void reset(Stream& stream);

  // The scale and the history of an operand; an empty slot if this rank does not hold it.
  ScaleSlot slot(int index) const;
  // All-reduces this step's amaxes (column 0 of the histories) with max, so that all ranks compute the same scales. Operands of
  // HeldBy::all are reduced over the first group of each pair, operands of HeldBy::some over the second one, if there is one. If
  // the two are the same group, a single all-reduce serves both. Call it before update().
  void reduce(Stream& stream, Arena& scratch, const std::vector<std::pair<comm::Group*, comm::Group*>>& groups);
  // Computes the new scales from the histories and moves the histories by a step. Does nothing if *found_inf is set. Call it when
  // the step's found_inf is known. Formula: docs/numerics.md, "Delayed scaling".
  void update(Stream& stream, const float* found_inf);

  // fp8.<layer>.<x|w|g>.scale [1] or fp8.<layer>.<x|w|g>.amax_history [amax_history_len], both F32, as checkpoints and dumps
  // store them.
  struct Named {
    std::string name;
    Tensor tensor;  // data is nullptr if HeldBy::elsewhere
    HeldBy held = HeldBy::all;
  };
  // The state of all operands, in the order in which they were registered.
  std::vector<Named> tensors() const;

 private:
  struct Operand {
    std::string layer;
    Role role;
    HeldBy held;
    std::int64_t row = -1;  // row of the operand in the state tensors; -1: held elsewhere
  };
  Recipe recipe_;
  std::vector<Operand> operands_;
  std::int64_t rows_of_all_ = 0;  // number of rows of HeldBy::all, which come before the rows of HeldBy::some
  Buffer scale_buffer_, history_buffer_, format_buffer_, weight_buffer_;
  Tensor scale_, history_, format_, is_weight_;
};

}  // namespace octet::recipes
