// `octet bench kernels`: times the memory-bound ops of a training step on a GPU and compares each with a copy of the bytes that
// it must read and write.
#include <fmt/format.h>

#include "octet/app/bench.h"
#include "octet/app/ceilings.h"
#include "octet/app/commands.h"
#include "octet/base/require.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/adamw/adamw.h"
#include "octet/kernels/bit_sums/bit_sums.h"
#include "octet/kernels/column_sums/column_sums.h"
#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/embedding/embedding.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/gelu/gelu.h"
#include "octet/kernels/layernorm/layernorm.h"
#include "octet/kernels/norm/norm.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/shard.h"
#include "octet/kernels/rmsnorm/rmsnorm.h"
#include "octet/kernels/rope/rope.h"
#include "octet/kernels/swiglu/swiglu.h"

namespace octet::app {
namespace {

// Llama 3.1 8B at 8192 tokens.
constexpr std::int64_t kTokens = 8192, kDim = 4096, kFfn = 14336, kHeadDim = 128, kQkv = 6144, kRotated = 5120;
constexpr std::int64_t kVocab = 128256, kLogitRows = 2048, kParameters = std::int64_t{1} << 28;

class KernelBench {
 public:
  void run() {
    copying();
    for (const auto& [name, spec] : kSpecs) {
      cast_of(name, spec);
      producers_of(name, spec);
    }
    values();
    optimizer();
    for (const auto& [name, spec] : kWeightSpecs) shards_of(name, spec);
    sums();
  }
  const std::vector<BenchRow>& rows() const { return rows_; }

 private:
  static constexpr std::pair<const char*, QuantSpec> kSpecs[] = {
      {"delayed", {.tile = ScaleTile::tensor, .source = ScaleSource::history}},
      {"current", {.tile = ScaleTile::tensor}},
      {"row", {.tile = ScaleTile::row}},
      {"1x128", {.tile = ScaleTile::block_1x128, .power_of_2 = true}},
  };

  static constexpr std::pair<const char*, QuantSpec> kWeightSpecs[] = {
      {"delayed", {.tile = ScaleTile::tensor, .source = ScaleSource::history}},
      {"current", {.tile = ScaleTile::tensor}},
      {"row", {.tile = ScaleTile::row}},
      {"128x128", {.tile = ScaleTile::block_128x128, .power_of_2 = true}},
      {"MX", {.tile = ScaleTile::mx_1x32}},
  };

  Tensor random(DType dtype, Shape shape) {
    const Tensor x = allocate(data_, dtype, shape);
    kernels::fill_normal(*stream_,
                         {.x = Tensor(x.data, dtype, {x.elements()}), .deviation = 1.0, .seed = 1, .subject = ++draws_});
    return x;
  }
  Tensor empty(DType dtype, Shape shape) { return allocate(data_, dtype, shape); }
  kernels::QuantizeEpilogue codes(const QuantSpec& spec, std::int64_t rows, std::int64_t cols) {
    kernels::QuantizeEpilogue to{.spec = spec, .out = {.format = spec.format, .tile = spec.tile}};
    to.out.rowwise = empty(dtype_of(spec.format), {rows, cols});
    to.out.rowwise_scale_inv = empty(scale_dtype(spec.tile), scale_shape(spec.tile, rows, cols));
    to.out.columnwise = empty(dtype_of(spec.format), {cols, rows});
    to.out.columnwise_scale_inv = spec.tile == ScaleTile::tensor
                                      ? to.out.rowwise_scale_inv
                                      : empty(scale_dtype(spec.tile), scale_shape(spec.tile, cols, rows));
    if (spec.source == ScaleSource::history) {
      const float one = 1.0f;
      const Tensor scale = empty(DType::f32, {1}), amax = empty(DType::f32, {1});
      stream_->copy_to_device(scale.data, &one, sizeof one);
      stream_->zero(amax.data, amax.bytes());
      to.scale = scale.as<float>();
      to.amax = amax.as<float>();
    }
    return to;
  }
  // The mean of 20 calls after 3 others, by the GPU's clock.
  void time(const std::string& name, double bytes, const std::function<void()>& op) {
    constexpr int kCalls = 20;
    for (int i = 0; i < 3; ++i) op();
    stream_->start_profile();
    for (int i = 0; i < kCalls; ++i) op();
    double seconds = 0;
    for (const OpTime& t : stream_->take_profile()) seconds += t.seconds / kCalls;
    add(name, bytes, seconds);
  }
  void add(const std::string& name, double bytes, double seconds) {
    rows_.push_back({.name = name,
                     .seconds = seconds,
                     .rate = bytes / seconds * 1e-9,
                     .unit = "GB/s",
                     .ceiling = copy_bytes_per_second(gpu_) * 1e-9,
                     .against = "copy"});
  }

