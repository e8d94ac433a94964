#include "octet/tensor/host_tensor.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/near.h"

namespace octet {
namespace {

using testing::values_of;
using Values = std::vector<double>;

struct HostTensors : ::testing::Test {
  Tensor counted(DType dtype, Shape shape) {
    buffers.push_back(device->allocate(bytes_of(dtype, shape), MemoryCategory::workspace));
    const Tensor result = view(buffers.back(), dtype, shape);
    for (std::int64_t i = 0; i < result.elements(); ++i) {
      if (dtype == DType::f32) {
        result.as<float>()[i] = static_cast<float>(i);
      } else {
        result.as_bytes()[i] = static_cast<std::uint8_t>(i);
      }
    }
    return result;
  }
  static std::vector<int> bytes_of_host(const HostTensor& t) {
    return {reinterpret_cast<const std::uint8_t*>(t.view().data),
            reinterpret_cast<const std::uint8_t*>(t.view().data) + t.bytes()};
  }

  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream = device->make_stream();
  std::vector<Buffer> buffers;
};

TEST_F(HostTensors, CopiesPackStridedRows) {
  const Tensor whole = counted(DType::f32, {3, 5});
  EXPECT_EQ(values_of(to_host(*stream, whole.slice_cols(1, 3)).view()), (Values{1, 2, 6, 7, 11, 12}));
  EXPECT_EQ(values_of(to_host(*stream, whole.slice_rows(2, 3)).view()), (Values{10, 11, 12, 13, 14}));
  const HostTensor copy = to_host(*stream, whole);
  whole.as<float>()[0] = 99;
  EXPECT_EQ(values_of(copy.view())[0], 0) << "a copy owns its elements";
  EXPECT_EQ(to_host(*stream, counted(DType::f32, {2, 3, 4})).shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(to_host(*stream, counted(DType::f32, {7})).shape(), Shape{7});
}

TEST_F(HostTensors, EmptyOnesHaveNoBytes) {
  EXPECT_EQ(HostTensor().bytes(), 0u);
  EXPECT_EQ(to_host(*stream, counted(DType::f32, {4, 0})).bytes(), 0u);
}

// Files hold scales in the order of rows and without padding, whatever layout the GEMMs need.
TEST_F(HostTensors, ScalesOfBlocksStandByRows) {
  Quantized q{.tile = ScaleTile::block_1x128,
              .rowwise = counted(DType::f8_e4m3, {2, 300}),
              .rowwise_scale_inv = counted(DType::f32, {3, 2})};
  q.columnwise = counted(DType::f8_e4m3, {300, 128});
  q.columnwise_scale_inv = counted(DType::f32, {1, 300});
  const HostQuantized host = to_host(*stream, q, 2, 300);
  EXPECT_EQ(host.codes.shape(), (Shape{2, 300}));
  EXPECT_EQ(host.scale_inv.shape(), (Shape{2, 3}));
  EXPECT_EQ(values_of(host.scale_inv.view()), (Values{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(host.columnwise.shape(), (Shape{300, 2})) << "126 columns of padding are gone";
  EXPECT_EQ(host.columnwise.dtype(), DType::f8_e4m3);
  EXPECT_EQ(bytes_of_host(host.columnwise)[0], 0);
  EXPECT_EQ(bytes_of_host(host.columnwise)[1], 1);
  EXPECT_EQ(bytes_of_host(host.columnwise)[2], 128) << "the second row";
  EXPECT_EQ(host.columnwise_scale_inv.shape(), (Shape{300, 1}));
}

TEST_F(HostTensors, ScalesOfMxLoseTheirPadding) {
  Quantized q{.tile = ScaleTile::mx_1x32, .rowwise = {}, .rowwise_scale_inv = {}};
  q.columnwise = counted(DType::f8_e4m3, {3, 128});
  q.columnwise_scale_inv = counted(DType::e8m0, {3, 4});  // for 128 tokens, 40 of which are real
  const HostQuantized host = to_host(*stream, q, 40, 3);
  EXPECT_EQ(host.codes.bytes(), 0u) << "an absent part is empty";
  EXPECT_EQ(host.scale_inv.bytes(), 0u);
  EXPECT_EQ(host.columnwise.shape(), (Shape{3, 40}));
  EXPECT_EQ(host.columnwise_scale_inv.shape(), (Shape{3, 2}));
  EXPECT_EQ(host.columnwise_scale_inv.dtype(), DType::e8m0);
  EXPECT_EQ(bytes_of_host(host.columnwise_scale_inv), (std::vector<int>{0, 1, 4, 5, 8, 9}));
}

TEST_F(HostTensors, ScalesOfRowsTensorsAndSquareBlocks) {
  Quantized row{
      .tile = ScaleTile::row, .rowwise = counted(DType::f8_e4m3, {4, 16}), .rowwise_scale_inv = counted(DType::f32, {4})};
  EXPECT_EQ(to_host(*stream, row, 4, 16).scale_inv.shape(), (Shape{4, 1}));
  Quantized tensor{.format = Fp8Format::e5m2, .tile = ScaleTile::tensor, .rowwise = counted(DType::f8_e5m2, {4, 16})};
  tensor.rowwise_scale_inv = counted(DType::f32, {1});
  EXPECT_EQ(to_host(*stream, tensor, 4, 16).scale_inv.shape(), Shape{1});
  EXPECT_EQ(to_host(*stream, tensor, 4, 16).codes.dtype(), DType::f8_e5m2);
  Quantized square{.tile = ScaleTile::block_128x128, .rowwise = counted(DType::f8_e4m3, {144, 272})};
  square.rowwise_scale_inv = counted(DType::f32, {2, 3});
  EXPECT_EQ(values_of(to_host(*stream, square, 144, 272).scale_inv.view()), (Values{0, 1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace octet
