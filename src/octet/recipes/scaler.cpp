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

void ScaleState::reduce(Stream& stream, Arena& scratch, const std::vector<comm::Group*>& groups,
                        const std::vector<comm::Group*>& groups_of_some) {
  require(groups.size() >= groups_of_some.size(), "amaxes over ", groups.size(), " groups, those of some ranks over ",
          groups_of_some.size());
  const auto alone = [](const std::vector<comm::Group*>& all) {
    return std::all_of(all.begin(), all.end(), [](const comm::Group* group) { return group->size() == 1; });
  };
  if (!scale_ || (alone(groups) && alone(groups_of_some))) return;
  const ArenaScope scope(scratch);
  const Tensor now = history_.slice_cols(0, 1), packed = allocate(scratch, DType::f32, now.shape);
  kernels::cast(stream, {.x = now, .y = packed});
  const auto exchange = [&](comm::Group& group, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    group.all_reduce(stream, scratch, {.x = packed.slice_rows(begin, end), .reduction = comm::Reduction::max});
  };
  for (std::size_t i = 0; i < groups.size(); ++i) {
    comm::Group* const of_some = i < groups_of_some.size() ? groups_of_some[i] : nullptr;
    const bool same = groups[i] == of_some;
    exchange(*groups[i], 0, same ? packed.rows() : rows_of_all_);
    if (of_some && !same) exchange(*of_some, rows_of_all_, packed.rows());
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
