// A frozen model with its adapters added to its weights: W + s B A.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "octet/checkpoint/model_weights.h"
#include "octet/checkpoint/reader.h"
#include "octet/tensor/host_tensor.h"
#include "octet/train/config.h"
#include "octet/train/convert.h"

namespace octet::train {

class MergedModel {
 public:
  // Merges an adapter directory of PEFT with the model that it names. Throws Error{data}.
  explicit MergedModel(const std::filesystem::path& adapter);
  // Whether the model beneath the adapters is read. Their names and shapes are known without it.
  enum class Base : std::uint8_t { read, may_be_gone };
  // Merges the adapters of a checkpoint with the model that its run began with, which is loaded again. Throws Error{data}, also
  // if another model is there now. With Base::may_be_gone, warns if no model is there; only whole_of_adapter() may be called
  // then.
  MergedModel(checkpoint::Reader reader, const Config& config, Base base);

  const models::DecoderConfig& config() const { return config_; }
  // The Hugging Face directory of the model; empty for a model of random weights.
  const std::filesystem::path& base() const { return base_; }
  // The name that the run or the adapter gives the model: an s3:// URL if base() is a copy.
  const std::string& base_name() const { return base_name_; }
  const models::Adapters& adapters() const { return adapters_; }
  // The number of the model's weights that are stored as FP8 codes: whole() decodes them.
  std::int64_t coded_weights() const;

  // Throws one error that lists all missing, unexpected and misshapen tensors.
  void check(DescribedModel& described) const;
  // Returns all of a parameter of the model, in F32: valid until the next call. `described` has the adapters.
  Tensor whole(DescribedModel& described, const parallel::Parameter& p);
  // Returns all of a parameter of adapters, in F32: valid until the next call.
  Tensor whole_of_adapter(DescribedModel& described, const parallel::Parameter& p);

 private:
  HostTensor base_values(DescribedModel& described, const parallel::Parameter& p) const;
  HostTensor adapter_values(DescribedModel& described, const parallel::Parameter& p) const;

  models::DecoderConfig config_;
  models::Adapters adapters_;
  std::filesystem::path base_;
  std::string base_name_;
  std::optional<checkpoint::ModelWeights> base_weights_;  // absent: random, by `seed_`
  std::uint64_t seed_ = 0;
  DType dtype_ = DType::f32;                                 // the dtype to which training rounded the model's weights
  std::optional<checkpoint::ModelWeights> adapter_weights_;  // of a directory, or
  std::optional<checkpoint::Reader> reader_;                 // of a checkpoint
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  HostTensor held_;
};

}  // namespace octet::train
