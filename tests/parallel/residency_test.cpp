#include "octet/parallel/residency.h"

#include <gtest/gtest.h>

#include "octet/base/require.h"
#include "octet/parallel/parameter.h"

namespace octet::parallel {
namespace {

// Returns one letter for each copy, in the order of Copy: a absent, w whole, p shard (a piece), s slot, h host.
std::string places_of(const ParameterSpec& spec, const Storage& storage, const Layout& layout, const Division& division) {
  std::string places;
  for (std::size_t i = 0; i < kCopies; ++i) {
    const Held held = residency(static_cast<Copy>(i), spec, storage, layout, division);
    places += "awpsh"[static_cast<std::size_t>(held.place)];
  }
  return places;
}

ParameterSpec spec_of(const char* kind) {
  ParameterSpec spec{.name = kind, .shape = {128, 128}, .quant = {}};
  const std::string name = kind;
  if (name == "plain") return spec;
  spec.quant = QuantSpec{};
  if (name.find("row") == 0) spec.quant->tile = ScaleTile::row;
  if (name.find("mx") == 0) spec.quant->tile = ScaleTile::mx_1x32;
  if (name.find("block") == 0) spec.quant->tile = ScaleTile::block_128x128;
  spec.read_as_values = name.find("read") != name.npos;
  spec.keeps_transpose = name.find("uncached") == name.npos;
  return spec;
}

// A bias of a router: no gradient, and values of which no bit is lost.
TEST(Residency, OfATrackedParameterThereAreValuesInF32) {
  ParameterSpec spec = spec_of("plain");
  spec.tracked = spec.frozen = true;
  for (const DType compute : {DType::bf16, DType::f32, DType::f64}) {
    const Storage storage{.compute = compute};
    EXPECT_EQ(places_of(spec, storage, {}, {}), "awaaaaaa");
    EXPECT_EQ(residency(Copy::values, spec, storage, {}, {}).dtype, DType::f32);
  }
}

// The oracle is written by hand. Columns of `places`: master, values, rowwise, columnwise, row_order, gradient, two moments.
TEST(Residency, FollowsTheTable) {
  constexpr Division kOne{}, kTensor{.tensor = 2}, kShards{.shards = 4, .dense_shards = 4},
      kBoth{.shards = 4, .dense_shards = 4, .tensor = 2}, kExpert{.shards = 1, .dense_shards = 4},
      kElsewhere{.held = false, .shards = 2, .dense_shards = 4};
  constexpr auto kept = Weights::kept, resharded = Weights::resharded;
  const struct {
    const char* kind;
    Division division;
    Weights weights;
    const char* with_master;
    const char* without;
  } cases[] = {
      {"plain", kOne, kept, "wwaaawww", "awaaawww"},
      {"plain", kOne, resharded, "wwaaawww", "awaaawww"},
      {"plain", kTensor, kept, "wwaaawww", "awaaawww"},
      {"plain", kShards, kept, "pwaaawpp", "awaaawpp"},
      {"plain", kShards, resharded, "psaaawpp", "asaaawpp"},
      {"plain", kExpert, resharded, "wwaaawww", "awaaawww"},
      {"plain", kElsewhere, kept, "aaaaaaaa", "aaaaaaaa"},
      {"tensor", kOne, kept, "wawwawww", "awwwawww"},
      {"tensor", kTensor, kept, "wawwawww", "awwwawww"},
      {"tensor", kShards, kept, "pawwawpp", "apwwawpp"},
      {"tensor", kShards, resharded, "pasaawpp", "apsaawpp"},
      {"tensor", kBoth, kept, "pawwawpp", "apwwawpp"},
      {"tensor", kExpert, kept, "wawwawww", "awwwawww"},
      {"tensor", kExpert, resharded, "wawaawww", "awwaawww"},
      {"tensor", kElsewhere, resharded, "aaaaaaaa", "aaaaaaaa"},
      {"tensor read", kOne, kept, "wwwwawww", "awwwawww"},
      {"tensor read", kShards, kept, "pwwwawpp", "awwwawpp"},
      {"tensor read", kShards, resharded, "pssaawpp", "assaawpp"},
      {"tensor uncached", kOne, kept, "wawaawww", "awwaawww"},
      {"tensor uncached", kShards, kept, "pawaawpp", "apwaawpp"},
      {"block", kOne, kept, "wawwawww", "awwwawww"},
      {"block", kShards, kept, "pawwawpp", "apwwawpp"},
      {"block", kShards, resharded, "pasaawpp", "apsaawpp"},
      {"row", kOne, kept, "wawwawww", "awwwawww"},
      {"row", kTensor, kept, "wawwwwww", "awwwwwww"},
      {"row", kShards, kept, "pawwwwpp", "apwwwwpp"},
      {"row", kShards, resharded, "pasaswpp", "apsaswpp"},
      {"row", kBoth, resharded, "pasaswpp", "apsaswpp"},
      {"row", kExpert, kept, "wawwwwww", "awwwwwww"},
      {"row", kExpert, resharded, "wawawwww", "awwawwww"},
      {"row uncached", kShards, kept, "pawawwpp", "apwawwpp"},
      {"mx", kOne, kept, "wawwawww", "awwwawww"},
      {"mx", kTensor, kept, "wawwwwww", "awwwwwww"},
      {"mx", kShards, kept, "pawwwwpp", "apwwwwpp"},
      {"mx", kShards, resharded, "pasaswpp", "apsaswpp"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(concat(c.kind, " shards ", c.division.shards, " of ", c.division.dense_shards, " tensor ", c.division.tensor,
                        c.weights == kept ? " kept" : " resharded"));
    const ParameterSpec spec = spec_of(c.kind);
    for (const bool master : {true, false}) {
      std::string expected = master ? c.with_master : c.without;
      Layout layout{.weights = c.weights};
      EXPECT_EQ(places_of(spec, {.master_weights = master}, layout, c.division), expected);
      // Sharded gradients change one column, and only of parameters with several shards.
      layout.gradients = Gradients::sharded;
      if (c.division.held && c.division.shards > 1) expected[5] = 's';
      EXPECT_EQ(places_of(spec, {.master_weights = master}, layout, c.division), expected);
      // Without training the last three columns are absent.
      expected.replace(5, 3, "aaa");
      for (const std::size_t offload_slot : {0, 4096}) {
        const Storage storage{.master_weights = master, .training = false, .offload_slot = offload_slot};
        EXPECT_EQ(places_of(spec, storage, layout, c.division), expected);
      }
      // With offload, masters and moments lie in the host, and codes are cast from values on the device.
      std::string offloaded = master ? c.with_master : c.without;
      if (c.division.held) offloaded.replace(6, 2, "hh");
      if (c.division.held && master) offloaded[0] = 'h';
      if (c.division.held && offloaded[1] == 'a') offloaded[1] = c.division.shards == 1 ? 'w' : 'p';
      EXPECT_EQ(places_of(spec, {.master_weights = master, .offload_slot = 4096}, {.weights = c.weights}, c.division), offloaded);
      // Values of F32 and F64 are the primary themselves, whatever master_weights says.
      const std::string primary = std::string(c.without).substr(0, 5);
      for (const DType compute : {DType::f32, DType::f64}) {
        EXPECT_EQ(places_of(spec, {.compute = compute, .master_weights = master}, layout, c.division).substr(0, 5), primary);
      }
    }
  }
}

// A frozen parameter has no master, no gradient and no moments, with any settings of the optimizer. Its codes are its primary.
TEST(Residency, FreezesParameters) {
  constexpr Division kOne{}, kTensor{.tensor = 2}, kShards{.shards = 4, .dense_shards = 4},
      kElsewhere{.held = false, .shards = 2, .dense_shards = 4};
  const struct {
    const char* kind;
    Division division;
    Weights weights;
    const char* places;
  } cases[] = {
      {"plain", kOne, Weights::kept, "awaaaaaa"},           {"plain", kShards, Weights::kept, "awaaaaaa"},
      {"plain", kShards, Weights::resharded, "asaaaaaa"},   {"plain", kElsewhere, Weights::kept, "aaaaaaaa"},
      {"tensor", kOne, Weights::kept, "aawwaaaa"},          {"tensor", kTensor, Weights::kept, "aawwaaaa"},
      {"tensor", kShards, Weights::kept, "aawwaaaa"},       {"tensor", kShards, Weights::resharded, "aasaaaaa"},
      {"tensor uncached", kOne, Weights::kept, "aawaaaaa"}, {"tensor read", kOne, Weights::kept, "awwwaaaa"},
      {"block", kShards, Weights::resharded, "aasaaaaa"},   {"row", kOne, Weights::kept, "aawwaaaa"},
      {"row", kShards, Weights::resharded, "aasasaaa"},
  };
  for (const auto& c : cases) {
    ParameterSpec spec = spec_of(c.kind);
    spec.frozen = true;
    for (const bool master : {true, false}) {
      for (const std::size_t offload_slot : {0, 4096}) {
        for (const Gradients gradients : {Gradients::whole, Gradients::sharded}) {
          const Storage storage{.master_weights = master, .offload_slot = offload_slot};
          EXPECT_EQ(places_of(spec, storage, {.weights = c.weights, .gradients = gradients}, c.division), c.places) << c.kind;
        }
      }
    }
  }
}

TEST(Residency, GivesEachCopyItsDtype) {
  const Storage storage{.moments = DType::bf16};
  const Division shards{.shards = 2, .dense_shards = 2};
  ParameterSpec spec = spec_of("tensor read");
  spec.quant->format = Fp8Format::e5m2;
  const auto dtype = [&](Copy copy) { return residency(copy, spec, storage, {}, shards).dtype; };
  EXPECT_EQ(dtype(Copy::master), DType::f32);
  EXPECT_EQ(dtype(Copy::values), DType::bf16);
  EXPECT_EQ(dtype(Copy::rowwise), DType::f8_e5m2);
  EXPECT_EQ(dtype(Copy::columnwise), DType::f8_e5m2);
  EXPECT_EQ(dtype(Copy::moment1), DType::bf16);
  EXPECT_EQ(dtype(Copy::moment2), DType::bf16);
}

// A shard of a gradient is BF16 only if nothing is ever added to it: sharded, one micro-batch, no tensor axis, exchanged in BF16.
TEST(Residency, KeepsAGradientAsItCameOnlyIfNothingIsAdded) {
  for (int bits = 0; bits < 32; ++bits) {
    const bool sharded = bits & 1, one_batch = bits & 2, bf16 = bits & 4, no_tensor = bits & 8, several = bits & 16;
    SCOPED_TRACE(bits);
    const Layout layout{.gradients = sharded ? Gradients::sharded : Gradients::whole,
                        .reduce = bf16 ? DType::bf16 : DType::f32,
                        .accumulates = !one_batch};
    const Division division{.shards = several ? 2 : 1, .dense_shards = 2, .tensor = no_tensor ? 1 : 2};
    const Held held = residency(Copy::gradient, spec_of("plain"), {}, layout, division);
    EXPECT_EQ(held.dtype, bits == 31 ? DType::bf16 : DType::f32);
    EXPECT_EQ(held.place, sharded && several ? Place::slot : Place::whole);
  }
}

}  // namespace
}  // namespace octet::parallel
