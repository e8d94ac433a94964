// Parameters: what a model is made of, how it is stored, and its quantised copies. A model is described first (names and shapes,
// no memory) and materialised afterwards on a device, which may be the meta device (delayed initialisation).
//
// A rank of the tensor axis holds some rows or columns of a parameter (tensor_cut.h), which for all that follows is the
// parameter. That is cut flat over the ranks of a group: rank r of n holds elements [r s, (r + 1) s) of its row-major order,
// where s = ceil(elements / n) rounded up to kShardMultiple; the last ranks may hold less, or nothing. A rank updates its part
// alone. What layers read and write is the whole parameter, which parallel/units.h puts together and takes apart. One rank's part
// is the whole.
//
// The group of a dense parameter is shard x context; that of an expert's is those of it that hold the expert (experts.h). Every
// rank knows all parameters by name and shape, which checkpoints and model files need; of an expert that other ranks hold it has
// nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/layout.h"
#include "octet/parallel/tensor_cut.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::parallel {

enum class Init : std::uint8_t { ones, normal };

struct ParameterSpec {
  std::string name;    // Hugging Face name; of a fused linear "model.layers.0.self_attn.q_proj.fused.weight"
  Shape shape;         // global as it is added, then what a rank of the tensor axis holds
  CutRule cut = {};    // on the tensor axis
  Expert expert = {};  // whose it is
  Init init = Init::normal;
  double init_std = 0.02;
  bool decay = true;               // weight decay: matrices yes, norms no
  std::optional<QuantSpec> quant;  // as operand W of an FP8 linear
  bool grad_from_product = false;  // the first product of a step writes the gradient, so nobody needs to zero it
  bool keeps_transpose = true;     // false: codes have no transposed part; a reader makes it with kernels::transpose_codes
  bool read_as_values = false;     // read as values even though it is quantised: a tied embedding under an FP8 head
};

// How parameters are stored.
struct Storage {
  DType compute = DType::bf16;  // BF16 for the BF16 and FP8 recipes, F32 for fp32, F64 for tests
  bool master_weights = true;   // FP32 primary copy beside BF16 values; without it BF16 values are primary
  bool training = true;         // gradients and moments
  DType grad = DType::f32;
  DType moments = DType::f32;
};

// Parts have the shape of the parameter on one rank and are flat, [part_elements], on several. Where this rank does not hold the
// parameter, there is no tensor; those of parts have no elements, but their dtype.
struct Parameter {
  ParameterSpec spec;
  TensorCut cut;  // where the elements of spec.shape stand in the global tensor
  int unit = 0;
  bool held = true;               // false: it is an expert's of other ranks
  comm::Group* shards = nullptr;  // ranks that hold its parts; absent where that is one
  // This rank's part: index of its first element in the row-major order of spec.shape, and how many there are.
  std::int64_t first_element = 0, part_elements = 0;
  std::int64_t stride = 0;   // elements of a part and its padding: the whole lies in n x stride of them, padding last
  Tensor master;             // part, F32; absent without master weights or when compute is not BF16
  Tensor value_part;         // compute dtype; absent when a master exists and every reader wants codes
  Tensor codes_part;         // of the quantised: this rank's codes, on several ranks
  Tensor column_codes_part;  // the same scaled along columns, of row and MX tiles
  Tensor grad_part, moment1, moment2;

  // Whole, [spec.shape]. On several ranks present while the unit is held, or always (Weights::kept, Gradients::whole).
  Tensor value;         // absent when every reader wants codes
  Quantized codes;      // present when spec.quant is; columnwise where spec.keeps_transpose and weights are kept
  Tensor column_codes;  // row and MX tiles on several ranks, of the tensor axis, too: codes scaled along columns, in the order of
                        // rows
  Tensor grad;
  bool grad_is_stale = false;  // of the step before: to be overwritten, not added to
  ScaleSlot scale_slot;

  // What the optimizer updates and checkpoints keep: a part.
  const Tensor& primary() const { return master ? master : value_part; }
  std::int64_t elements() const { return spec.shape.elements(); }
  int parts() const { return shards ? shards->size() : 1; }
  // This rank's part in the global tensor; none where the parameter is not held, else one at least.
  std::vector<TensorPiece> pieces() const { return held ? cut.pieces(first_element, part_elements) : std::vector<TensorPiece>{}; }
  // Those that no rank before this one on the tensor axis holds as well: what it writes, and counts in a norm.
  std::vector<TensorPiece> own_pieces() const {
    std::vector<TensorPiece> result = pieces();
    std::erase_if(result, [](const TensorPiece& piece) { return piece.holder > 0; });
    return result;
  }
  // The elements of a piece of it in a tensor that holds this rank's part.
  Tensor of_part(const Tensor& part, const TensorPiece& piece) const {
    const std::int64_t begin = piece.local - first_element;
    return part.reshape({part.elements()}).slice_rows(begin, begin + piece.elements());
  }
  bool reads_values() const { return !spec.quant || spec.read_as_values; }
};
inline constexpr std::int64_t kShardMultiple = 128;

// Units [begin, end).
struct UnitRange {
  int begin = 0, end = 0;
  bool contains(int unit) const { return begin <= unit && unit < end; }
};

// Owns the memory of all parameters of a model; references to parameters stay valid.
class ParameterStore {
 public:
  ParameterStore() = default;
  // Of a rank at these places on the tensor axis and among the ranks that hold different experts.
  explicit ParameterStore(TensorPlace place, ExpertPlace expert_place = {}) : place_(place), expert_place_(expert_place) {}
  TensorPlace place() const { return place_; }
  ExpertPlace expert_place() const { return expert_place_; }

