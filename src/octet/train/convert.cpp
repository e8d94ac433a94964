#include "octet/train/convert.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "octet/base/directory.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/new_directory.h"
#include "octet/checkpoint/block_fp8.h"
#include "octet/checkpoint/model_dir.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/untrusted.h"
#include "octet/data/tokenizer/files.h"
#include "octet/recipes/registry.h"
#include "octet/telemetry/format.h"
#include "octet/tensor/host_tensor.h"
#include "octet/train/adapter_files.h"
#include "octet/train/config.h"
#include "octet/train/fetch.h"
#include "octet/train/merge.h"
#include "octet/train/model_files.h"
#include "octet/train/tokenizer.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;
using parallel::NameEntry;
using parallel::Parameter;

// Decides which tensors become FP8 codes: with WeightType::fp8, the weights of all linears but the head.
class Fp8Choice {
 public:
  Fp8Choice(models::Decoder& model, WeightType type) {
    if (type != WeightType::fp8) return;
    const std::vector<nn::LinearWeight*> linears = model.linears();
    for (std::size_t i = 0; i + 1 < linears.size(); ++i) chosen_.insert(&linears[i]->weight());  // the head is the last
  }
  bool operator()(const NameEntry& entry) const { return entry.shape.rank() == 2 && chosen_.contains(entry.parameter); }

 private:
  std::set<const Parameter*> chosen_;
};

// The matrices that stay in floating point. config.json must list them, because a reader would expect all linears to be
// quantised.
std::vector<std::string> plain_modules(const DescribedModel& described, const Fp8Choice& is_fp8) {
  const std::string suffix = ".weight";
  std::vector<std::string> names;
  for (const NameEntry& entry : described.names) {
    if (entry.shape.rank() != 2 || is_fp8(entry) || !entry.external.ends_with(suffix)) continue;
    names.push_back(entry.external.substr(0, entry.external.size() - suffix.size()));
  }
  // A tied head has no tensor in the files, but readers make a linear of it, so it is listed too.
  for (const std::string& tensor : models::ignorable_names(described.model->config())) {
    if (tensor.find('*') == std::string::npos && tensor.ends_with(suffix))
      names.push_back(tensor.substr(0, tensor.size() - suffix.size()));
  }
  return names;
}

// The model to convert.
struct Source {
  virtual ~Source() = default;
  virtual const models::DecoderConfig& config() const = 0;
  virtual models::Adapters adapters() const { return {}; }
  // The config.json without its new dtype and quantisation.
  virtual Json config_json() const = 0;
  virtual void write_weights(const fs::path& to, DescribedModel& model, const checkpoint::OutputForm& form,
                             const Fp8Choice& is_fp8) const = 0;
};

class DirectorySource : public Source {
 public:
  explicit DirectorySource(const fs::path& path) : weights_(checkpoint::ModelWeights::open(path)) {
    json_ = read_ordered_json(path / "config.json");
    config_ = models::parse_config(nlohmann::json(json_), (path / "config.json").string());
  }
  const models::DecoderConfig& config() const override { return config_; }
  Json config_json() const override {
    Json json = json_;
    json.erase("quantization_config");
    return json;
  }
  void write_weights(const fs::path& to, DescribedModel& model, const checkpoint::OutputForm& form,
                     const Fp8Choice& is_fp8) const override {
    check_model(weights_, model.names, config_);
    std::vector<checkpoint::OutputWeight> outputs;
    for (const NameEntry& entry : model.names) outputs.push_back(checkpoint::output_weight(entry, is_fp8(entry)));
    std::optional<checkpoint::WeightReader> reader;
    std::size_t open = 0;
    checkpoint::write_weight_files(to, outputs, form,
                                   [&](std::size_t i, std::int64_t begin, std::int64_t count, DType dtype, void* out) {
                                     if (!reader || open != i) reader.emplace(weights_, outputs[open = i].name);
                                     reader->read(begin, count, dtype, out);
                                   });
  }

 private:
  checkpoint::ModelWeights weights_;
  models::DecoderConfig config_;
  Json json_;
};

