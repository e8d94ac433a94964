// Copies the operands and products of chosen linears to the host.
#pragma once

#include <map>
#include <string>

#include "octet/nn/scope.h"
#include "octet/tensor/host_tensor.h"

namespace octet::train {

// Collects, for each linear whose name matches the glob `pattern`, the tensors
//   <step>.<micro>.<linear>.{x,w,g}.{values,codes,scale_inv,codes_t,scale_inv_t} and <step>.<micro>.<linear>.{y,gx,gw}.
// `values` is the tensor that was quantised: BF16 values, or the FP32 master weight.
class DumpWatch final : public nn::Watch {
 public:
  explicit DumpWatch(std::string pattern) : pattern_(std::move(pattern)) {}

  void operand(const nn::Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) override;
  void product(const nn::Scope& scope, std::string_view linear, std::string_view which, const kernels::Gemm& gemm) override;
  void attention(const nn::Scope&, std::string_view, const Tensor&) override {}

  // Sets the step (from 1) and the micro-batch (from 0) of the tensors that follow.
  void begin(std::int64_t step, std::int64_t micro) { prefix_ = std::to_string(step) + "." + std::to_string(micro) + "."; }
  std::map<std::string, HostTensor>& tensors() { return tensors_; }

 private:
  void add(const std::string& name, HostTensor tensor);

  std::string pattern_, prefix_;
  std::map<std::string, HostTensor> tensors_;
};

}  // namespace octet::train
