#include "octet/parallel/residency.h"

#include <array>

#include "octet/kernels/quantize/quantize.h"
#include "octet/parallel/parameter.h"

namespace octet::parallel {

Held residency(Copy copy, const ParameterSpec& spec, const Storage& storage, const Layout& layout, const Division& division) {
  const bool one = division.shards == 1, kept = layout.weights == Weights::kept;
  const bool trained = storage.training && !spec.frozen;
  const bool has_master = storage.has_masters() && !spec.frozen;
  const Place own = one ? Place::whole : Place::shard;                 // where a copy lives that layers do not read
  const Place updated = storage.offloads() ? Place::host : own;        // where a copy lives that only the optimizer touches
  const Place read = one || kept ? Place::whole : Place::slot;         // where a copy lives that layers read
  const auto held = [&](bool exists, Place place, DType dtype) {
    return Held{division.held && exists ? place : Place::absent, dtype};
  };
  switch (copy) {
    case Copy::master:
      return held(has_master, updated, DType::f32);
    case Copy::values: {
      const bool is_read = !spec.quant || spec.read_as_values;
      const bool is_cast = spec.quant && updated == Place::host;
      const bool is_source = !spec.frozen && (!has_master || is_cast);
      return held(is_read || is_source, is_read ? read : own, spec.tracked ? DType::f32 : storage.compute);
    }
    case Copy::gradient: {
      const bool whole = one || layout.gradients == Gradients::whole;
      // A step of one micro-batch adds nothing to a shard, so the shard keeps the dtype of the reduce-scatter.
      const bool as_it_came =
          !whole && !layout.accumulates && division.tensor == 1 && storage.grad == DType::f32 && layout.reduce == DType::bf16;
      return held(trained, whole ? Place::whole : Place::slot, as_it_came ? layout.reduce : storage.grad);
    }
    case Copy::moment1:
    case Copy::moment2:
      return held(trained, updated, storage.moments);
    case Copy::rowwise:
    case Copy::columnwise:
    case Copy::row_order:
      break;
  }
  if (!spec.quant) return {};
  const DType codes = dtype_of(spec.quant->format);
  if (copy == Copy::rowwise) return held(true, read, codes);
  const bool casts_shards = division.dense_shards > 1 || division.tensor > 1;  // ranks cast their own elements
  if (copy == Copy::row_order) return held(casts_shards && !kernels::is_square(spec.quant->tile), read, codes);
  // Codes that ranks gather are transposed after the gather, and stay only where gathered weights stay.
  const bool stays = division.dense_shards == 1 || kept;
  return held(spec.keeps_transpose && stays, Place::whole, codes);
}

MemoryCategory category_of(Copy copy, Place place) {
  using enum MemoryCategory;
  constexpr std::array kOf = {master_weights, weights, weights, weights, weights, gradients, moments, moments};
  static_assert(kOf.size() == kCopies);
  return place == Place::host ? MemoryCategory::host : kOf[static_cast<std::size_t>(copy)];
}

std::string_view name_of(Copy copy) {
  constexpr std::array<std::string_view, kCopies> kNames = {"master",    "values",   "rowwise", "columnwise",
                                                            "row_order", "gradient", "moment1", "moment2"};
  return kNames[static_cast<std::size_t>(copy)];
}

std::string_view name_of(Place place) {
  constexpr std::array<std::string_view, 5> kNames = {"-", "whole", "shard", "slot", "host"};
  return kNames.at(static_cast<std::size_t>(place));
}

}  // namespace octet::parallel
