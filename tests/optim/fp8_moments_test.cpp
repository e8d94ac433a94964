// Moments in FP8 on ranks that hold shards, rows or columns of parameters: groups of 128 elements count in the whole parameter,
// so codes and scales are those of one rank.
#include "octet/kernels/adamw/fp8_moments.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/rng.h"
#include "octet/optim/optimizer.h"
#include "octet/parallel/groups.h"

namespace octet::optim {
namespace {

using parallel::Cut;
using parallel::Mesh;
using parallel::Parameter;
using parallel::ParameterStore;

// The optimizer of one rank. Gradients are a function of step, name and element.
struct Rank {
  Rank(const Mesh& mesh, int rank)
      : groups(parallel::silent_groups(mesh, rank)), store({groups.tensor->rank(), groups.tensor->size()}) {
    const auto add = [&](const char* name, Shape shape, parallel::CutRule cut) {
      store.add({.name = name, .shape = std::move(shape), .cut = std::move(cut)});
    };
    add("rows", {512, 256}, {.along = Cut::rows});
    add("columns", {24, 512}, {.along = Cut::columns});
    add("fused", {96, 128}, {.along = Cut::rows, .part_rows = {48, 24, 24}, .least_rows = 12});
    add("bias", {1536}, {.along = Cut::rows, .part_rows = {512, 1024}});
    add("norm", {100}, {});
    add("odd", {10, 33}, {});
    store.materialise(*device, {.moments = DType::f8_e4m3}, &groups, {.mesh = mesh});
    store.initialise(*stream, 1);
    optimizer = std::make_unique<Optimizer>(*device, store, OptimizerOptions{.max_grad_norm = 0, .seed = 3});
  }
  void step(std::uint32_t number) {
    for (Parameter& p : store.parameters()) {
      const Rng rng(number, RngStream::test, name_id(p.spec.name));
      for (const parallel::TensorPiece& piece : p.pieces()) {
        for_runs(piece, p.cut.global(), [&](std::int64_t global, std::int64_t local, std::int64_t count) {
          for (std::int64_t i = 0; i < count; ++i) {
            p.grad_shard.as<float>()[local - p.first_element + i] =
                static_cast<float>(rng.normal(static_cast<std::uint64_t>(global + i)));
          }
        });
      }
    }
    optimizer->reset_sums(*stream);
    optimizer->loss_total()[1] = 4;
    optimizer->add_squares(*stream, scratch, store.all_units());
    optimizer->prepare(*stream, {.learning_rate = 0.01, .step = number});
    optimizer->update(*stream);
  }

  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream = device->make_stream();
  Arena scratch{*device, MemoryCategory::workspace, 1 << 20};
  parallel::Groups groups;
  ParameterStore store;
  std::unique_ptr<Optimizer> optimizer;
};

TEST(Fp8Moments, OfPartsAreThoseOfTheWhole) {
  constexpr std::uint32_t kSteps = 3;
  Rank one(Mesh({1, 1, 1, 1}), 0);
  for (std::uint32_t step = 1; step <= kSteps; ++step) one.step(step);
  for (const Mesh& mesh : {Mesh({1, 3, 1, 1}), Mesh({1, 1, 1, 2}), Mesh({1, 2, 1, 4}), Mesh({2, 2, 2, 1})}) {
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      Rank part(mesh, rank);
      for (std::uint32_t step = 1; step <= kSteps; ++step) part.step(step);
      for (std::size_t i = 0; i < one.store.parameters().size(); ++i) {
        const Parameter &p = part.store.parameters()[i], &whole = one.store.parameters()[i];
        const auto expect = [&](const Tensor& actual, const Tensor& expected, const parallel::TensorCut& cut, std::int64_t first,
                                const char* what) {
          const std::size_t size = size_of(actual.dtype);
          for (const parallel::TensorPiece& piece : cut.pieces(first, actual.elements())) {
            for_runs(piece, cut.global(), [&](std::int64_t global, std::int64_t local, std::int64_t count) {
              ASSERT_EQ(std::memcmp(actual.as_bytes() + static_cast<std::size_t>(local - first) * size,
                                    expected.as_bytes() + static_cast<std::size_t>(global) * size,
                                    static_cast<std::size_t>(count) * size),
                        0)
                  << p.spec.name << " " << what << " from " << global << ", rank " << rank << " of " << mesh.ranks();
            });
          }
        };
        expect(p.primary(), whole.primary(), p.cut, p.first_element, "weights");
        expect(p.moment1, whole.moment1, p.cut, p.first_element, "moment1");
        expect(p.moment2, whole.moment2, p.cut, p.first_element, "moment2");
        const std::int64_t first = kernels::moment_scales(p.first_element);
        ASSERT_EQ(p.scale_cut.global(), whole.scale_cut.global()) << p.spec.name;
        expect(p.moment1_scale, whole.moment1_scale, p.scale_cut, first, "moment1_scale");
        expect(p.moment2_scale, whole.moment2_scale, p.scale_cut, first, "moment2_scale");
      }
    }
  }
}

// Each rank's eight rows of 16 are a whole group, but one of several rows.
TEST(Fp8Moments, RefuseRowsThatAreNotWholeGroups) {
  const Mesh mesh({1, 1, 1, 2});
  for (const auto& [shape, along] : {std::pair{Shape{16, 128}, Cut::columns}, std::pair{Shape{16, 24}, Cut::rows},
                                     std::pair{Shape{16, 16}, Cut::rows}, std::pair{Shape{128}, Cut::rows}}) {
    const parallel::Groups groups = parallel::silent_groups(mesh, 1);
    const auto device = make_device(DeviceKind::meta);
    ParameterStore store({1, 2});
    store.add({.name = "w", .shape = shape, .cut = {.along = along}});
    try {
      store.materialise(*device, {.moments = DType::f8_e4m3}, &groups, {.mesh = mesh});
      ADD_FAILURE() << "not refused: " << shape;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("optimizer.state_dtype = \"fp8\" with a tensor axis of 2 ranks: of each row of w"),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace octet::optim
