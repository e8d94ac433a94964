#include "octet/tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "octet/base/require.h"
#include "octet/tensor/quantized.h"

namespace octet {
namespace {

TEST(Shape, CountsComparesAndPrints) {
  const Shape shape = {2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.elements(), 24);
  EXPECT_EQ(shape.text(), "[2, 3, 4]");
  EXPECT_EQ(shape, (Shape{2, 3, 4}));
  EXPECT_NE(shape, (Shape{2, 3, 4, 1}));
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{5, 0}).elements(), 0);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1}), Error);
}

TEST(DType, SizesAndNames) {
  const std::vector<std::tuple<DType, std::size_t, const char*>> all = {
      {DType::f64, 8, "F64"}, {DType::f32, 4, "F32"}, {DType::bf16, 2, "BF16"}, {DType::f16, 2, "F16"},
      {DType::f8_e4m3, 1, "F8_E4M3"}, {DType::f8_e5m2, 1, "F8_E5M2"}, {DType::e8m0, 1, "U8"}, {DType::i64, 8, "I64"},
      {DType::i32, 4, "I32"}, {DType::u8, 1, "U8"}};
  for (const auto& [dtype, size, name] : all) {
    EXPECT_EQ(size_of(dtype), size) << name;
    EXPECT_EQ(name_of(dtype), name);
  }
}

class Views : public ::testing::Test {
 protected:
  Views() { std::iota(memory_.begin(), memory_.end(), 0.0f); }
  std::vector<float> memory_ = std::vector<float>(24);
  Tensor tensor_{memory_.data(), DType::f32, {4, 6}};
};

TEST_F(Views, RowsAndColumnsSeeTheSameMemory) {
  EXPECT_TRUE(tensor_);
  EXPECT_FALSE(Tensor());
  EXPECT_EQ(tensor_.rows(), 4);
  EXPECT_EQ(tensor_.cols(), 6);
  EXPECT_EQ(tensor_.bytes(), 96u);
  EXPECT_TRUE(tensor_.contiguous());

  const Tensor rows = tensor_.slice_rows(1, 3);
  EXPECT_EQ(rows.shape, (Shape{2, 6}));
  EXPECT_EQ(rows.as<float>()[0], 6.0f);
  EXPECT_TRUE(rows.contiguous());

  const Tensor cols = tensor_.slice_cols(2, 5);
  EXPECT_EQ(cols.shape, (Shape{4, 3}));
  EXPECT_FALSE(cols.contiguous());
  EXPECT_EQ(cols.row_stride, 6);
  EXPECT_EQ(cols.as<float>()[cols.row_stride], 8.0f);  // row 1, column 2

  const Tensor both = cols.slice_rows(2, 4).slice_cols(1, 2);
  EXPECT_EQ(both.as<float>()[0], 15.0f);
  EXPECT_EQ(both.as<float>()[both.row_stride], 21.0f);
  both.as<float>()[0] = -1;
  EXPECT_EQ(memory_[15], -1.0f);
}

TEST_F(Views, ReshapeKeepsElementsAndNeedsContiguity) {
  const Tensor flat = tensor_.reshape({24});
  EXPECT_EQ(flat.rows(), 24);
  EXPECT_EQ(flat.cols(), 1);
  EXPECT_EQ(tensor_.reshape({2, 3, 4}).cols(), 12);
  EXPECT_THROW(tensor_.reshape({5, 5}), Error);
  EXPECT_THROW(tensor_.slice_cols(0, 3).reshape({12}), Error);
}

TEST_F(Views, WrongBoundsAndTypesAreRefused) {
  EXPECT_THROW(tensor_.slice_rows(2, 5), Error);
  EXPECT_THROW(tensor_.slice_rows(3, 2), Error);
  EXPECT_THROW(tensor_.slice_rows(-1, 2), Error);
  EXPECT_THROW(tensor_.slice_cols(0, 7), Error);
  EXPECT_THROW(tensor_.reshape({24}).slice_cols(0, 1), Error);
  EXPECT_THROW(tensor_.as<double>(), Error);
  EXPECT_EQ(tensor_.slice_rows(4, 4).elements(), 0);
}

TEST(Tensor, OfBuffersAndArenas) {
  const auto device = make_device(DeviceKind::cpu);
  const Buffer buffer = device->allocate(100, MemoryCategory::workspace);
  EXPECT_EQ(view(buffer, DType::f32, {5, 5}).elements(), 25);
  EXPECT_THROW(view(buffer, DType::f32, {33, 2}), Error);  // too large even if the buffer is rounded up to 256 bytes
  Arena arena(*device, MemoryCategory::workspace, 1024);
  EXPECT_EQ(allocate(arena, DType::bf16, {16, 16}).bytes(), 512u);
  EXPECT_THROW(allocate(arena, DType::f64, {16, 16}), Error);
}

TEST(VisitFloat, FindsTheType) {
  const auto size = [](DType dtype) { return visit_float(dtype, []<class T>() { return sizeof(T); }); };
  EXPECT_EQ(size(DType::f64), 8u);
  EXPECT_EQ(size(DType::f32), 4u);
  EXPECT_EQ(size(DType::bf16), 2u);
  EXPECT_THROW(size(DType::i32), Error);
  EXPECT_THROW(size(DType::f8_e4m3), Error);
}

TEST(Quantized, ShapesOfScales) {
  EXPECT_EQ(scale_shape(ScaleTile::tensor, 300, 200), (Shape{1}));
  EXPECT_EQ(scale_shape(ScaleTile::row, 300, 200), (Shape{300}));
  EXPECT_EQ(scale_shape(ScaleTile::block_1x128, 300, 200), (Shape{2, 300}));
  EXPECT_EQ(scale_shape(ScaleTile::block_128x128, 300, 200), (Shape{3, 2}));
  EXPECT_EQ(scale_shape(ScaleTile::mx_1x32, 300, 200), (Shape{300, 7}));
  EXPECT_EQ(padded_k(1, ScaleTile::tensor), 16);
  EXPECT_EQ(padded_k(128, ScaleTile::mx_1x32), 128);
  EXPECT_EQ(padded_k(129, ScaleTile::block_1x128), 256);
  EXPECT_EQ(scale_dtype(ScaleTile::mx_1x32), DType::e8m0);
  EXPECT_EQ(scale_dtype(ScaleTile::row), DType::f32);
}

}  // namespace
}  // namespace octet
