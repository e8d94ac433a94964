// Assembles whole parameters in host memory from the shards of all ranks, for model files.
#pragma once

#include <cstddef>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/parameter.h"
#include "octet/parallel/units.h"

namespace octet::train {

class Assembler {
 public:
  // Only the first rank (`first`) assembles parameters. All arguments must outlive this object.
  Assembler(Stream& stream, const parallel::ParameterStore& store, parallel::Units& units, const parallel::Groups& groups,
            bool first)
      : stream_(stream), store_(store), units_(units), groups_(groups), first_(first) {}

  // Returns all of a global parameter's primary. It is valid until the next call, and empty on the meta device and on ranks
  // other than the first. All ranks call it together, including those that do not hold the parameter's expert. Throws
  // Error{peer} if a rank is lost.
  Tensor whole(const parallel::Parameter& p, Arena& scratch);

 private:
  Tensor gather(const parallel::Parameter& p, const Tensor& part, Arena& scratch);
  void place(const parallel::Parameter& p, std::int64_t begin, std::int64_t count, std::size_t width);

  Stream& stream_;
  const parallel::ParameterStore& store_;
  parallel::Units& units_;
  const parallel::Groups& groups_;
  bool first_;
  std::vector<std::byte> whole_, staging_;
};

}  // namespace octet::train
