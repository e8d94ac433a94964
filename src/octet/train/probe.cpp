#include "octet/train/probe.h"

#include <algorithm>

#include "octet/base/log.h"
#include "octet/base/names.h"
#include "octet/base/rng.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/models/registry.h"
#include "octet/train/dump.h"
#include "octet/train/model_files.h"

namespace octet::train {
namespace {

using checkpoint::SafetensorsFile;

std::vector<std::int32_t> read_ids(const Tensor& tensor, const std::string& what, std::int64_t vocab, bool may_ignore) {
  demand(tensor.shape.rank() == 2, ExitCode::data, what, " has shape ", tensor.shape, ": must be [B, T]");
  demand(tensor.dtype == DType::i32 || tensor.dtype == DType::i64, ExitCode::data, what, " is ", name_of(tensor.dtype),
         ": must be I32 or I64");
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tensor.elements()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = tensor.dtype == DType::i32 ? tensor.as<std::int32_t>()[i] : tensor.as<std::int64_t>()[i];
    const bool ignored = may_ignore && id == kernels::kIgnoredTarget;
    demand(ignored || (id >= 0 && id < vocab), ExitCode::data, what, ": id ", id, " at element ", i,
           " is outside the vocabulary of ", vocab);
    ids[i] = static_cast<std::int32_t>(id);
  }
  return ids;
}

// Makes each target the next token of its row. The last position of a row has no target.
void target_next_tokens(ProbeInput& input) {
  input.targets.assign(input.tokens.begin() + 1, input.tokens.end());
  input.targets.push_back(kernels::kIgnoredTarget);
  for (std::int64_t row = 1; row <= input.batch; ++row) {
    input.targets[static_cast<std::size_t>(row * input.seq_len - 1)] = kernels::kIgnoredTarget;
  }
}

HostTensor as_f32(const HostTensor& x, double factor) {
  HostTensor result(DType::f32, x.shape());
  float* out = result.view().as<float>();
  visit_float(x.dtype(), [&]<class T>() {
    const T* in = x.view().as<T>();
    for (std::int64_t i = 0; i < x.shape().elements(); ++i) {
      out[i] = static_cast<float>(static_cast<double>(static_cast<Real<T>>(in[i])) * factor);
    }
  });
  return result;
}

data::Batch rows_of(const ProbeInput& input, std::int64_t begin, std::int64_t end) {
  return {
      .first_sample = begin, .tokens = input.rows(input.tokens, begin, end), .targets = input.rows(input.targets, begin, end)};
}

void add_grads(Engine& engine, const ProbeInput& input, std::map<std::string, HostTensor>& out) {
  const std::int64_t micro = engine.options().micro_batch_size;
  engine.begin_step();
  for (std::int64_t row = 0; row < input.batch; row += micro) engine.forward_backward(rows_of(input, row, row + micro), nullptr);
  std::array<double, 2> total{};
  engine.stream().copy_to_host(total.data(), engine.optimizer().loss_total(), sizeof total);
  engine.stream().synchronize();
  const bool adapted = static_cast<bool>(engine.options().adapters);
  for (const parallel::NameEntry& entry : adapted ? models::adapter_names(engine.model()) : models::names_of(engine.model())) {
    const Tensor& grad = entry.parameter->grad;
    if (!grad) continue;  // of a router's bias
    HostTensor external(grad.dtype, entry.shape);
    std::byte* to = external.data();
    for (const parallel::RowRun& rows : entry.rows) {
      HostTensor run = to_host(engine.stream(), grad.slice_rows(rows.begin, rows.end));
      to = std::copy_n(run.data(), run.bytes(), to);
    }
    out["grad." + entry.external] = as_f32(external, 1.0 / total[1]);
  }
}

void train_steps(Engine& engine, const ProbeOptions& options, const ProbeInput& input, DumpWatch* dump,
                 std::map<std::string, HostTensor>& out) {
  const std::int64_t micro = engine.options().micro_batch_size;
  HostTensor losses(DType::f32, {options.steps});
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    engine.begin_step();
    for (std::int64_t row = 0; row < input.batch; row += micro) {
      if (dump) dump->begin(step, row / micro);
      engine.forward_backward(rows_of(input, row, row + micro), dump);
    }
    engine.apply(options.lr, static_cast<std::uint32_t>(step));
    const kernels::StepScalars scalars = engine.optimizer().read(engine.stream());
    losses.view().as<float>()[step - 1] = static_cast<float>(scalars.mean_loss());
    if (!dump) continue;
    for (const auto& [name, tensor, held] : engine.model().scales().tensors()) {
      // fp8.<linear>.<role>.<what>
      const std::string linear = name.substr(4, name.rfind('.', name.rfind('.') - 1) - 4);
      if (glob_match(options.dump, linear)) out[std::to_string(step) + "." + name] = to_host(engine.stream(), tensor);
    }
  }
  out["losses"] = std::move(losses);
}

