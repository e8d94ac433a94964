#include "octet/train/merge.h"

#include <algorithm>
#include <utility>

#include "octet/base/log.h"
#include "octet/base/rng.h"
#include "octet/checkpoint/model_dir.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/train/adapter_files.h"
#include "octet/train/base_model.h"
#include "octet/train/model_files.h"
#include "octet/train/setup.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;
using parallel::NameEntry;
using parallel::Parameter;

// Reads all of a parameter from files as `dtype`, a tracked one as F32, and returns it in F32.
HostTensor read_parameter(const checkpoint::ModelWeights& weights, const parallel::NameTable& names, const Parameter& p,
                          DType of_weights) {
  const DType dtype = p.spec.tracked ? DType::f32 : of_weights;
  HostTensor stored(dtype, p.cut.global());
  const std::size_t width = size_of(dtype) * static_cast<std::size_t>(stored.view().cols());
  for (const NameEntry& entry : names) {
    if (entry.parameter != &p || !weights.find(entry.external)) continue;
    checkpoint::WeightReader reader(weights, entry.external);
    std::int64_t at = 0;
    for (const parallel::RowRun& rows : entry.rows) {
      const std::int64_t count = (rows.end - rows.begin) * stored.view().cols();
      reader.read(at, count, dtype, stored.data() + static_cast<std::size_t>(rows.begin) * width);
      at += count;
    }
  }
  HostTensor result(DType::f32, p.cut.global());
  checkpoint::convert(dtype, stored.data(), DType::f32, result.data(), result.shape().elements());
  return result;
}

}  // namespace

MergedModel::MergedModel(const fs::path& adapter) : device_(make_device(DeviceKind::cpu)), stream_(device_->make_stream()) {
  const ModelDirectory from = find_model(adapter);
  config_ = from.config;
  adapters_ = from.adapters;
  base_ = from.model;
  base_weights_ = checkpoint::ModelWeights::open(base_);
  AdapterDirectory named = open_adapter(adapter);
  base_name_ = named.base;
  adapter_weights_ = std::move(named.weights);
}

MergedModel::MergedModel(checkpoint::Reader reader, const Config& config, Base base)
    : config_(models::parse_config(reader.meta().value("model", nlohmann::json()), reader.path().string())),
      adapters_(adapters_of(config)),
      base_(config.model.init_from),
      base_name_(as_given(config).model.init_from),
      seed_(config.run.seed),
      dtype_(reader.meta().value("recipe", "") == "fp32" ? DType::f32 : DType::bf16),
      device_(make_device(DeviceKind::cpu)),
      stream_(device_->make_stream()) {
  if (base == Base::may_be_gone && init_from_is_gone(config)) {
    log_warning(concat(reader.path().string(), ": ", base_name_, ", the model of its adapters, is not there any more"));
  } else {
    check_base(reader.meta(), hash_of_base(config), reader.path().string());
    if (!base_.empty() && checkpoint::has_weights(base_)) base_weights_ = checkpoint::ModelWeights::open(base_);
  }
  reader_ = std::move(reader);
}

std::int64_t MergedModel::coded_weights() const {
  if (!base_weights_) return 0;
  const auto is_coded = [&](const std::string& name) { return base_weights_->find(name)->dtype == DType::f8_e4m3; };
  return std::count_if(base_weights_->names().begin(), base_weights_->names().end(), is_coded);
}

void MergedModel::check(DescribedModel& described) const {
  if (base_weights_) {
    check_model(*base_weights_, checkpoint::entries_in(*base_weights_, described.names), config_);
  }
  const parallel::NameTable names = models::adapter_names(*described.model);
  if (adapter_weights_) checkpoint::check_weights(*adapter_weights_, names);
}

HostTensor MergedModel::base_values(DescribedModel& described, const Parameter& p) const {
  if (base_weights_) return read_parameter(*base_weights_, described.names, p, dtype_);
  HostTensor stored(dtype_, p.cut.global()), result(DType::f32, p.cut.global());
  const bool ones = p.spec.init == parallel::Init::ones;
  kernels::fill_normal(*stream_, {.x = stored.view(),
                                  .mean = ones ? 1.0 : 0.0,
                                  .deviation = ones ? 0.0 : p.spec.init_std,
                                  .seed = seed_,
                                  .subject = name_id(p.spec.name),
                                  .elements = {.first = 0}});
  checkpoint::convert(dtype_, stored.data(), DType::f32, result.data(), result.shape().elements());
  return result;
}

HostTensor MergedModel::adapter_values(DescribedModel& described, const Parameter& p) const {
  if (adapter_weights_) return read_parameter(*adapter_weights_, models::adapter_names(*described.model), p, DType::f32);
  HostTensor result(DType::f32, p.cut.global());
  const checkpoint::Entry entry = checkpoint::Entry::whole(p.spec.name, result.view());
  reader_->load(*stream_, std::span(&entry, 1), {"*"}, checkpoint::OtherDtype::convert);
  return result;
}

Tensor MergedModel::whole_of_adapter(DescribedModel& described, const Parameter& p) {
  held_ = adapter_values(described, p);
  return held_.view();
}

Tensor MergedModel::whole(DescribedModel& described, const Parameter& p) {
  held_ = base_values(described, p);
  Arena scratch(*device_, MemoryCategory::workspace, std::size_t{1} << 28);
  for (const auto* linear : described.model->linears()) {
    const nn::Adapter* const adapter = linear->adapter();
    if (&linear->weight() != &p || !adapter) continue;
    const HostTensor a = adapter_values(described, adapter->a()), b = adapter_values(described, adapter->b());
    const std::int64_t rank = adapters_.rank;
    for (std::size_t i = 0; i < adapter->options().parts.size(); ++i) {
      const nn::Adapter::Part& part = adapter->parts()[i];
      const auto first = static_cast<std::int64_t>(i) * rank;
      const Tensor sum = held_.view().slice_rows(part.begin, part.end);
      kernels::gemm(*stream_, scratch,
                    {.a = {.values = b.view().slice_rows(part.begin_of_b, part.begin_of_b + part.end - part.begin)},
                     .b = kernels::transposed_values(a.view().slice_rows(first, first + rank)),
                     .c = sum,
                     .d = sum,
                     .factor = static_cast<float>(adapters_.scale())});
    }
  }
  return held_.view();
}

}  // namespace octet::train
