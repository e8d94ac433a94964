// A fixture for the tests of single ops: a CPU device, tensors on it, and calls that compare several numbers of threads.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/rng.h"
#include "octet/base/threads.h"
#include "octet/device/arena.h"
#include "octet/tensor/tensor.h"
#include "support/near.h"

namespace octet::testing {

class OpTest : public ::testing::Test {
 protected:
  ~OpTest() override { set_num_threads(available_cores()); }

  Tensor zeros(DType dtype, Shape shape) {
    buffers_.push_back(device->allocate(bytes_of(dtype, shape), MemoryCategory::workspace));
    return view(buffers_.back(), dtype, shape);
  }
  Tensor filled(DType dtype, Shape shape, const std::function<double(std::int64_t)>& value) {
    const Tensor result = zeros(dtype, shape);
    visit_float(dtype, [&]<class T>() {
      for (std::int64_t i = 0; i < result.elements(); ++i) result.as<T>()[i] = static_cast<T>(static_cast<Real<T>>(value(i)));
    });
    return result;
  }
  // Draws normal numbers with this standard deviation. Every call draws new ones.
  Tensor random(DType dtype, Shape shape, double deviation = 1.0) {
    const Rng rng(7, RngStream::test, ++draws_);
    return filled(dtype, shape, [&](std::int64_t i) { return deviation * rng.normal(static_cast<std::uint64_t>(i)); });
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor result = zeros(DType::i32, {static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), result.as<std::int32_t>());
    return result;
  }
  Tensor copy(const Tensor& tensor) {
    const Tensor result = zeros(tensor.dtype, tensor.shape);
    const std::size_t row = static_cast<std::size_t>(tensor.cols()) * size_of(tensor.dtype);
    for (std::int64_t r = 0; r < tensor.rows(); ++r) {
      std::memcpy(result.as_bytes() + static_cast<std::size_t>(r) * row, tensor.slice_rows(r, r + 1).data, row);
    }
    return result;
  }
  // Runs `op` with 1, 2 and 3 threads and expects the same bytes. `op` must make fresh results each time.
  void expect_same_for_any_threads(const std::function<std::vector<Tensor>()>& op) {
    set_num_threads(1);
    const std::vector<Tensor> expected = op();
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      const std::vector<Tensor> actual = op();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(same_bytes(actual[i], expected[i])) << threads << " threads, result " << i;
      }
    }
  }
  // Runs `op` and expects an internal error whose message contains `text`.
  static void expect_refusal(const std::function<void()>& op, const std::string& text) {
    try {
      op();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
      return;
    }
    ADD_FAILURE() << "not refused: " << text;
  }

  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream = device->make_stream();
  Arena scratch{*device, MemoryCategory::workspace, std::size_t{1} << 24};
  // The same program on the meta device, whose addresses must not be dereferenced.
  std::unique_ptr<Device> meta = make_device(DeviceKind::meta);
  std::unique_ptr<Stream> meta_stream = meta->make_stream();
  Arena meta_scratch{*meta, MemoryCategory::workspace, 0};

 private:
  std::deque<Buffer> buffers_;
  std::uint32_t draws_ = 0;
};

// The largest relative error of rounding once to this storage type.
inline double storage_roundoff(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f32 ? 0x1p-24 : 0x1p-53; }
// The roundoff of the arithmetic on this storage type.
inline double compute_roundoff(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : 0x1p-24; }

constexpr DType kFloatTypes[] = {DType::f64, DType::f32, DType::bf16};

}  // namespace octet::testing