// The rows of an input, a micro-batch at a time, for one pass.
void calibrate(Engine& engine, const ProbeInput& input) {
  const std::int64_t micro = engine.options().micro_batch_size;
  std::int64_t row = -micro;
  engine.calibrate(input.batch / micro, [&] {
    row += micro;
    return rows_of(input, row, row + micro);
  });
}

// Calibrates an engine of this shape and returns its scales.
std::map<std::string, HostTensor> scales_from(const ProbeOptions& options, EngineOptions engine_options) {
  const ProbeInput input = read_probe_input(options.calibrate, engine_options.model);
  engine_options.seq_len = input.seq_len;
  engine_options.micro_batch_size = input.batch;
  engine_options.whole_logits = false;
  engine_options.watch = nullptr;
  Engine engine(engine_options, options.device);
  load_model(engine, find_model(options.model));
  calibrate(engine, input);
  std::map<std::string, HostTensor> result;
  for (const auto& [name, tensor, held] : engine.model().scales().tensors()) result[name] = to_host(engine.stream(), tensor);
  return result;
}

void set_scales(Engine& engine, std::map<std::string, HostTensor>& scales) {
  for (const auto& [name, tensor, held] : engine.model().scales().tensors()) {
    engine.stream().copy_to_device(tensor.data, scales.at(name).data(), tensor.bytes());
  }
  engine.stream().synchronize();
  engine.refresh();
}

}  // namespace

ProbeInput read_probe_input(const std::filesystem::path& path, const models::DecoderConfig& config) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const Tensor tokens = file.get("tokens");
  ProbeInput input;
  input.tokens = read_ids(tokens, path.string() + ": tokens", config.vocab, false);
  input.batch = tokens.shape[0];
  input.seq_len = tokens.shape[1];
  demand(!input.tokens.empty(), ExitCode::data, path.string(), ": tokens has shape ", tokens.shape, ": nothing to compute");
  demand(input.seq_len <= config.max_position, ExitCode::config, path.string(), ": ", input.seq_len,
         " tokens a row, but the model's max_position_embeddings = ", config.max_position);
  if (file.find("targets")) {
    const Tensor targets = file.get("targets");
    demand(targets.shape == tokens.shape, ExitCode::data, path.string(), ": targets ", targets.shape, " and tokens ",
           tokens.shape, " differ in shape");
    input.targets = read_ids(targets, path.string() + ": targets", config.vocab, true);
  } else {
    target_next_tokens(input);
  }
  return input;
}

ProbeInput random_probe_input(const models::DecoderConfig& config, std::uint64_t seed) {
  const Rng rng(seed, RngStream::probe);
  ProbeInput input{.batch = 2, .seq_len = std::min<std::int64_t>(64, config.max_position), .tokens = {}, .targets = {}};
  for (std::int64_t i = 0; i < input.batch * input.seq_len; ++i) {
    const std::uint64_t word = rng.word64(static_cast<std::uint64_t>(i));
    input.tokens.push_back(static_cast<std::int32_t>(word % static_cast<std::uint64_t>(config.vocab)));
  }
  target_next_tokens(input);
  return input;
}

void only_losses_of_transformers(models::DecoderConfig& model) {
  if (!model.output_router_logits) model.router_balance = 0;
  model.router_z = 0;
}

