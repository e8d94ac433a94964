// Which windows of a corpus are trained on and which are held out: a fixed pseudo-random subset that depends on the number of
// windows and the fractions alone, so that runs with different seeds hold out the same text.
#pragma once

#include <array>
#include <cstdint>

#include "octet/data/permutation.h"

namespace octet::data {

enum class Part { train, held_out };

// What a run names a source for. Where a source is named validation, those without a name are trained on as a whole.
enum class Use { unnamed, train, validation };

class Split {
 public:
  // `fractions` = {train, held_out}, as `data.split`: not negative, sum 1 (else Error{config}). A part whose fraction is
  // above 0 gets at least one window when there are two.
  Split(std::int64_t windows, std::array<double, 2> fractions);

  std::int64_t count(Part part) const { return part == Part::train ? order_.size() - held_out_ : held_out_; }
  // The window of item i in [0, count(part)); the two parts share none and cover all.
  std::int64_t window(Part part, std::int64_t i) const;

 private:
  Permutation order_;
  std::int64_t held_out_;
};

}  // namespace octet::data
