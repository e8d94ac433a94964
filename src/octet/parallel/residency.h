// The residency table: which copies of a parameter exist on a rank, and where each copy lives. Only this table decides it.
//
// Copy        on one rank                            on n ranks, kept                       on n ranks, resharded
// master      whole, if values are BF16              shard                                  shard
// values      whole if read or primary               whole if read; shard if only primary   slot if read; shard if only primary
// rowwise     whole                                  whole                                  slot
// columnwise  whole if spec.keeps_transpose          the same                               absent: made at use
// row_order   absent; whole on a tensor axis         whole                                  slot
// gradient    whole                                  whole, or slot if sharded              whole, or slot if sharded
// moments     whole                                  shard                                  shard
//
// primary: the copy that checkpoints keep, which is the master if there is one, and otherwise the values.
//
// A frozen parameter has no master, no gradient and no moments, and has values only if they are read. The values of a tracked
// parameter are F32.
//
// With optimizer.offload, masters and moments lie in the host. The values of a quantized parameter then exist on the device,
// because casts read them. Moments in FP8 have scales, one for 128 elements, which lie where the moments lie.
//
// Only quantized parameters have rowwise, columnwise and row_order, and row_order exists only for tiles that are not square. A
// rank has no copies of parameters of experts or pipeline stages that it does not hold. Without training there are no gradients
// and no moments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "octet/device/device.h"
#include "octet/parallel/layout.h"
#include "octet/tensor/dtype.h"

namespace octet::parallel {

struct ParameterSpec;
struct Storage;

enum class Copy : std::uint8_t {
  master,      // F32, which the optimizer updates
  values,      // in the compute dtype; the primary if there is no master
  rowwise,     // FP8 codes, scaled along rows
  columnwise,  // FP8 codes, scaled along columns and transposed, which dgrad reads
  row_order,   // FP8 codes, scaled along columns but not transposed; ranks exchange them in this order
  gradient,
  moment1,
  moment2,
};
inline constexpr std::array kAllCopies = {Copy::master,    Copy::values,   Copy::rowwise, Copy::columnwise,
                                          Copy::row_order, Copy::gradient, Copy::moment1, Copy::moment2};
inline constexpr std::size_t kCopies = kAllCopies.size();
std::string_view name_of(Copy copy);

enum class Place : std::uint8_t {
  absent,
  whole,  // All elements stay on this rank. With several shards, this rank's shard lies inside the whole.
  shard,  // Only this rank's shard exists.
  slot,   // This rank's shard stays. The whole exists while the unit of the parameter is open.
  host,   // This rank's shard lies in host memory (offload.h).
};
std::string_view name_of(Place place);

// The ranks among which a parameter is divided.
struct Division {
  bool held = true;      // false: the parameter belongs to another pipeline stage, or to an expert of other ranks
  int shards = 1;        // the number of shards of this parameter
  int dense_shards = 1;  // the number of shards of dense parameters, at least `shards`
  int tensor = 1;        // the size of the tensor axis
};

struct Held {
  Place place = Place::absent;
  DType dtype = DType::f32;  // of the shard, or of a whole that stays; a gradient's slot has Layout::reduce
  bool has_whole() const { return place == Place::whole || place == Place::slot; }
  bool operator==(const Held&) const = default;
};

// Returns the place and dtype of a copy. An absent copy has the dtype that the copy would have; codes that cannot exist have F32.
Held residency(Copy copy, const ParameterSpec& spec, const Storage& storage, const Layout& layout, const Division& division);

// Returns the kind of memory that a copy takes.
MemoryCategory category_of(Copy copy, Place place);

}  // namespace octet::parallel
