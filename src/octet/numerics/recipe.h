// A recipe states the format, scale tile and scale source of each operand of a linear layer's three GEMMs. It contains no code.
//   fprop Y = X Wᵀ, dgrad gX = G W, wgrad gW = Gᵀ X.   X activation, W weight, G output gradient.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/numerics/float8.h"

namespace octet {

// Which elements share one scale. "Along K" means along the dimension that the GEMM sums over.
enum class ScaleTile : std::uint8_t {
  tensor,        // one scale for the whole tensor
  row,           // one scale for each row of the operand, along K
  block_1x128,   // one scale for 128 consecutive elements of a row, along K
  block_128x128, // one scale for 128 x 128 elements; weights of the block recipe
  mx_1x32,       // one E8M0 scale for 32 consecutive elements of a row, along K
};
constexpr bool is_block(ScaleTile tile) { return tile == ScaleTile::block_1x128 || tile == ScaleTile::block_128x128; }
// The number of elements along K that share a scale; 0 if a whole row or tensor does.
constexpr int tile_width(ScaleTile tile) {
  return is_block(tile) ? 128 : tile == ScaleTile::mx_1x32 ? 32 : 0;
}

// The amax from which a scale is computed.
enum class ScaleSource : std::uint8_t {
  history,  // delayed scaling: the amax of earlier steps
  tensor,   // current scaling: the amax of the tile that is quantised
};

struct QuantSpec {
  Fp8Format format = Fp8Format::e4m3;
  ScaleTile tile = ScaleTile::tensor;
  ScaleSource source = ScaleSource::tensor;
  bool power_of_2 = false;  // current scaling: rounds the scale down to a power of two
  float epsilon = 0.0f;     // current scaling: lower bound of the amax
  int margin = 0;           // delayed scaling: divides the scale by 2^margin
};

// The role of an operand in a linear layer.
enum class Role : std::uint8_t { activation, weight, gradient };
constexpr const char* role_letter(Role role) {
  return role == Role::activation ? "x" : role == Role::weight ? "w" : "g";
}

// The accumulator of FP8 GEMMs on Hopper (kernels/gemm/gemm.h).
enum class Accumulation : std::uint8_t { fast, precise };

// The precision of a linear layer's GEMMs.
enum class Compute : std::uint8_t {
  fp64,  // for tests that compare gradients with finite differences
  fp32,
  bf16,
  fp8,
};

// The precision of the two products inside attention, S = Q Kᵀ and O = P V (docs/numerics.md, "Attention in FP8").
enum class AttentionPrecision : std::uint8_t {
  bf16,         // that of activations: FP32 in the recipe fp32
  fp8_forward,  // both products of forward read E4M3 codes; backward multiplies the values of these codes in BF16
  fp8,          // backward multiplies codes, too: gradients have the recipe's format
};
constexpr const char* name_of(AttentionPrecision precision) {
  constexpr const char* kNames[] = {"bf16", "fp8_forward", "fp8"};
  return kNames[static_cast<int>(precision)];
}

struct Recipe {
  std::string name;
  Compute compute = Compute::bf16;
  QuantSpec x, w, g;  // used only if compute is fp8
  Accumulation fprop = Accumulation::precise, dgrad = Accumulation::precise, wgrad = Accumulation::precise;
  bool wgrad_bf16 = false;  // wgrad reads BF16 operands instead of FP8 codes
  int amax_history_len = 1024;    // delayed scaling: number of amaxes kept for each tensor
  bool amax_most_recent = false;  // delayed scaling: uses the newest amax instead of the largest one kept
  bool head_fp8 = false;          // the output head is also computed in FP8, not in BF16
  AttentionPrecision attention = AttentionPrecision::bf16;
  bool token_scales = true;       // evaluation with one current scale per tensor gives each token a scale; false: no products for it
  bool weight_transpose_cache = true;  // false: the transposed codes of W are not stored; dgrad makes them when it needs them
  std::vector<std::string> skip;  // glob patterns of linear layers that stay in BF16

  const QuantSpec& spec(Role role) const { return role == Role::activation ? x : role == Role::weight ? w : g; }
  bool is_fp8() const { return compute == Compute::fp8; }
  bool delayed() const { return is_fp8() && x.source == ScaleSource::history; }
};

}  // namespace octet
