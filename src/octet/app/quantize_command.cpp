#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "octet/app/commands.h"
#include "octet/app/output_file.h"
#include "octet/app/set_option.h"
#include "octet/app/threads.h"
#include "octet/base/log.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/numerics/scale.h"
#include "octet/train/setup.h"

namespace octet::app {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::TensorInfo;

// A tensor of the input. `x.<step>.<micro>` is replayed if the recipe has a history.
struct Source {
  std::string name;       // of its outputs: whole
  std::string stem;       // of its state: without step and micro-batch
  std::string step_name;  // "x.<step>"; "" for a tensor that stands alone
  std::uint64_t step = 0, micro = 0;
  const TensorInfo* info = nullptr;
};

// Cuts ".<number>" off the end of `name`.
bool cut_number(std::string& name, std::uint64_t& number) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot == 0 || dot + 1 == name.size()) return false;
  const char* const first = name.data() + dot + 1;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, number);
  if (error != std::errc() || end != last) return false;
  name.resize(dot);
  return true;
}

Source source_of(const TensorInfo& info, bool replay) {
  Source source{.name = info.name, .stem = info.name, .info = &info};
  std::string rest = info.name;
  if (replay && cut_number(rest, source.micro)) {
    const std::string step_name = rest;
    if (cut_number(rest, source.step)) {
      source.stem = rest;
      source.step_name = step_name;
    }
  }
  return source;
}

// The 2-D tensors, by stem and in the order in which they are replayed.
std::map<std::string, std::vector<Source>> read_sources(const SafetensorsFile& file, bool replay) {
  std::map<std::string, std::vector<Source>> sources;
  std::size_t others = 0;
  for (const TensorInfo& info : file.tensors()) {
    if (info.dims.size() != 2) {
      ++others;
      continue;
    }
    demand(info.dtype == DType::bf16 || info.dtype == DType::f16 || info.dtype == DType::f32, ExitCode::data,
           file.path().string(), ": ", info.name, ": dtype ", info.dtype_name,
           " cannot be quantised; only BF16, F16 and F32 can");
    Source source = source_of(info, replay);
    sources[source.stem].push_back(std::move(source));
  }
  demand(!sources.empty(), ExitCode::data, file.path().string(), ": has no 2-D tensor to quantise");
  if (others > 0)
    log_warning(
        concat(file.path().string(), ": ", others, " of ", file.tensors().size(), " tensors are not 2-D and are left out"));
  for (auto& [stem, list] : sources) {
    std::sort(list.begin(), list.end(),
              [](const Source& a, const Source& b) { return std::pair(a.step, a.micro) < std::pair(b.step, b.micro); });
    for (std::size_t i = 1; i < list.size(); ++i) {
      demand(!list[0].step_name.empty() && !list[i].step_name.empty(), ExitCode::data, file.path().string(), ": ", stem, " and ",
             (list[0].step_name.empty() ? list[i] : list[0]).name, ": give one tensor or steps and micro-batches, not both");
      demand(std::pair(list[i - 1].step, list[i - 1].micro) != std::pair(list[i].step, list[i].micro), ExitCode::data,
             file.path().string(), ": ", list[i - 1].name, " and ", list[i].name, " name the same step and micro-batch");
    }
  }
  return sources;
}

// Tensors in host memory that will be written to a file.
class Results {
 public:
  Tensor add(const std::string& name, DType dtype, Shape shape) {
    memory_.push_back(std::make_unique<std::vector<std::byte>>(bytes_of(dtype, shape)));
    const Tensor tensor(memory_.back()->data(), dtype, shape);
    tensors_.push_back({name, tensor});
    return tensor;
  }
  void write(const std::filesystem::path& path) const {
    create_output([&] { checkpoint::write_safetensors(path, tensors_); });
  }

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
  std::vector<checkpoint::NamedTensor> tensors_;
};

class Quantizer {
 public:
  Quantizer(const Recipe& recipe, Role role, DeviceKind device, std::optional<float> fixed)
      : recipe_(recipe),
        role_(role),
        spec_(recipe.spec(role)),
        device_(make_device(device)),
        stream_(device_->make_stream()),
        scratch_(*device_, MemoryCategory::workspace, std::size_t{1} << 26) {
    if (fixed) {
      spec_.source = ScaleSource::history;
      fixed_ = upload(&*fixed, DType::f32, {1});
    }
  }