class CheckpointSource : public Source {
 public:
  explicit CheckpointSource(checkpoint::Reader reader) : reader_(std::move(reader)) {
    const std::string source = (reader_.path() / "manifest.json").string();
    config_ = models::parse_config(reader_.meta().value("model", nlohmann::json()), source);
    config_ = with_token_ids(config_, tokenizer_of_model(reader_.path(), config_));  // checkpoints of early versions lack the ids
  }
  const models::DecoderConfig& config() const override { return config_; }
  Json config_json() const override { return models::config_json(config_, DType::bf16); }
  void write_weights(const fs::path& to, DescribedModel& model, const checkpoint::OutputForm& form,
                     const Fp8Choice& is_fp8) const override {
    check(model);
    const auto device = make_device(DeviceKind::cpu);
    const auto stream = device->make_stream();
    HostTensor held;
    const auto whole = [&](const Parameter& p) {
      held = HostTensor(dtype_of(p), p.cut.global());
      const checkpoint::Entry entry = checkpoint::Entry::whole(p.spec.name, held.view());
      reader_.load(*stream, std::span(&entry, 1), {"*"});
      return held.view();
    };
    checkpoint::save_weights(to, model.names, form, whole, std::cref(is_fp8));
  }

 private:
  // Throws one error that lists all missing, unexpected and misshapen tensors.
  void check(DescribedModel& model) const {
    const auto device = make_device(DeviceKind::meta);
    const auto stream = device->make_stream();
    std::vector<checkpoint::Entry> entries;
    for (const Parameter& p : model.model->parameters().parameters()) {
      entries.push_back(checkpoint::Entry::whole(p.spec.name, Tensor(nullptr, dtype_of(p), p.cut.global())));
    }
    reader_.load(*stream, entries,
                 {"*.moment1", "*.moment2", "*.moment1_scale", "*.moment2_scale", "optimizer.updates", "fp8.*"});
  }
  DType dtype_of(const Parameter& p) const {
    const auto stored = reader_.manifest().tensors.find(p.spec.name);
    return stored == reader_.manifest().tensors.end() ? DType::f32 : stored->second.dtype;
  }

  checkpoint::Reader reader_;
  models::DecoderConfig config_;
};

class MergedSource : public Source {
 public:
  explicit MergedSource(MergedModel merged) : merged_(std::move(merged)) {}
  const models::DecoderConfig& config() const override { return merged_.config(); }
  models::Adapters adapters() const override { return merged_.adapters(); }
  Json config_json() const override {
    const Json trained = models::config_json(merged_.config(), DType::bf16);
    if (merged_.base().empty()) return trained;
    const fs::path file = merged_.base() / "config.json";
    Json json = read_ordered_json(file);
    const models::DecoderConfig base = models::parse_config(nlohmann::json(json), file.string());
    if (!changes_of_base(base, merged_.config()).empty()) return trained;
    // The base's own file has more keys than Octet knows. The ids that it lacks are those of the tokenizer, and of chats.
    const auto lacks = [&](std::int64_t id) { return std::find(base.eos.begin(), base.eos.end(), id) == base.eos.end(); };
    const std::vector<std::int64_t>& eos = merged_.config().eos;
    if (base.eos.empty() && !eos.empty()) json["bos_token_id"] = trained["bos_token_id"];
    if (std::any_of(eos.begin(), eos.end(), lacks)) json["eos_token_id"] = trained["eos_token_id"];
    json.erase("quantization_config");
    return json;
  }
  void write_weights(const fs::path& to, DescribedModel& model, const checkpoint::OutputForm& form,
                     const Fp8Choice& is_fp8) const override {
    merged_.check(model);
    if (const std::int64_t coded = merged_.coded_weights(); coded > 0) {
      log_warning(concat(merged_.base_name(), ": ", telemetry::format_count(coded, "weight"), coded == 1 ? " is" : " are",
                         " stored as FP8 codes; the adapter is added to the values decoded from them"));
    }
    const auto whole = [&](const Parameter& p) { return merged_.whole(model, p); };
    checkpoint::save_weights(to, model.names, form, whole, std::cref(is_fp8));
  }

 private:
  mutable MergedModel merged_;
};

// The run's configuration, which a checkpoint stores.
Config config_of_run(const checkpoint::Reader& reader) {
  Config config = parse_config(reader.meta().value("toml", ""), (reader.path() / "manifest.json").string());
  if (config.lora) fetch_base(config);
  return config;
}

