// Parameters: the weights of a model, how they are stored, and their quantized copies. A model is described first (names and
// shapes, no memory) and materialised afterwards on a device, which may be the meta device (delayed initialisation).
//
// A rank of the tensor axis holds some rows or columns of a parameter (tensor_cut.h). Below, "the parameter" means these. It is
// cut flat into shards over the ranks of a group: rank r of n holds elements [r s, (r + 1) s) of its row-major order, where s =
// ceil(elements / n) rounded up to kShardMultiple. The last ranks may hold less, or nothing. A rank updates only its shard.
// Layers read and write the whole parameter, which parallel/units.h gathers and reduces. On one rank, the shard is the whole
// parameter.
//
// The group of a dense parameter is shard x context. The group of an expert's parameter consists of those of these ranks that
// hold the expert (experts.h). Every rank knows the names and shapes of all parameters, because checkpoints and model files
// need them. It has no memory for parameters of experts that it does not hold, or of other pipeline stages.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/math.h"
#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/tensor_list.h"
#include "octet/numerics/recipe.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/layout.h"
#include "octet/parallel/residency.h"
#include "octet/parallel/tensor_cut.h"
#include "octet/parallel/weight_cast.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::parallel {

enum class Init : std::uint8_t { ones, normal };

struct ParameterSpec {
  std::string name;    // Hugging Face name; a fused linear has "model.layers.0.self_attn.q_proj.fused.weight"
  Shape shape;         // of the whole model when it is added, then of what a rank of the tensor axis holds
  CutRule cut = {};    // on the tensor axis
  Expert expert = {};  // the expert to which it belongs, if any
  Init init = Init::normal;
  double init_std = 0.02;
  bool decay = true;               // weight decay: matrices yes, norms no
  std::optional<QuantSpec> quant;  // how it is quantized as operand W of an FP8 linear
  bool grad_from_product = false;  // a product overwrites the gradient first (Overwrites), so it need not be zeroed
  // False: columnwise codes are not stored; a reader makes them with kernels::transpose_codes. materialise() sets it to false
  // where rowwise codes serve both directions (tensor/quantized.h).
  bool keeps_transpose = true;
  bool read_as_values = false;     // its values are also read although it is quantized: a tied embedding with an FP8 head
  bool tracked = false;            // the router's load-balancing bias: the layer updates it after a step, not the optimizer;
                                   // F32, and whole on every rank
  bool frozen = false;             // the optimizer does not train it; ParameterStore::add sets this
  bool saved = true;               // checkpoints of a run keep it, because the run changes it; ParameterStore::add sets this
};

// A copy of 256 MiB between host and device takes 5 ms, much longer than starting it, and three slots of this size take little
// memory.
inline constexpr std::size_t kOffloadSlotBytes = std::size_t{256} << 20;

// How parameters are stored.
struct Storage {
  DType compute = DType::bf16;  // BF16 for the BF16 and FP8 recipes, F32 for fp32, F64 for tests
  bool master_weights = true;   // FP32 primary copy in addition to BF16 values; without it the BF16 values are primary
  bool training = true;         // gradients and moments
  DType grad = DType::f32;
  DType moments = DType::f32;    // F32, BF16 or E4M3 (kernels/adamw/fp8_moments.h); F64 for tests
  // If it is not 0, masters and moments lie in host memory, and each slot on the device has this many bytes.
  std::size_t offload_slot = 0;
  bool has_masters() const { return compute == DType::bf16 && master_weights; }
  bool offloads() const { return training && offload_slot > 0; }
};

// residency.h says which of these tensors exist. With one rank, a shard has the shape of the parameter. With several ranks it
// is flat, [shard_elements]. If this rank does not hold the parameter, its tensors are absent; shards then have a dtype and no
// elements.
struct Parameter {
  ParameterSpec spec;
  TensorCut cut;        // where the elements of spec.shape belong in the global tensor
  TensorCut scale_cut;  // the same for the scales of moments in FP8
  int unit = 0;
  int stage = 0;                          // the pipeline stage that holds it
  bool held = true;                       // false: it belongs to another stage, or to an expert of other ranks
  bool replica = false;                   // every rank of its group holds all of it, and another rank writes it to checkpoints
  comm::Group* shards = nullptr;          // the ranks that hold its shards; null if one rank holds all of it
  std::array<Held, kCopies> copies = {};  // what residency() says of each copy; set by materialise
  // This rank's shard: the index of its first element in the row-major order of spec.shape, and its number of elements.
  std::int64_t first_element = 0, shard_elements = 0;
  std::int64_t stride = 0;  // elements of a shard with its padding; the whole takes n x stride elements, with the padding last
  // Shards.
  Tensor master;            // F32
  Tensor value_shard;       // in the compute dtype
  Tensor rowwise_shard;     // codes of a quantized parameter
  Tensor columnwise_shard;  // this rank's shard of Copy::row_order
  Tensor grad_shard, moment1, moment2;
  Tensor moment1_scale, moment2_scale;  // F32, of moments in FP8: one for each kMomentGroup elements of the shard