  // Measures how near this GPU itself comes to the reference rate.
  void copying() {
    constexpr int kCopies = 10;
    const ArenaScope used(data_);
    const Tensor from = random(DType::bf16, {4 * kParameters}), to = empty(DType::bf16, {4 * kParameters});
    const double seconds = shortest_time([&] {
                             for (int i = 0; i < kCopies; ++i) stream_->copy(to.data, from.data, from.bytes());
                             stream_->synchronize();
                           }) /
                           kCopies;
    add("copy of 2 GiB", 2 * static_cast<double>(from.bytes()), seconds);
  }

  // The bytes are those of x once, and of the codes in both directions.
  void cast_of(const std::string& name, const QuantSpec& spec) {
    for (const std::int64_t cols : {kDim, kFfn, 2 * kFfn}) {
      const ArenaScope used(data_);
      const Tensor x = random(DType::bf16, {kTokens, cols});
      const kernels::QuantizeEpilogue to = codes(spec, kTokens, cols);
      time(fmt::format("cast + transpose {} [{}, {}]", name, kTokens, cols), static_cast<double>(x.bytes() + written_bytes(to)),
           [&] { kernels::quantize(*stream_, scratch_, to.of(x)); });
    }
  }

  void producers_of(const std::string& name, const QuantSpec& spec) {
    {
      const ArenaScope used(data_);
      const Tensor x = random(DType::bf16, {kTokens, kDim}), weight = random(DType::bf16, {kDim});
      const Tensor rstd = empty(DType::f32, {kTokens}), gy = random(DType::bf16, {kTokens, kDim});
      const Tensor gx = random(DType::bf16, {kTokens, kDim}), gweight = empty(DType::f32, {kDim});
      const kernels::QuantizeEpilogue to = codes(spec, kTokens, kDim);
      const auto bytes = static_cast<double>(x.bytes());
      time("rmsnorm to " + name, 2 * bytes,
           [&] { kernels::rmsnorm_forward(*stream_, scratch_, {.x = x, .weight = weight, .y = {}, .codes = to, .rstd = rstd}); });
      time("rmsnorm backward to " + name, 5 * bytes, [&] {
        kernels::rmsnorm_backward(*stream_, scratch_,
                                  {.gy = gy, .x = x, .weight = weight, .rstd = rstd, .gx = gx, .gweight = gweight, .codes = to});
      });
    }
    {
      const ArenaScope used(data_);
      const Tensor gate_up = random(DType::bf16, {kTokens, 2 * kFfn}), gy = random(DType::bf16, {kTokens, kFfn});
      const auto bytes = static_cast<double>(gy.bytes());
      const kernels::QuantizeEpilogue to = codes(spec, kTokens, kFfn), both = codes(spec, kTokens, 2 * kFfn);
      time("swiglu to " + name, 3 * bytes,
           [&] { kernels::swiglu_forward(*stream_, scratch_, {.gate_up = gate_up, .y = {}, .codes = to}); });
      time("swiglu backward to " + name, 5 * bytes,
           [&] { kernels::swiglu_backward(*stream_, scratch_, {.gate_up = gate_up, .gy = gy, .ggate_up = {}, .codes = both}); });
    }
    gpt_neox_producers_of(name, spec);
    const ArenaScope used(data_);
    const kernels::QuantizeEpilogue to = codes(spec, kTokens, kQkv);
    const kernels::Rope rope = backward_rope();
    time("rope backward to " + name, 2 * static_cast<double>(rope.x.bytes()), [&] {
      kernels::Rope op = rope;
      op.codes = to;
      kernels::rope(*stream_, scratch_, op);
    });
  }

