#include "octet/models/decoder/fingerprint.h"

#include "octet/base/require.h"
#include "octet/kernels/bit_sums/bit_sums.h"

namespace octet::models {

Fingerprint::Fingerprint(Device& device, const parallel::StepShape& model, const parallel::ParameterStore& store, DType dtype,
                         const Shape& shape, Covers covers) {
  for (int block = 0; block < model.blocks; ++block) names_.push_back(concat("the output of layer ", block));
  copy_memory_ = device.allocate(bytes_of(dtype, shape), MemoryCategory::workspace);
  copy_ = view(copy_memory_, dtype, shape);
  copies_ = {device, {copy_}};
  units_.resize(static_cast<std::size_t>(store.unit_count()));
  for (int unit = store.unit_count() - 1; unit >= 0; --unit) {
    Unit& of = units_[static_cast<std::size_t>(unit)];
    of.first = names_.size();
    std::vector<Tensor> tensors;
    for (const parallel::Parameter& p : store.parameters()) {
      if (covers == Covers::outputs || p.unit != unit || !p.grad) continue;
      names_.push_back(concat("the gradient of ", p.spec.name));
      tensors.push_back(p.grad);
    }
    of.gradients = {device, std::move(tensors)};
  }
  sums_ = device.allocate(names_.size() * sizeof(std::uint64_t), MemoryCategory::state);
}

void Fingerprint::begin(Stream& stream) { stream.zero(sums_.data(), sums_.bytes()); }

void Fingerprint::output(Stream& stream, int block, const Tensor& x) {
  stream.copy(copy_.data, x.data, x.bytes());
  kernels::bit_sums(stream, {.x = copies_, .sums = sum(static_cast<std::size_t>(block))});
}

void Fingerprint::gradients(Stream& stream, int unit) {
  const Unit& of = units_[static_cast<std::size_t>(unit)];
  kernels::bit_sums(stream, {.x = of.gradients, .sums = sum(of.first)});
}

std::vector<std::uint64_t> Fingerprint::read(Stream& stream) const {
  std::vector<std::uint64_t> sums(names_.size());
  stream.copy_to_host(sums.data(), sums_.data(), sums.size() * sizeof(std::uint64_t));
  stream.synchronize();
  return sums;
}

}  // namespace octet::models