  // The whole parameter, [spec.shape]. In a slot it always has the same memory, which it owns while its unit is open.
  Tensor value;
  Quantized codes;      // of a quantized parameter
  Tensor column_codes;  // the whole of Copy::row_order, which ranks transpose after the all-gather
  Tensor grad;
  ScaleSlot scale_slot;

  // The shard that the optimizer updates and checkpoints keep. Absent if only codes of a frozen weight stay.
  const Tensor& primary() const { return master ? master : value_shard; }
  std::int64_t elements() const { return spec.shape.elements(); }
  int shard_count() const { return shards ? shards->size() : 1; }
  // Returns the shard from which codes are made. A master in host memory is read through its values, which are rounded.
  const Tensor& cast_source() const { return copy(Copy::master).place == Place::host ? value_shard : primary(); }
  // The pieces of the global tensor that this rank's shard consists of: at least one, or none if the parameter is not held.
  std::vector<TensorPiece> pieces() const {
    return held ? cut.pieces(first_element, shard_elements) : std::vector<TensorPiece>{};
  }
  // The pieces that this rank owns. Several ranks may hold the same piece. One of them owns it, writes it to checkpoints and
  // counts it in the gradient norm.
  std::vector<TensorPiece> own_pieces() const {
    std::vector<TensorPiece> result = replica ? std::vector<TensorPiece>{} : pieces();
    std::erase_if(result, [](const TensorPiece& piece) { return piece.holder > 0; });
    return result;
  }
  // Returns the elements of one of these pieces in a tensor that holds this rank's shard.
  Tensor of_shard(const Tensor& shard, const TensorPiece& piece) const {
    const std::int64_t begin = piece.local - first_element;
    return shard.flat().slice_rows(begin, begin + piece.elements());
  }
  const Held& copy(Copy copy) const { return copies[static_cast<std::size_t>(copy)]; }
  // Returns whether a pass overwrites the gradient of this parameter.
  bool overwrites_grad(Overwrites overwrites) const {
    return overwrites == Overwrites::all || (overwrites == Overwrites::slots && copy(Copy::gradient).place == Place::slot);
  }
};
inline constexpr std::int64_t kShardMultiple = 128;

// The tensors of a copy. A copy that layers do not read has no whole. Columnwise codes have no shard, because they are made
// from other codes.
struct CopyTensors {
  Tensor* whole = nullptr;
  Tensor* shard = nullptr;
};
CopyTensors tensors_of(Parameter& p, Copy copy);

// A stretch of a parameter's shard, and the memory in which the optimizer updates the stretch.
struct StatePiece {
  const Parameter* parameter = nullptr;
  std::int64_t first = 0, elements = 0;  // in the row-major order of spec.shape
  Tensor weight, moment1, moment2;       // [elements]
  Tensor moment1_scale, moment2_scale;   // [ceil(elements / kMomentGroup)] of moments in FP8, otherwise absent
};

// What the tasks of an optimizer step work on.
struct UpdateWork {
  std::vector<UnitRange> units;                 // whose squares a task adds up
  std::vector<std::vector<StatePiece>> pieces;  // which a task updates: pieces[task.part] with offload, else pieces[task.index]
};

// Owns the memory of all parameters of a model. References to parameters stay valid.
class ParameterStore {
 public:
  ParameterStore() = default;
  // The places of this rank on the tensor axis and among the ranks that hold different experts, and its pipeline stage.
  explicit ParameterStore(TensorPlace place, ExpertPlace expert_place = {}, int stage = 0)
      : place_(place), expert_place_(expert_place), stage_(stage) {}
  TensorPlace place() const { return place_; }
  ExpertPlace expert_place() const { return expert_place_; }

