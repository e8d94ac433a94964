// What a recipe is: data. Format, scale tile and scale source of each operand of the three GEMMs of a linear.
//   fprop Y = X Wᵀ, dgrad gX = G W, wgrad gW = Gᵀ X.   X activation, W weight, G output gradient.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/numerics/float8.h"

namespace octet {

// The elements that share one scale. Along K means along the dim that the GEMM sums over.
enum class ScaleTile : std::uint8_t {
  tensor,        // the whole tensor
  row,           // one per row of the operand, along K
  block_1x128,   // 128 elements of a row, along K
  block_128x128, // weights of the block recipe
  mx_1x32,       // 32 elements of a row, along K, an E8M0 scale
};
constexpr bool is_block(ScaleTile tile) { return tile == ScaleTile::block_1x128 || tile == ScaleTile::block_128x128; }
// Elements along K that share a scale; 0 for the whole row or tensor.
constexpr int tile_width(ScaleTile tile) {
  return is_block(tile) ? 128 : tile == ScaleTile::mx_1x32 ? 32 : 0;
}

enum class ScaleSource : std::uint8_t {
  history,  // delayed: amax of earlier steps
  tensor,   // current: amax of this very tensor, row or block
};

struct QuantSpec {
  Fp8Format format = Fp8Format::e4m3;
  ScaleTile tile = ScaleTile::tensor;
  ScaleSource source = ScaleSource::tensor;
  bool power_of_2 = false;
  float epsilon = 0.0f;
  int margin = 0;
};

// The role of a linear's operand.
enum class Role : std::uint8_t { activation, weight, gradient };
constexpr const char* role_letter(Role role) {
  return role == Role::activation ? "x" : role == Role::weight ? "w" : "g";
}

enum class Accumulation : std::uint8_t { fast, precise };

// How a linear layer computes.
enum class Compute : std::uint8_t {
  fp64,  // tests: finite differences
  fp32,
  bf16,
  fp8,
};

struct Recipe {
  std::string name;
  Compute compute = Compute::bf16;
  QuantSpec x, w, g;  // meaningful when compute is fp8
  Accumulation fprop = Accumulation::precise, dgrad = Accumulation::precise, wgrad = Accumulation::precise;
  bool wgrad_bf16 = false;  // wgrad from BF16 copies
  int amax_history_len = 1024;
  bool amax_most_recent = false;
  bool head_fp8 = false;
  bool weight_transpose_cache = true;  // false: the transposed codes of W are made where dgrad reads them
  std::vector<std::string> skip;  // globs of linears kept in BF16

  const QuantSpec& spec(Role role) const { return role == Role::activation ? x : role == Role::weight ? w : g; }
  bool is_fp8() const { return compute == Compute::fp8; }
  bool delayed() const { return is_fp8() && x.source == ScaleSource::history; }
};

}  // namespace octet