std::unique_ptr<Source> open_source(const fs::path& path) {
  if (is_adapter(path)) return std::make_unique<MergedSource>(MergedModel(path));
  if (!path_exists(path / "manifest.json")) return std::make_unique<DirectorySource>(path);
  checkpoint::Reader reader = checkpoint::Reader::open(path);
  const Config run = config_of_run(reader);
  if (run.lora) return std::make_unique<MergedSource>(MergedModel(std::move(reader), run, MergedModel::Base::read));
  return std::make_unique<CheckpointSource>(std::move(reader));
}

Json config_of(const Source& source, const DescribedModel& model, const Fp8Choice& is_fp8, WeightType type) {
  Json json = source.config_json();
  const char* dtype = type == WeightType::fp32 ? "float32" : "bfloat16";
  // transformers 5 writes "dtype", earlier versions "torch_dtype". A file may have both.
  const bool newer = json.contains("dtype");
  if (newer) json["dtype"] = dtype;
  if (!newer || json.contains("torch_dtype")) json["torch_dtype"] = dtype;
  if (type == WeightType::fp8) json["quantization_config"] = checkpoint::block_fp8_config(plain_modules(model, is_fp8));
  return json;
}

// Copies the tokenizer of a model directory. Other programs may use it even if config.json names `byte`, and Octet may not be
// able to read it.
void copy_all_of_tokenizer(const fs::path& model, const fs::path& to) {
  if (const auto file = data::tokenizer_file(model.string())) return data::copy_tokenizer_files(*file, to);
  data::copy_files_beside_tokenizer(model, to);
}

}  // namespace

DescribedModel::DescribedModel(const models::DecoderConfig& config, const models::Adapters& adapters)
    : model(std::make_unique<models::Decoder>(config, recipes::make_recipe("bf16", {}), parallel::TensorPlace{},
                                              parallel::ExpertPlace{}, parallel::Stages{}, 0, adapters)),
      names(models::names_of(*model)) {}

Converted convert_model(const fs::path& path, const ConvertOptions& options) {
  const auto source = open_source(path);
  DescribedModel model(source->config(), source->adapters());
  const Fp8Choice is_fp8(*model.model, options.type);
  NewDirectory output(options.output);

  checkpoint::OutputForm form;
  form.dtype = options.type == WeightType::fp32 ? DType::f32 : DType::bf16;
  form.fp8 = recipes::make_recipe("fp8_block", {}).w;
  form.max_shard_bytes = options.max_shard_bytes;
  form.progress = options.progress;
  Converted result;
  form.not_finite = [&](const std::string& name) { result.not_finite.push_back(name); };
  source->write_weights(output.path(), model, form, is_fp8);
  write_file_atomically(output.path() / "config.json", config_of(*source, model, is_fp8, options.type).dump(2) + "\n");
  copy_generation_config(generation_config_of_model(path), output.path());
  if (path_exists(path / "manifest.json")) {
    copy_tokenizer(tokenizer_of_model(path, source->config()), output.path(), options.output);
  } else {
    copy_all_of_tokenizer(find_model(path).model, output.path());
  }
  output.finish();
  warn_of_router_bias(source->config(), options.output);

  for (const NameEntry& entry : model.names) {
    result.parameters += entry.shape.elements();
    if (!is_fp8(entry)) continue;
    ++result.fp8_matrices;
    if (entry.shape[0] % checkpoint::kBlock != 0 || entry.shape[1] % checkpoint::kBlock != 0)
      result.ragged.push_back(entry.external);
  }
  return result;
}

void export_adapter(const fs::path& path, const fs::path& to) {
  const auto merged = [&] {
    if (is_adapter(path)) return MergedModel(path);
    demand(path_exists(path / "manifest.json"), ExitCode::config, path.string(), ": not a checkpoint, so it has no adapter");
    checkpoint::Reader reader = checkpoint::Reader::open(path);
    const Config run = config_of_run(reader);
    demand(run.lora.has_value(), ExitCode::config, path.string(), ": its run has no [lora], so it has no adapter");
    return MergedModel(std::move(reader), run, MergedModel::Base::may_be_gone);
  };
  MergedModel model = merged();
  DescribedModel described(model.config(), model.adapters());
  model.check(described);
  NewDirectory output(to);
  write_adapter(output.path(), *described.model, model.adapters(), {.name = model.base_name(), .directory = model.base()},
                [&](const Parameter& p) { return model.whole_of_adapter(described, p); });
  output.finish();
}

}  // namespace octet::train