  // Begins a unit of a pipeline stage and returns its index. Parameters that are added from here on are gathered and reduced
  // together. Without a call there is one unit. resume_unit continues an earlier unit.
  int begin_unit(int stage = 0);
  void resume_unit(int unit) { unit_ = unit; }
  // Sets whether the parameters that are added from here on are frozen. At first they are not.
  void set_frozen(bool frozen) { frozen_ = frozen; }
  int unit_count() const { return static_cast<int>(stage_of_unit_.size()); }
  UnitRange all_units() const { return {0, unit_count()}; }
  // All ranks add the same parameters in the same order, including those that other ranks hold. Parameter::held says whether
  // this rank holds the parameter.
  Parameter& add(ParameterSpec spec);
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }

  // Allocates everything except the slots of units.h. Values are zero until they are initialised or loaded. `groups` must
  // outlive the store; without groups there is one rank.
  void materialise(Device& device, const Storage& storage, const Groups* groups = nullptr, const Layout& layout = {});
  const Storage& storage() const { return storage_; }
  // Returns the largest number of shards that any dense parameter has.
  int shard_count() const { return groups_ ? groups_->shards->size() : 1; }
  // The memory of the shards that are gathered again and again over this group of Groups::all_shards() (Weights::resharded), for
  // comm::Group::share; empty otherwise.
  const Buffer& gathered_shards(comm::Group* group) { return gathered_[group]; }

  // Overwrite the primaries with random values, or ones, which depend only on the seed, the name and the element.
  void initialise(Stream& stream, std::uint64_t seed);
  void initialise(Stream& stream, const Parameter& p, std::uint64_t seed);

  // Calls write(), which overwrites the primary of p, and makes the codes of a frozen weight. If only codes of the weight stay,
  // its values lie in `scratch` until this returns. All ranks call it together, for the same parameters in the same order.
  void fill(Stream& stream, Arena& scratch, Parameter& p, const std::function<void()>& write);

  // Make the shards of values and codes from the primaries, except the codes of frozen weights. After a change of a primary or
  // of a weight's scale, the shards are stale until this runs. The optimizer also writes values. All ranks cast the codes of
  // the same units together, with each weight's present scale.
  void refresh(Stream& stream, Arena& scratch);
  void refresh_values(Stream& stream);
  // Makes the lists of refresh_codes() for these units. Call it when the scale slots of their weights are known.
  void prepare_codes(Device& device, UnitRange units) { cast_->prepare(device, units); }
  void refresh_codes(Stream& stream, Arena& scratch, UnitRange units) { cast_->run(stream, scratch, units); }

  // Returns the shards of these units' trained parameters, each as one stretch.
  std::vector<StatePiece> states(UnitRange units) const;

  // Begins a step: zeroes the whole gradients that no product overwrites.
  void zero_gradients(Stream& stream) { kernels::zero(stream, {.x = zeroed_}); }

 private:
  // Sets which shard of p this rank has, and the size of shards.
  void place(Parameter& p) const;
  Tensor allocate(Device& device, MemoryCategory category, DType dtype, Shape shape);
  void allocate(Device& device, Parameter& p, Copy copy);
  void allocate_scales(Device& device, Parameter& p);
  void allocate_moment_scales(Device& device, Parameter& p);
  std::size_t place_gathered_shards(comm::Group* group);

  TensorPlace place_;
  ExpertPlace expert_place_;
  int stage_ = 0;
  std::deque<Parameter> parameters_;
  std::vector<int> stage_of_unit_;
  int unit_ = 0;
  bool frozen_ = false;
  std::vector<Buffer> buffers_;
  Storage storage_;
  const Groups* groups_ = nullptr;
  std::map<comm::Group*, Buffer> gathered_;
  std::optional<WeightCast> cast_;
  kernels::TensorList zeroed_;  // by zero_gradients
};

using RowRun = IndexRange<std::int64_t>;  // rows of a global parameter, or elements of a vector
// A tensor of a Hugging Face model directory, and the runs of rows of a global parameter of which it consists, from top to
// bottom.
struct NameEntry {
  std::string external;
  Parameter* parameter = nullptr;
  std::vector<RowRun> rows;
  Shape shape;  // external: [rows, cols], or [n] for a vector
};
using NameTable = std::vector<NameEntry>;

}  // namespace octet::parallel
