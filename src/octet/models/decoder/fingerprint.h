// Exact sums over the bits of what a micro-batch computes. Two ranks that compute the same micro-batch with the same weights
// must get the same sums. If the sums differ, one of the ranks computes wrongly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/device/device.h"
#include "octet/kernels/tensor_list.h"
#include "octet/parallel/parameter.h"
#include "octet/parallel/schedule.h"

namespace octet::models {

class Fingerprint {
 public:
  // The tensors that are summed: the outputs of blocks, [shape] of this dtype, and the gradients of parameters.
  enum class Covers : std::uint8_t { outputs, gradients_too };

  // Takes memory of MemoryCategory::state for the sums, and of MemoryCategory::workspace for the output of a block: the table
  // of a kernels::TensorList is written before the first step, and outputs have no fixed address. `store` must be materialised.
  Fingerprint(Device& device, const parallel::StepShape& model, const parallel::ParameterStore& store, DType dtype,
              const Shape& shape, Covers covers);

  // Called in stream order. The gradients of a unit are those of the micro-batch alone, before ranks reduce them.
  void begin(Stream& stream);
  void output(Stream& stream, int block, const Tensor& x);
  void gradients(Stream& stream, int unit);

  // Return the sums since begin(), and the name of each, in the order in which a pass computes them: the blocks from first to
  // last, then the gradients from last to first. The sum of a tensor that another pipeline stage computes is 0. Waits.
  std::vector<std::uint64_t> read(Stream& stream) const;
  const std::vector<std::string>& names() const { return names_; }

 private:
  struct Unit {
    kernels::TensorList gradients;
    std::size_t first = 0;  // the number of the first one's sum
  };
  std::uint64_t* sum(std::size_t number) const { return static_cast<std::uint64_t*>(sums_.data()) + number; }

  std::vector<std::string> names_;
  std::vector<Unit> units_;
  Buffer sums_, copy_memory_;
  Tensor copy_;  // of a block's output
  kernels::TensorList copies_;
};

}  // namespace octet::models
