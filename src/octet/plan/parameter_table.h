// A table of the memory that each parameter takes on a rank: parallel/residency.h applied to all parameters of a run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/device/buffer.h"
#include "octet/parallel/parameter.h"
#include "octet/parallel/units.h"

namespace octet::plan {

// Parameters of this rank that are alike: their names differ only in numbers, and they have the same shape and the same copies
// in the same places.
struct ParameterKind {
  std::string name;  // "model.layers.0-31.mlp.down_proj"
  std::int64_t count = 0;
  Shape shape;     // of one of them, as a rank of the tensor axis holds it
  int shards = 1;  // the number of ranks that hold its shards
  std::array<parallel::Held, parallel::kCopies> copies = {};
  std::array<std::size_t, parallel::kCopies> bytes = {};  // of each copy, of all `count` parameters: what stays on this rank
  std::size_t scale_bytes = 0;                            // of the scales of their codes, and of moments in FP8
  std::size_t total() const;
};

// The bytes of a category of the memory plan that consists only of parameters.
struct ParameterBytes {
  std::size_t copies = 0;  // stay on this rank
  std::size_t scales = 0;  // of FP8 codes
  std::size_t shared = 0;  // slots, in which units lie in turn, and memory for casts
  std::size_t total() const { return copies + scales + shared; }
};

struct ParameterTable {
  std::vector<ParameterKind> kinds;  // in the order in which forward uses them first
  std::int64_t elsewhere = 0;        // parameters of other pipeline stages, and of experts of other ranks
  // By category. Only weights, master weights, moments, gradients and host memory are made of parameters.
  std::array<ParameterBytes, kMemoryCategories> bytes = {};
};

ParameterTable parameter_table(const parallel::ParameterStore& store, const parallel::Units& units);
// Returns a table with a row for each kind and a column for each copy that any parameter has, an explanation of the words, and
// the bytes by category.
std::string text_of(const ParameterTable& table);

}  // namespace octet::plan
