// Where a delayed scale comes from: the state of all tensors of a model, in device memory.
#pragma once

#include <string>
#include <vector>

#include "octet/comm/group.h"
#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::recipes {

class ScaleState {
 public:
  explicit ScaleState(const Recipe& recipe) : recipe_(recipe) {}

  // Registers operand `role` of linear `layer`; returns its index. Before materialise.
  int add(const std::string& layer, Role role);
  // Allocates; scales are 1 and histories 0. Nothing to allocate for a recipe without history.
  void materialise(Queue& queue);

  ScaleSlot slot(int index) const;
  // This step's amaxes become the largest of all ranks of all groups, which must cast alike. Before update().
  void reduce(Queue& queue, Arena& scratch, const std::vector<comm::Group*>& groups);
  // After an optimizer step whose found_inf is known: docs/numerics.md, "Delayed scaling".
  void update(Queue& queue, const float* found_inf);

  // fp8.<layer>.<x|w|g>.scale [1] and .amax_history [len], F32, as a checkpoint or a dump holds them.
  struct Named {
    std::string name;
    Tensor tensor;
  };
  std::vector<Named> tensors() const;

 private:
  struct Operand {
    std::string layer;
    Role role;
  };
  Recipe recipe_;
  std::vector<Operand> operands_;
  Buffer scale_buffer_, history_buffer_, format_buffer_, weight_buffer_;
  Tensor scale_, history_, format_, is_weight_;
};

}  // namespace octet::recipes
