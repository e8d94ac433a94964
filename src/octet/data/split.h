// Divides the windows of a corpus into training and held-out windows. The held-out windows are a pseudo-random subset that depends only
// on the number of windows and the fractions, so runs with different seeds hold out the same text.
#pragma once

#include <array>
#include <cstdint>

#include "octet/data/permutation.h"

namespace octet::data {

enum class Part { train, held_out };

// The part for which a run names a source. If some source is `validation`, all windows of an `unnamed` source are trained on;
// otherwise `unnamed` sources are divided by the fractions of the run.
enum class Use { unnamed, train, validation };

class Split {
 public:
  // `fractions` is {train, held_out}, as in `data.split`: not negative, with sum 1, otherwise throws Error{config}. A part whose
  // fraction is greater than 0 gets at least one window if there are two or more.
  Split(std::int64_t windows, std::array<double, 2> fractions);

  std::int64_t count(Part part) const { return part == Part::train ? order_.size() - held_out_ : held_out_; }
  // The window of item i in [0, count(part)). Every window belongs to exactly one part.
  std::int64_t window(Part part, std::int64_t i) const;

 private:
  Permutation order_;
  std::int64_t held_out_;
};

}  // namespace octet::data
