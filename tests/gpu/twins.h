// Shared by the GPU tests: runs the same op on the same bytes on the CPU, which is the reference, and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "octet/base/rng.h"
#include "octet/device/arena.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/tensor/host_tensor.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"
#include "support/near.h"

namespace octet::testing {

// A tensor in host memory and its copy on the GPU.
struct Twin {
  Tensor cpu, gpu;
};

struct QuantizedTwin {
  Quantized cpu, gpu;
};

class TwinTest : public ::testing::Test {
 protected:
  // Returns a tensor of zeros on both sides.
  Twin zeros(DType dtype, Shape shape) { return {make(*cpu, dtype, shape), make(*gpu, dtype, shape)}; }
  // Fills both sides with a byte that no result should have, so that an element that is not written shows.
  Twin poisoned(DType dtype, Shape shape) {
    Twin t = zeros(dtype, shape);
    std::memset(t.cpu.data, 0x5A, t.cpu.bytes());
    upload(t);
    return t;
  }
  Twin filled(DType dtype, Shape shape, const std::function<double(std::int64_t)>& value) {
    const Twin t = zeros(dtype, shape);
    visit_float(dtype, [&]<class T>() {
      for (std::int64_t i = 0; i < t.cpu.elements(); ++i) t.cpu.as<T>()[i] = static_cast<T>(static_cast<Real<T>>(value(i)));
    });
    upload(t);
    return t;
  }
  // Returns normally distributed values with this standard deviation. Every call draws other numbers.
  Twin random(DType dtype, Shape shape, double deviation = 1.0) {
    const Rng rng(11, RngStream::test, ++draws_);
    return filled(dtype, shape, [&](std::int64_t i) { return deviation * rng.normal(static_cast<std::uint64_t>(i)); });
  }
  // Returns integers in [0, below).
  Twin tokens(std::int64_t count, std::int64_t below) {
    const Rng rng(11, RngStream::test, ++draws_);
    const Twin t = zeros(DType::i32, {count});
    for (std::int64_t i = 0; i < count; ++i) {
      t.cpu.as<std::int32_t>()[i] =
          static_cast<std::int32_t>(rng.word64(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(below));
    }
    upload(t);
    return t;
  }
  // Returns poisoned codes of an operand x [rows, cols] of the recipe part `spec`, in both orientations.
  QuantizedTwin quantized(const QuantSpec& spec, std::int64_t rows, std::int64_t cols) {
    const std::int64_t padded = padded_k(rows, spec.tile);
    const Twin codes = poisoned(dtype_of(spec.format), {rows, cols}),
               columnwise = poisoned(dtype_of(spec.format), {cols, padded});
    const Twin scale_inv = poisoned(scale_dtype(spec.tile), scale_shape(spec.tile, rows, cols));
    const Twin columnwise_scale_inv =
        spec.tile == ScaleTile::tensor ? scale_inv : poisoned(scale_dtype(spec.tile), scale_shape(spec.tile, cols, padded));
    const auto side = [&](auto part) {
      return Quantized{.format = spec.format,
                       .tile = spec.tile,
                       .rowwise = part(codes),
                       .rowwise_scale_inv = part(scale_inv),
                       .columnwise = part(columnwise),
                       .columnwise_scale_inv = part(columnwise_scale_inv)};
    };
    return {side([](const Twin& t) { return t.cpu; }), side([](const Twin& t) { return t.gpu; })};
  }

  // Copies the CPU's side to the GPU.
  void upload(const Twin& t) {
    gpu_stream->copy_to_device(t.gpu.data, t.cpu.data, t.cpu.bytes());
    gpu_stream->synchronize();
  }
  // Returns a copy of the tensor in host memory.
  HostTensor fetch(const Tensor& tensor) { return to_host(*gpu_stream, tensor); }

  // Expects the same bytes on both sides.
  void expect_same_bytes(const Tensor& expected, const Tensor& on_gpu, const std::string& what) {
    const HostTensor actual = fetch(on_gpu);
    EXPECT_TRUE(same_bytes(actual.view(), expected)) << what;
  }
  void expect_same_bytes(const Twin& t, const std::string& what) { expect_same_bytes(t.cpu, t.gpu, what); }
  void expect_same_bytes(const QuantizedTwin& q, const std::string& what) {
    expect_same_bytes(q.cpu.rowwise, q.gpu.rowwise, what + " codes");
    expect_same_bytes(q.cpu.columnwise, q.gpu.columnwise, what + " codes_t");
    expect_same_bytes(q.cpu.rowwise_scale_inv, q.gpu.rowwise_scale_inv, what + " scale_inv");
    if (q.cpu.tile != ScaleTile::tensor)
      expect_same_bytes(q.cpu.columnwise_scale_inv, q.gpu.columnwise_scale_inv, what + " scale_inv_t");
  }
  void expect_near(const Twin& t, const Tolerance& tolerance, const std::string& what) {
    const HostTensor actual = fetch(t.gpu);
    EXPECT_TRUE(near(actual.view(), values_of(t.cpu), tolerance)) << what;
  }

  std::unique_ptr<Device> cpu = make_device(DeviceKind::cpu), gpu = make_device(DeviceKind::cuda);
  std::unique_ptr<Stream> cpu_stream = cpu->make_stream(), gpu_stream = gpu->make_stream();
  Arena cpu_scratch{*cpu, MemoryCategory::workspace, std::size_t{1} << 28};
  Arena gpu_scratch{*gpu, MemoryCategory::workspace, std::size_t{1} << 30};

 private:
  Tensor make(Device& device, DType dtype, Shape shape) {
    buffers_.push_back(device.allocate(bytes_of(dtype, shape), MemoryCategory::workspace));
    return view(buffers_.back(), dtype, shape);
  }
  std::deque<Buffer> buffers_;
  std::uint32_t draws_ = 0;
};

}  // namespace octet::testing
