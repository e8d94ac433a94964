#include "octet/recipes/scaler.h"

#include <algorithm>

#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet::recipes {

int ScaleState::add(const std::string& layer, Role role) {
  require(!scale_, "scales are registered before they are materialised");
  operands_.push_back({layer, role});
  return static_cast<int>(operands_.size()) - 1;
}

void ScaleState::materialise(Queue& queue) {
  if (operands_.empty()) return;
  const auto n = static_cast<std::int64_t>(operands_.size());
  Device& device = queue.device();
  const auto make = [&](Buffer& buffer, DType dtype, Shape shape) {
    buffer = device.allocate(bytes_of(dtype, shape), MemoryCategory::state);
    return view(buffer, dtype, shape);
  };
  scale_ = make(scale_buffer_, DType::f32, {n});
  history_ = make(history_buffer_, DType::f32, {n, recipe_.amax_history_len});
  format_ = make(format_buffer_, DType::u8, {n});
  is_weight_ = make(weight_buffer_, DType::u8, {n});
  std::vector<float> ones(operands_.size(), 1.0f);
  std::vector<std::uint8_t> formats, weights;
  for (const Operand& operand : operands_) {
    formats.push_back(static_cast<std::uint8_t>(recipe_.spec(operand.role).format));
    weights.push_back(operand.role == Role::weight);
  }
  queue.copy_to_device(scale_.data, ones.data(), scale_.bytes());
  queue.copy_to_device(format_.data, formats.data(), format_.bytes());
  queue.copy_to_device(is_weight_.data, weights.data(), is_weight_.bytes());
  queue.zero(history_.data, history_.bytes());
  queue.synchronize();
}

ScaleSlot ScaleState::slot(int index) const {
  if (index < 0) return {};
  require(static_cast<bool>(scale_), "a scale is used before it is materialised");
  return {static_cast<float*>(scale_.data) + index, static_cast<float*>(history_.data) + index * history_.row_stride};
}

void ScaleState::reduce(Queue& queue, Arena& scratch, const std::vector<comm::Group*>& groups) {
  const bool alone = std::all_of(groups.begin(), groups.end(), [](const comm::Group* group) { return group->size() == 1; });
  if (operands_.empty() || alone) return;
  const ArenaScope scope(scratch);
  const Tensor now = history_.slice_cols(0, 1), packed = allocate(scratch, DType::f32, now.shape);
  kernels::cast(queue, {.x = now, .y = packed});
  for (comm::Group* group : groups) group->all_reduce(queue, scratch, {.x = packed, .reduction = comm::Reduction::max});
  kernels::cast(queue, {.x = packed, .y = now});
}

void ScaleState::update(Queue& queue, const float* found_inf) {
  if (operands_.empty()) return;
  kernels::update_delayed_scales(queue, {.amax_history = history_,
                                         .scale = scale_,
                                         .format = format_,
                                         .is_weight = is_weight_,
                                         .margin = recipe_.x.margin,
                                         .most_recent = recipe_.amax_most_recent,
                                         .found_inf = found_inf});
}

std::vector<ScaleState::Named> ScaleState::tensors() const {
  std::vector<Named> result;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const std::string name = "fp8." + operands_[i].layer + "." + role_letter(operands_[i].role);
    result.push_back({name + ".scale", scale_.slice_rows(row, row + 1)});
    Tensor history = history_.slice_rows(row, row + 1);
    result.push_back({name + ".amax_history", Tensor(history.data, DType::f32, {recipe_.amax_history_len})});
  }
  return result;
}

}  // namespace octet::recipes
