#include "octet/recipes/scaler.h"

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

void ScaleState::reduce(Queue& queue, Arena& scratch, comm::Group& ranks) {
  if (operands_.empty() || ranks.size() == 1) return;
  const ArenaScope scope(scratch);
  const Tensor amaxes = allocate(scratch, DType::f32, {history_.rows()});
  const auto copy_each = [&](bool back) {
    for (std::int64_t i = 0; i < history_.rows(); ++i) {
      const Tensor one = amaxes.slice_rows(i, i + 1), first = history_.slice_rows(i, i + 1);
      queue.copy(back ? first.data : one.data, back ? one.data : first.data, sizeof(float));
    }
  };
  copy_each(false);
  ranks.all_reduce(queue, scratch, {.x = amaxes, .reduction = comm::Reduction::max});
  copy_each(true);
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