  // Parameters that are added from here on form a unit: they are gathered and reduced together. Returns its index; without a
  // call there is one unit. resume_unit adds to one that was begun before.
  int begin_unit();
  void resume_unit(int unit) { unit_ = unit; }
  int unit_count() const { return units_; }
  UnitRange all_units() const { return {0, units_}; }
  // Parameter::held says whether the rank holds it. All ranks add the same, experts of others included, in the same order.
  Parameter& add(ParameterSpec spec);
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  std::int64_t elements() const;

  // Allocates everything but what units.h gathers and reduces in passing. Values are zero until initialised or loaded. `groups`
  // outlive the store. The first is for one rank.
  void materialise(Device& device, const Storage& storage) { materialise(device, storage, nullptr, {}); }
  void materialise(Device& device, const Storage& storage, const Groups& groups, const Layout& layout) {
    materialise(device, storage, &groups, layout);
  }
  const Storage& storage() const { return storage_; }
  // Of a dense parameter: the most.
  int parts() const { return groups_ ? groups_->shards->size() : 1; }
  // Where the parts lie that are gathered again and again over Groups::all_shards()[i] (Weights::resharded), for
  // comm::Group::share; empty otherwise.
  const Buffer& gathered_parts(std::size_t i) const { return gathered_[i].parts; }

  // Fills the primaries: a pure function of (seed, name, element), equal on any mesh and device.
  void initialise(Stream& stream, std::uint64_t seed);

  // Makes the parts of values and codes from the primaries, with each weight's current scale. Whenever a primary or a weight's
  // scale has moved, codes are stale until this runs. All ranks call together.
  void refresh(Stream& stream, Arena& scratch);
  // The codes alone, of these units: after the optimizer, which makes the values itself.
  void refresh_codes(Stream& stream, Arena& scratch, UnitRange units);

  // Begins gradients that exist whole: zero, or stale where a product writes them.
  void zero_gradients(Stream& stream);

 private:
  // A dense parameter's group, or the other one that some experts have.
  static constexpr std::size_t kGroups = 2;
  std::size_t group_of(const Parameter& p) const { return p.spec.expert && groups_ && groups_->apart ? 1 : 0; }

  void materialise(Device& device, const Storage& storage, const Groups* groups, const Layout& layout);
  // Which part of it this rank has, and how large parts are.
  void place(Parameter& p) const;
  Tensor allocate(Device& device, MemoryCategory category, DType dtype, Shape shape);
  // A part [p.part_elements] with room for p.stride, or the whole's shape on one rank.
  Tensor allocate_part(Device& device, MemoryCategory category, DType dtype, const Parameter& p);
  // All of `whole`, whose memory has room for the padding, and this rank's part of it.
  void allocate_whole(Device& device, MemoryCategory category, DType dtype, const Parameter& p, Tensor& whole, Tensor& part);
  // The same in gathered_, which is measured first: bytes alone are counted while it is empty.
  Tensor gathered_part(DType dtype, const Parameter& p);
  void materialise_gathered_parts(Device& device);
  void materialise_codes(Device& device, Parameter& p, Weights weights);
  void cast_parts(Stream& stream, Arena& scratch, UnitRange units);
  struct AmaxGrids {
    Tensor rows, columns;
  };
  // Elements of sections of amaxes_, two of each group: of tiles that several ranks of the tensor axis hold a part of, and of the
  // others.
  struct AmaxCount {
    std::int64_t shared = 0, own = 0;
    std::int64_t all() const { return shared + own; }
  };
  using AmaxCounts = std::array<AmaxCount, kGroups>;
  AmaxGrids amax_grids(const Parameter& p, AmaxCounts& at) const;
  // Where the grid of `group` that `count` others of its section stand before begins in amaxes_.
  std::int64_t amax_place(std::size_t group, bool shared, std::int64_t count) const;
  void reduce_amaxes(Stream& stream, Arena& scratch, UnitRange units);
  // Whether weights are cast piece by piece, with amaxes of all ranks.
  bool casts_parts() const { return parts() > 1 || place_.size > 1; }

  TensorPlace place_;
  ExpertPlace expert_place_;
  std::deque<Parameter> parameters_;
  int units_ = 0, unit_ = 0;
  std::vector<Buffer> buffers_;
  Storage storage_;
  const Groups* groups_ = nullptr;
  struct Gathered {
    Buffer parts;
    std::size_t used = 0;
  };
  std::array<Gathered, kGroups> gathered_;
  Tensor amaxes_;  // [n] F32: of all weights whose scales are made of this very tensor, on several ranks
  AmaxCounts amax_count_;
};

// What a rank holds of whole memory [ranks x p.stride]: [p.part_elements], flat.
Tensor part_of(const Parameter& p, const Tensor& padded, int rank);

// Rows [begin, end) of a global parameter; of a vector, elements.
struct RowRun {
  std::int64_t begin = 0, end = 0;
};
// One tensor of a Hugging Face model directory and where it lives in ours: runs of rows of a global parameter, which one below
// the other are that tensor.
struct NameEntry {
  std::string external;
  Parameter* parameter = nullptr;
  std::vector<RowRun> rows;
  Shape shape;  // external: [rows, cols], or [n] for a vector
};
using NameTable = std::vector<NameEntry>;

}  // namespace octet::parallel