  void gpt_neox_producers_of(const std::string& name, const QuantSpec& spec) {
    {
      const ArenaScope used(data_);
      const Tensor x = random(DType::bf16, {kTokens, kDim}), weight = random(DType::bf16, {kDim});
      const Tensor mean = empty(DType::f32, {kTokens}), rstd = empty(DType::f32, {kTokens}),
                   gy = random(DType::bf16, {kTokens, kDim});
      const Tensor gx = random(DType::bf16, {kTokens, kDim}), gweight = empty(DType::f32, {kDim}),
                   gbias = empty(DType::f32, {kDim});
      const kernels::QuantizeEpilogue to = codes(spec, kTokens, kDim);
      const auto bytes = static_cast<double>(x.bytes());
      time("layernorm to " + name, 2 * bytes, [&] {
        kernels::layernorm_forward(*stream_, scratch_,
                                   {.x = x, .weight = weight, .bias = weight, .y = {}, .codes = to, .mean = mean, .rstd = rstd});
      });
      time("layernorm backward to " + name, 5 * bytes, [&] {
        kernels::layernorm_backward(*stream_, scratch_,
                                    {.gy = gy,
                                     .x = x,
                                     .weight = weight,
                                     .mean = mean,
                                     .rstd = rstd,
                                     .gx = gx,
                                     .gweight = gweight,
                                     .gbias = gbias,
                                     .codes = to});
      });
    }
    const ArenaScope used(data_);
    const Tensor x = random(DType::bf16, {kTokens, kFfn});
    const kernels::QuantizeEpilogue to = codes(spec, kTokens, kFfn);
    time("gelu to " + name, 2 * static_cast<double>(x.bytes()),
         [&] { kernels::gelu_forward(*stream_, scratch_, {.x = x, .y = {}, .codes = to}); });
  }

  kernels::Rope backward_rope() {
    std::vector<std::int32_t> places(static_cast<std::size_t>(kTokens));
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(i);
    const Tensor positions = empty(DType::i32, {kTokens});
    stream_->copy_to_device(positions.data, places.data(), positions.bytes());
    return {.x = random(DType::bf16, {kTokens, kQkv}),
            .rotated = kRotated,
            .head_dim = kHeadDim,
            .table = random(DType::f32, {kTokens, kHeadDim}),
            .positions = positions,
            .direction = kernels::Rope::Direction::backward};
  }

  void values() {
    {
      const ArenaScope used(data_);
      const kernels::Rope op = backward_rope();
      time("rope in place", 2.0 * kTokens * kRotated * 2, [&] { kernels::rope(*stream_, scratch_, op); });
    }
    {
      const ArenaScope used(data_);
      const Tensor x = random(DType::bf16, {kTokens, kDim}), weight = random(DType::bf16, {kDim});
      const Tensor y = empty(DType::bf16, {kTokens, kDim}), rstd = empty(DType::f32, {kTokens});
      time("rmsnorm to BF16", 2 * static_cast<double>(x.bytes()),
           [&] { kernels::rmsnorm_forward(*stream_, scratch_, {.x = x, .weight = weight, .y = y, .codes = {}, .rstd = rstd}); });
    }
    {  // a linear with a bias reads values
      const ArenaScope used(data_);
      const Tensor x = random(DType::bf16, {kTokens, kFfn}), gy = random(DType::bf16, {kTokens, kFfn});
      const Tensor sums = empty(DType::f32, {kFfn});
      const auto bytes = static_cast<double>(x.bytes());
      time("gelu backward to BF16", 3 * bytes,
           [&] { kernels::gelu_backward(*stream_, scratch_, {.x = x, .gy = gy, .gx = gy, .codes = {}}); });
      time("column sums", bytes, [&] { kernels::column_sums(*stream_, scratch_, {.x = gy, .y = sums}); });
    }
    const ArenaScope used(data_);
    const Tensor logits = random(DType::bf16, {kLogitRows, kVocab}), loss = empty(DType::f32, {kLogitRows});
    const Tensor targets = empty(DType::i32, {kLogitRows});
    stream_->zero(targets.data, targets.bytes());
    time("cross-entropy in place", 2 * static_cast<double>(logits.bytes()), [&] {
      kernels::cross_entropy(
          *stream_, {.logits = logits, .targets = targets, .loss = loss, .gradient = kernels::CrossEntropy::Gradient::in_place});
    });
  }