  // Adds codes and scales of a tensor to `results`. `scale` and `amax` are as for kernels::Quantize.
  void quantize(const std::string& name, const Tensor& host, const float* scale, float* amax, Results& results) {
    const std::int64_t rows = host.rows(), cols = host.shape[1];
    Owned x = upload(host.data, host.dtype, host.shape);
    if (host.dtype == DType::f16) {
      Owned wide = make(DType::f32, host.shape);
      kernels::cast(*stream_, {.x = x.tensor, .y = wide.tensor});
      x = std::move(wide);
    }
    const Owned rowwise = make(dtype_of(spec_.format), {rows, cols}), columnwise = make(dtype_of(spec_.format), {cols, rows});
    const Owned rowwise_scale_inv = make(scale_dtype(spec_.tile), scale_shape(spec_.tile, rows, cols));
    const Owned columnwise_scale_inv = make(scale_dtype(spec_.tile), scale_shape(spec_.tile, cols, rows));
    kernels::quantize(*stream_, scratch_,
                      {.x = x.tensor,
                       .spec = spec_,
                       .out = {.format = spec_.format,
                               .tile = spec_.tile,
                               .rowwise = rowwise.tensor,
                               .rowwise_scale_inv = rowwise_scale_inv.tensor,
                               .columnwise = columnwise.tensor,
                               .columnwise_scale_inv = columnwise_scale_inv.tensor},
                       .scale = fixed_.tensor ? fixed_.tensor.as<float>() : scale,
                       .amax = amax});
    download(rowwise.tensor, results.add(name + ".codes", rowwise.tensor.dtype, rowwise.tensor.shape));
    download(columnwise.tensor, results.add(name + ".codes_t", columnwise.tensor.dtype, columnwise.tensor.shape));
    download_scales(rowwise_scale_inv.tensor, name + ".scale_inv", results);
    download_scales(columnwise_scale_inv.tensor, name + ".scale_inv_t", results);
  }

  // Replays the tensors of one stem through their history, which begins as in `state`, or as a new one if it is not there.
  void replay(const std::vector<Source>& sources, const SafetensorsFile& input, const SafetensorsFile* state, Results& results,
              Results& state_out) {
    const std::string& stem = sources.front().stem;
    std::vector<float> history(static_cast<std::size_t>(recipe_.amax_history_len), 0.0f);
    float scale = 1.0f;
    if (state) read_state(*state, stem, scale, history);
    const auto format = static_cast<std::uint8_t>(spec_.format), is_weight = static_cast<std::uint8_t>(role_ == Role::weight);
    const Owned device_scale = upload(&scale, DType::f32, {1}), device_format = upload(&format, DType::u8, {1});
    const Owned device_history = upload(history.data(), DType::f32, {1, recipe_.amax_history_len});
    const Owned device_is_weight = upload(&is_weight, DType::u8, {1});
    float* const recorded = device_history.tensor.as<float>();

    for (auto first = sources.begin(); first != sources.end();) {
      const auto last = std::find_if(first, sources.end(), [&](const Source& source) { return source.step != first->step; });
      const float before = read(recorded);
      for (auto source = first; source != last; ++source) {
        quantize(source->name, input.get(*source->info), device_scale.tensor.as<float>(), recorded, results);
      }
      const float amax = read(recorded);
      kernels::update_delayed_scales(*stream_, {.amax_history = device_history.tensor,
                                                .scale = device_scale.tensor,
                                                .format = device_format.tensor,
                                                .is_weight = device_is_weight.tensor,
                                                .margin = spec_.margin,
                                                .most_recent = recipe_.amax_most_recent});
      // An amax that is not entered leaves the value from before the step. In training, a weight's amax is written after the
      // previous step, and the update keeps it; here, a weight's casts belong to the step.
      if (role_ == Role::weight && (amax == 0.0f || !is_finite(amax))) {
        stream_->copy_to_device(recorded, &before, sizeof before);
        stream_->synchronize();
      }
      if (!first->step_name.empty()) add_state(first->step_name, device_scale.tensor, device_history.tensor, results);
      first = last;
    }
    add_state(stem, device_scale.tensor, device_history.tensor, state_out);
  }