std::map<std::string, HostTensor> model_outputs(Engine& engine, const ProbeInput& input, bool grads, const std::string& source) {
  std::map<std::string, HostTensor> out;
  const std::int64_t micro = engine.options().micro_batch_size, vocab = engine.options().model.vocab;
  HostTensor values(DType::f32, {input.batch, input.seq_len, vocab});
  std::array<double, 2> total{};
  for (std::int64_t row = 0; row < input.batch; row += micro) {
    const data::Batch rows = rows_of(input, row, row + micro);
    const HostTensor logits = as_f32(to_host(engine.stream(), engine.logits(rows.tokens)), 1.0);
    std::copy_n(logits.view().as<float>(), logits.shape().elements(), values.view().as<float>() + row * input.seq_len * vocab);
    const std::array<double, 2> loss_and_count = engine.evaluate(rows.tokens, rows.targets);
    const Engine::RouterLosses router = engine.router_losses(Engine::Routed::evaluation);
    const models::DecoderConfig& c = engine.options().model;
    total[0] += loss_and_count[0];
    if (c.experts > 0)
      total[0] += (c.router_balance * router.balance + c.router_z * router.z) / static_cast<double>(c.mixtures());
    total[1] += loss_and_count[1];
  }
  demand(total[1] > 0, ExitCode::data, source, ": no target counts, so there is no loss");
  HostTensor loss(DType::f32, {1});
  loss.view().as<float>()[0] = static_cast<float>(total[0] / total[1]);
  out["loss"] = std::move(loss);
  out["logits"] = std::move(values);
  if (grads) add_grads(engine, input, out);
  return out;
}

void probe(const ProbeOptions& options) {
  EngineOptions engine_options = options.engine;
  const ModelDirectory model = find_model(options.model);
  engine_options.model = model.config;
  engine_options.adapters = model.adapters;
  engine_options.adapters.dropout = {};  // a probe's numbers are those of the model, also its gradients
  only_losses_of_transformers(engine_options.model);
  const ProbeInput input = read_probe_input(options.tokens, engine_options.model);
  DumpWatch dump(options.dump);
  const bool dumps = !options.dump.empty();
  engine_options.storage.training = options.grads || options.steps > 0;
  engine_options.seq_len = input.seq_len;
  engine_options.micro_batch_size = options.micro_batch_size > 0 ? options.micro_batch_size : input.batch;
  demand(input.batch % engine_options.micro_batch_size == 0, ExitCode::config, options.tokens.string(), ": ", input.batch,
         " rows are not a multiple of training.micro_batch_size = ", engine_options.micro_batch_size);
  engine_options.whole_logits = true;
  engine_options.watch = dumps ? &dump : nullptr;
  demand(options.calibrate.empty() || engine_options.calibrates, ExitCode::config, "--calibrate ", options.calibrate.string(),
         ": ",
         engine_options.recipe.delayed()
             ? "precision.calibrate = false sets no scales"
             : concat("recipe ", engine_options.recipe.name, " has no scales to set; only fp8_delayed has"));
  std::map<std::string, HostTensor> scales;
  if (!options.calibrate.empty()) {
    scales = scales_from(options, engine_options);
    engine_options.calibrates = false;
  }
  Engine engine(engine_options, options.device);
  load_model(engine, model);
  if (engine_options.calibrates) calibrate(engine, input);
  if (!scales.empty()) set_scales(engine, scales);
  if (dumps) {
    std::vector<std::string> names;
    bool any = false, any_in_fp8 = false;
    for (const auto* linear : engine.model().linears()) {
      names.push_back(linear->name());
      if (!glob_match(options.dump, names.back())) continue;
      any = true;
      any_in_fp8 = any_in_fp8 || linear->is_fp8();
    }
    demand(any, ExitCode::config, "--dump ", options.dump, ": matches no linear", did_you_mean(options.dump, names));
    if (!any_in_fp8)
      log_warning(concat("--dump ", options.dump, ": no linear that matches computes in FP8 with recipe ",
                         engine_options.recipe.name, ", and only those are dumped"));
  }

  std::map<std::string, HostTensor> out = model_outputs(engine, input, options.grads, options.tokens.string());
  if (options.steps > 0) train_steps(engine, options, input, dumps ? &dump : nullptr, out);
  out.merge(dump.tensors());

  std::vector<checkpoint::NamedTensor> named;
  for (const auto& [name, tensor] : out) named.push_back({name, tensor.view()});
  create_output([&] { checkpoint::write_safetensors(options.output, std::move(named)); });
}

}  // namespace octet::train