  void optimizer() {
    for (const bool wide : {false, true}) {
      const ArenaScope used(data_);
      const DType dtype = wide ? DType::f32 : DType::bf16;
      const Tensor w = random(dtype, {kParameters}), m = random(dtype, {kParameters}), v = empty(dtype, {kParameters});
      const Tensor g = random(dtype, {kParameters}), total = empty(DType::f64, {1});
      stream_->zero(v.data, v.bytes());
      const kernels::StepScalars host{.token_count = 1,
                                      .grad_scale = 1,
                                      .learning_rate = 1e-5,
                                      .bias_correction1 = 0.1,
                                      .bias_correction2 = 0.05,
                                      .step = 1,
                                      .updates = 1};
      const Tensor scalars = empty(DType::u8, {static_cast<std::int64_t>(sizeof host)});
      stream_->copy_to_device(scalars.data, &host, sizeof host);
      const std::string state = wide ? "FP32" : "16-bit";
      time("adamw, " + state + " states", 7 * static_cast<double>(w.bytes()), [&] {
        kernels::adamw(*stream_, {.grad = g,
                                  .weight = w,
                                  .moment1 = m,
                                  .moment2 = v,
                                  .scalars = static_cast<const kernels::StepScalars*>(scalars.data)});
      });
      const kernels::TensorList gradients(stream_->device(), {g});
      time("sum of squares, " + state, static_cast<double>(g.bytes()),
           [&] { kernels::sum_squares(*stream_, scratch_, {.x = gradients, .total = total.as<double>()}); });
      time("sum of bits, " + state, static_cast<double>(g.bytes()),
           [&] { kernels::bit_sums(*stream_, {.x = gradients, .sums = static_cast<std::uint64_t*>(total.data)}); });
    }
  }

  // The first of two shards of an MLP's fused weight, with row and MX codes in both directions.
  void shards_of(const std::string& name, const QuantSpec& spec) {
    const Shape whole{2 * kFfn, kDim};
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const ArenaScope used(data_);
      const kernels::Shard shard{.x = random(dtype, {whole.elements() / 2}), .first = 0, .whole = whole};
      const auto bytes = static_cast<double>(shard.x.bytes());
      const auto grid = [&](kernels::Along along) {
        const Tensor amax = empty(DType::f32, amax_shape(spec.tile, along, whole));
        stream_->zero(amax.data, amax.bytes());
        return amax;
      };
      const bool history = spec.source == ScaleSource::history, both = !kernels::is_square(spec.tile);
      const Tensor rows = grid(kernels::Along::rows), columns = both ? grid(kernels::Along::columns) : Tensor();
      const std::string from = fmt::format("{} from {}", name, name_of(dtype));
      if (!history) {
        time("shard_amax " + from, bytes,
             [&] { kernels::shard_amax(*stream_, {.shard = shard, .tile = spec.tile, .rows = rows, .columns = columns}); });
      }
      const Tensor scale = random(DType::f32, {1}), codes = empty(dtype_of(spec.format), shard.x.shape);
      const kernels::CastShard op{.shard = shard,
                                  .spec = spec,
                                  .codes = codes,
                                  .multipliers = history ? Tensor() : rows,
                                  .column_codes = both ? empty(codes.dtype, codes.shape) : Tensor(),
                                  .column_multipliers = columns,
                                  .scale = history ? scale.as<float>() : nullptr,
                                  .scale_inv = history ? empty(DType::f32, {1}) : Tensor(),
                                  .amax = history ? rows.as<float>() : nullptr};
      time("cast_shard " + from, bytes + static_cast<double>(codes.bytes()) * (both ? 2 : 1),
           [&] { kernels::cast_shard(*stream_, op); });
    }
  }

  void sums() {
    for (const DType from : {DType::bf16, DType::f32}) {
      for (const DType to : {DType::bf16, DType::f32}) {
        const ArenaScope used(data_);
        const Tensor x = random(from, {kParameters}), y = random(to, {kParameters});
        time(fmt::format("add {} to {}", name_of(from), name_of(to)), static_cast<double>(x.bytes() + 2 * y.bytes()),
             [&] { kernels::add(*stream_, {.x = x, .y = y}); });
      }
    }
  }

  const std::string gpu_ = cuda_properties().name;
  std::unique_ptr<Device> device_ = make_device(DeviceKind::cuda);
  std::unique_ptr<Stream> stream_ = device_->make_stream();
  Arena data_{*device_, MemoryCategory::activations, std::size_t{12} << 30};
  Arena scratch_{*device_, MemoryCategory::workspace, std::size_t{4} << 30};
  std::vector<BenchRow> rows_;
  std::uint32_t draws_ = 0;
};

}  // namespace

int run_bench_kernels(const BenchArgs& args) {
  demand(cuda_is_available(), ExitCode::config,
         "`octet bench kernels` measures a GPU, and Octet can use none here. `octet doctor` says why; `octet bench gemm`, "
         "`quantize` "
         "and `attention` also measure the CPU");
  KernelBench bench;
  bench.run();
  fmt::print("memory-bound ops on {}; bytes: what must be read and written, once each\n", cuda_properties().name);
  show_bench(bench.rows(), args.json);
  return 0;
}

}  // namespace octet::app
