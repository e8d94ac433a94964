// The names of units in printed lists, profiles and pictures: "embedding" (of a tied head "embedding and head"), "block 3", "head".
#pragma once

#include <algorithm>
#include <string>

#include "octet/base/require.h"
#include "octet/parallel/schedule.h"

namespace octet::parallel {

inline std::string name_of_unit(const StepShape& s, int unit) {
  if (unit == s.embedding) return s.head == s.embedding ? "embedding and head" : "embedding";
  return unit == s.head ? "head" : concat("block ", unit - s.first_block);
}

// "block 2 to head"
inline std::string name_of_units(const StepShape& s, UnitRange units) {
  return name_of_unit(s, units.begin) + (units.end - units.begin > 1 ? " to " + name_of_unit(s, units.end - 1) : "");
}

// "block 3 states 2": pieces of the optimizer's states are numbered within their unit.
inline std::string name_of_piece(const StepShape& s, int piece) {
  const int unit = s.pieces[static_cast<std::size_t>(piece)];
  const auto first = std::find(s.pieces.begin(), s.pieces.end(), unit) - s.pieces.begin();
  return concat(name_of_unit(s, unit), " states ", piece - static_cast<int>(first));
}

}  // namespace octet::parallel
