// Parameters: what a model is made of, how it is stored, and its quantised copies. A model is described first (names and shapes,
// no memory) and materialised afterwards on a device, which may be the meta device (delayed initialisation).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::parallel {

enum class Init : std::uint8_t { ones, normal };

struct ParameterSpec {
  std::string name;   // Hugging Face name; of a fused linear "model.layers.0.self_attn.q_proj.fused.weight"
  Shape shape;        // global
  Init init = Init::normal;
  double init_std = 0.02;
  bool decay = true;  // weight decay: matrices yes, norms no
  std::optional<QuantSpec> quant;  // as operand W of an FP8 linear
  bool grad_from_product = false;  // the first product of a step writes the gradient, so nobody needs to zero it
  bool keeps_transpose = true;     // false: codes have no transposed part; a reader makes it with kernels::transpose_codes
  bool read_as_values = false;     // read as values even though it is quantised: a tied embedding under an FP8 head
};

// How parameters are stored.
struct Storage {
  DType compute = DType::bf16;    // BF16 for the BF16 and FP8 recipes, F32 for fp32, F64 for tests
  bool master_weights = true;     // FP32 primary copy beside BF16 values; without it BF16 values are primary
  bool training = true;           // gradients and moments
  DType grad = DType::f32;
  DType moments = DType::f32;
};

struct Parameter {
  ParameterSpec spec;
  // Global index, in row-major order of spec.shape, of this rank's first element; it holds `elements` of them.
  std::int64_t first_element = 0;
  Tensor master;   // F32; absent without master weights or when compute is not BF16
  Tensor value;    // compute dtype; absent when a master exists and every reader wants codes
  Quantized codes; // present when spec.quant is
  ScaleSlot scale_slot;
  Tensor grad, moment1, moment2;
  bool grad_is_stale = false;  // of the step before: to be overwritten, not added to

  // What the optimizer updates and checkpoints keep.
  const Tensor& primary() const { return master ? master : value; }
  std::int64_t elements() const { return spec.shape.elements(); }
};

// Owns the memory of all parameters of a model; references to parameters stay valid.
class ParameterStore {
 public:
  Parameter& add(ParameterSpec spec);
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  std::int64_t elements() const;

  // Allocates everything. Values are zero until initialised or loaded.
  void materialise(Device& device, const Storage& storage);
  const Storage& storage() const { return storage_; }

  // Fills the primaries: a pure function of (seed, name, element), equal on any mesh and device.
  void initialise(Queue& queue, std::uint64_t seed);

  // Makes values and codes from the primaries, with each weight's current scale. Whenever a primary or a weight's scale has
  // moved, codes are stale until this runs.
  void refresh(Queue& queue, Arena& scratch);
  // The codes alone: after the optimizer, which makes the values itself.
  void refresh_codes(Queue& queue, Arena& scratch);

  // Begins a step's gradients: zero, or stale where a product writes them.
  void zero_gradients(Queue& queue);

 private:
  Tensor allocate(Device& device, MemoryCategory category, DType dtype, Shape shape);

  std::deque<Parameter> parameters_;
  std::vector<Buffer> buffers_;
  Storage storage_;
};

// One tensor of a Hugging Face model directory and where it lives in ours: rows [row_begin, row_end) of a parameter.
struct NameEntry {
  std::string external;
  Parameter* parameter = nullptr;
  std::int64_t row_begin = 0, row_end = 0;
  Shape shape;  // external: [rows, cols], or [n] for a vector
};
using NameTable = std::vector<NameEntry>;

}  // namespace octet::parallel