 private:
  struct Owned {
    Buffer buffer;
    Tensor tensor;
  };
  Owned make(DType dtype, Shape shape) {
    Owned result{device_->allocate(std::max<std::size_t>(1, bytes_of(dtype, shape)), MemoryCategory::activations), {}};
    result.tensor = view(result.buffer, dtype, shape);
    return result;
  }
  Owned upload(const void* host, DType dtype, Shape shape) {
    Owned result = make(dtype, shape);
    stream_->copy_to_device(result.tensor.data, host, result.tensor.bytes());
    stream_->synchronize();
    return result;
  }
  void download(const Tensor& from, const Tensor& to) {
    stream_->copy_to_host(to.data, from.data, from.bytes());
    stream_->synchronize();
  }
  float read(const float* device) {
    float value = 0;
    stream_->copy_to_host(&value, device, sizeof value);
    stream_->synchronize();
    return value;
  }
  // Files have scales with a row for each row of the codes, whatever the layout in memory.
  void download_scales(const Tensor& from, const std::string& name, Results& results) {
    const std::int64_t n = from.shape[0], m = from.shape.rank() > 1 ? from.shape[1] : 1;
    if (spec_.tile == ScaleTile::row) {
      download(from, results.add(name, from.dtype, {n, 1}));
    } else if (spec_.tile == ScaleTile::block_1x128) {
      std::vector<float> by_block(static_cast<std::size_t>(n * m));
      download(from, Tensor(by_block.data(), DType::f32, from.shape));
      auto* const by_row = results.add(name, DType::f32, {m, n}).as<float>();
      for (std::int64_t k = 0; k < n; ++k) {
        for (std::int64_t row = 0; row < m; ++row) by_row[row * n + k] = by_block[static_cast<std::size_t>(k * m + row)];
      }
    } else {
      download(from, results.add(name, from.dtype, from.shape));
    }
  }
  void add_state(const std::string& name, const Tensor& scale, const Tensor& history, Results& results) {
    download(scale, results.add(name + ".scale", DType::f32, {1}));
    download(history, results.add(name + ".amax_history", DType::f32, {history.shape[1]}));
  }
  void read_state(const SafetensorsFile& state, const std::string& stem, float& scale, std::vector<float>& history) const {
    const auto read_f32 = [&](const std::string& name, float* to, std::size_t count) {
      const TensorInfo* const info = state.find(name);
      demand(info != nullptr, ExitCode::data, state.path().string(), ": no ", name);
      demand(info->dtype == DType::f32 && info->dims == std::vector<std::int64_t>{static_cast<std::int64_t>(count)},
             ExitCode::data, state.path().string(), ": ", name, " is ", info->dtype_name, " ", info->shape_text(), ", not F32 [",
             count, "] as precision.amax_history_len says");
      std::memcpy(to, state.bytes(*info).data(), count * sizeof(float));
      for (std::size_t i = 0; i < count; ++i) {
        demand(is_finite(to[i]) && to[i] >= 0.0f, ExitCode::data, state.path().string(), ": ", name, "[", i, "] = ", to[i],
               ": must be finite and not negative");
      }
    };
    read_f32(stem + ".scale", &scale, 1);
    read_f32(stem + ".amax_history", history.data(), history.size());
    demand(scale > 0.0f, ExitCode::data, state.path().string(), ": ", stem, ".scale = 0: must be positive");
  }

  const Recipe& recipe_;
  Role role_;
  QuantSpec spec_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena scratch_;
  Owned fixed_;
};

Role role_named(const std::string& name) {
  for (const auto& [text, role] :
       {std::pair("activation", Role::activation), {"weight", Role::weight}, {"gradient", Role::gradient}}) {
    if (name == text) return role;
  }
  fail(ExitCode::config, "--role ", name, ": must be activation, weight or gradient");
}

}  // namespace

int run_quantize(const QuantizeArgs& args) {
  train::Config config;
  config.precision.recipe = args.recipe;
  config.run.device = args.device;
  apply_set(config, args.set, {"precision.*"});
  use_threads(config);
  const DeviceKind device = train::device_of(config);
  const Recipe recipe = train::recipe_of(config, device);
  const Role role = role_named(args.role);
  demand(recipe.is_fp8(), ExitCode::config, "--recipe ", recipe.name, ": not an FP8 recipe; use fp8_current, fp8_block, ...");
  std::optional<float> scale;
  if (args.scale) {
    scale = static_cast<float>(*args.scale);
    demand(recipe.spec(role).tile == ScaleTile::tensor, ExitCode::config, "--scale ", *args.scale, ": ", recipe.name,
           " has no scale per tensor; only fp8_delayed and fp8_current have");
    demand(is_finite(*scale) && *scale > 0.0f, ExitCode::config, "--scale ", *args.scale, ": must be a positive FP32 number");
  }
  demand(recipe.delayed() || (args.state.empty() && args.state_out.empty()), ExitCode::config,
         args.state.empty() ? "--state-out " : "--state ", (args.state.empty() ? args.state_out : args.state).string(), ": ",
         recipe.name, " has no state; only fp8_delayed has");

  demand_own_file("--output", args.output, std::array{args.input, args.state});
  demand_own_file("--state-out", args.state_out, std::array{args.input, args.output});
  const SafetensorsFile input = SafetensorsFile::open(args.input);
  std::optional<SafetensorsFile> state;
  if (!args.state.empty()) state.emplace(SafetensorsFile::open(args.state));
  Quantizer quantizer(recipe, role, device, scale);
  Results results, state_out;
  for (const auto& [stem, sources] : read_sources(input, recipe.delayed())) {
    if (recipe.delayed()) {
      quantizer.replay(sources, input, state ? &*state : nullptr, results, state_out);
    } else {
      quantizer.quantize(stem, input.get(*sources.front().info), nullptr, nullptr, results);
    }
  }
  results.write(args.output);
  if (!args.state_out.empty()) state_out.write(args.state_out);
  return 0;
}

}  // namespace octet::app
