#include "octet/recipes/scaler.h"

#include <algorithm>

#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet::recipes {

int ScaleState::add(const std::string& layer, Role role, HeldBy held) {
  require(!scale_, "scales are registered before they are materialised");
  operands_.push_back({layer, role, held});
  return static_cast<int>(operands_.size()) - 1;
}

void ScaleState::materialise(Stream& stream) {
  std::int64_t n = 0;
  std::vector<std::uint8_t> formats, weights;
  for (const HeldBy held : {HeldBy::all, HeldBy::some}) {
    for (Operand& operand : operands_) {
      if (operand.held != held) continue;
      operand.row = n++;
      formats.push_back(static_cast<std::uint8_t>(recipe_.spec(operand.role).format));
      weights.push_back(operand.role == Role::weight);
    }
    if (held == HeldBy::all) rows_of_all_ = n;
  }
  if (n == 0) return;
  Device& device = stream.device();
  const auto make = [&](Buffer& buffer, DType dtype, Shape shape) {
    buffer = device.allocate(bytes_of(dtype, shape), MemoryCategory::state);
    return view(buffer, dtype, shape);
  };
  scale_ = make(scale_buffer_, DType::f32, {n});
  history_ = make(history_buffer_, DType::f32, {n, recipe_.amax_history_len});
  format_ = make(format_buffer_, DType::u8, {n});
  is_weight_ = make(weight_buffer_, DType::u8, {n});
  stream.copy_to_device(format_.data, formats.data(), format_.bytes());
  stream.copy_to_device(is_weight_.data, weights.data(), is_weight_.bytes());
  reset(stream);
}

void ScaleState::reset(Stream& stream) {
  if (!scale_) return;
  const std::vector<float> ones(static_cast<std::size_t>(scale_.elements()), 1.0f);
  stream.copy_to_device(scale_.data, ones.data(), scale_.bytes());
  stream.zero(history_.data, history_.bytes());
  stream.synchronize();
}

ScaleSlot ScaleState::slot(int index) const {
  if (index < 0) return {};
  const Operand& operand = operands_.at(static_cast<std::size_t>(index));
  if (operand.held == HeldBy::elsewhere) return {};
  require(static_cast<bool>(scale_), "a scale is used before it is materialised");
  return {static_cast<float*>(scale_.data) + operand.row, static_cast<float*>(history_.data) + operand.row * history_.row_stride};
}

void ScaleState::reduce(Stream& stream, Arena& scratch, const std::vector<std::pair<comm::Group*, comm::Group*>>& groups) {
  const bool alone = std::all_of(groups.begin(), groups.end(), [](const auto& pair) {
    return pair.first->size() == 1 && (!pair.second || pair.second->size() == 1);
  });
  if (!scale_ || alone) return;
  const ArenaScope scope(scratch);
  const Tensor now = history_.slice_cols(0, 1), packed = allocate(scratch, DType::f32, now.shape);
  kernels::cast(stream, {.x = now, .y = packed});
  const auto exchange = [&](comm::Group& group, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    group.all_reduce(stream, scratch, {.x = packed.slice_rows(begin, end), .reduction = comm::Reduction::max});
  };
  for (const auto& [of_all, of_some] : groups) {
    exchange(*of_all, 0, of_all == of_some ? packed.rows() : rows_of_all_);
    if (of_some && of_some != of_all) exchange(*of_some, rows_of_all_, packed.rows());
  }
  kernels::cast(stream, {.x = packed, .y = now});
}

void ScaleState::update(Stream& stream, const float* found_inf) {
  if (!scale_) return;
  kernels::update_delayed_scales(stream, {.amax_history = history_,
                                          .scale = scale_,
                                          .format = format_,
                                          .is_weight = is_weight_,
                                          .margin = recipe_.x.margin,
                                          .most_recent = recipe_.amax_most_recent,
                                          .found_inf = found_inf});
}

std::vector<ScaleState::Named> ScaleState::tensors() const {
  std::vector<Named> result;
  for (const Operand& operand : operands_) {
    const std::string name = "fp8." + operand.layer + "." + role_letter(operand.role);
    const auto add = [&](const char* suffix, const Tensor& state, const Shape& shape) {
      const bool here = operand.held != HeldBy::elsewhere;
      result.push_back(
          {.name = name + suffix,
           .tensor = here ? state.slice_rows(operand.row, operand.row + 1).reshape(shape) : Tensor(nullptr, DType::f32, shape),
           .held = operand.held});
    };
    add(".scale", scale_, {1});
    add(".amax_history", history_, {recipe_.amax_history_len});
  }
  return result;
}

}  // namespace octet::recipes
