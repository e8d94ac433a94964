#include "octet/train/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>

#include "octet/base/json.h"
#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/checkpoint/model_dir.h"
#include "octet/recipes/registry.h"
#include "octet/tensor/host_tensor.h"
#include "octet/train/convert.h"
#include "octet/train/model_files.h"
#include "octet/train/probe.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPieceElements = 1 << 20, kGrain = 1 << 15;
constexpr double kRoundoff = 0x1p-20;  // relative to the largest element of all gradients

// Accumulates the difference of two tensors, piece by piece. The result does not depend on the number of threads.
class Comparison {
 public:
  void add(std::span<const float> a, std::span<const float> b) {
    std::vector<Sums> parts(static_cast<std::size_t>(ceil_div(static_cast<std::int64_t>(a.size()), kGrain)));
    parallel_ranges(static_cast<std::int64_t>(a.size()), kGrain, [&](std::int64_t begin, std::int64_t end) {
      Sums& sums = parts[static_cast<std::size_t>(begin / kGrain)];
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) sums.add(a[i], b[i]);
    });
    for (const Sums& part : parts) {
      total_.squares_a += part.squares_a;
      total_.squares_b += part.squares_b;
      total_.largest_a = std::max(total_.largest_a, part.largest_a);
      total_.difference = std::max(total_.difference, part.difference);
    }
  }
  double largest_a() const { return total_.largest_a; }
  TensorDifference result(const std::string& name, double tolerance, double roundoff) const {
    TensorDifference result{.name = name,
                            .absolute = total_.difference,
                            .relative = total_.difference == 0 ? 0 : total_.difference / total_.largest_a,
                            .norm_a = std::sqrt(total_.squares_a),
                            .norm_b = std::sqrt(total_.squares_b)};
    result.same = result.absolute <= tolerance * total_.largest_a + roundoff;
    return result;
  }

 private:
  struct Sums {
    double squares_a = 0, squares_b = 0, largest_a = 0, difference = 0;

    void add(float x, float y) {
      const double a = static_cast<double>(x), b = static_cast<double>(y);
      squares_a += a * a;
      squares_b += b * b;
      if (std::isfinite(a)) largest_a = std::max(largest_a, std::abs(a));
      if (a == b || (std::isnan(a) && std::isnan(b))) return;
      const double distance = std::abs(a - b);
      difference = std::max(difference, std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity());
    }
  };
  Sums total_;
};

std::vector<TensorDifference> compare_weights(const DescribedModel& model, const VerifyOptions& options) {
  const checkpoint::ModelWeights a = checkpoint::ModelWeights::open(options.a), b = checkpoint::ModelWeights::open(options.b);
  for (const checkpoint::ModelWeights* weights : {&a, &b}) {
    check_model(*weights, model.names, model.model->config());
  }
  const auto stored_bytes = [&](const std::string& name) {
    return static_cast<std::int64_t>(a.find(name)->end - a.find(name)->begin + b.find(name)->end - b.find(name)->begin);
  };
  std::int64_t done = 0, total = 0;
  for (const parallel::NameEntry& entry : model.names) total += stored_bytes(entry.external);
  std::vector<float> piece_a(kPieceElements), piece_b(kPieceElements);
  std::vector<TensorDifference> result;
  for (const parallel::NameEntry& entry : model.names) {
    checkpoint::WeightReader reader_a(a, entry.external), reader_b(b, entry.external);
    Comparison comparison;
    for (std::int64_t at = 0; at < reader_a.elements(); at += kPieceElements) {
      const std::int64_t count = std::min(kPieceElements, reader_a.elements() - at);
      reader_a.read(at, count, DType::f32, piece_a.data());
      reader_b.read(at, count, DType::f32, piece_b.data());
      comparison.add(std::span(piece_a).first(static_cast<std::size_t>(count)),
                     std::span(piece_b).first(static_cast<std::size_t>(count)));
      done += stored_bytes(entry.external) / reader_a.elements() * count;
      if (options.progress) options.progress(done, total);
    }
    result.push_back(comparison.result(entry.external, options.tolerance, 0));
  }
  return result;
}

std::map<std::string, HostTensor> outputs_of(const fs::path& directory, const ProbeInput& input, const std::string& source) {
  EngineOptions options;
  options.model = models::read_config(directory);
  only_losses_of_transformers(options.model);
  options.recipe = recipes::make_recipe("fp32", {});
  options.seq_len = input.seq_len;
  options.micro_batch_size = input.batch;
  options.storage.moments = DType::bf16;  // saves memory: the moments are not used
  options.whole_logits = true;
  Engine engine(options, DeviceKind::cpu);
  load_model(engine, directory);
  return model_outputs(engine, input, true, source);
}

std::vector<TensorDifference> compare_outputs(const DescribedModel& model, const VerifyOptions& options) {
  const models::DecoderConfig& config = model.model->config();
  const ProbeInput input =
      options.tokens.empty() ? random_probe_input(config, options.seed) : read_probe_input(options.tokens, config);
  const std::string source = options.tokens.empty() ? "random tokens" : options.tokens.string();
  // Only one engine exists at a time, to save memory.
  const auto a = outputs_of(options.a, input, source), b = outputs_of(options.b, input, source);
  std::map<std::string, Comparison> comparisons;
  double largest_gradient = 0;
  for (const auto& [name, tensor] : a) {
    const auto elements = static_cast<std::size_t>(tensor.shape().elements());
    Comparison& comparison = comparisons[name];
    comparison.add({tensor.view().as<float>(), elements}, {b.at(name).view().as<float>(), elements});
    if (name.starts_with("grad.")) largest_gradient = std::max(largest_gradient, comparison.largest_a());
  }
  std::vector<TensorDifference> result;
  for (const char* name : {"logits", "loss"}) result.push_back(comparisons.at(name).result(name, options.tolerance, 0));
  for (const parallel::NameEntry& entry : model.names) {
    if (entry.parameter->spec.tracked) continue;
    const std::string name = "grad." + entry.external;
    result.push_back(comparisons.at(name).result(name, options.tolerance, kRoundoff * largest_gradient));
  }
  return result;
}

}  // namespace

const TensorDifference* Verification::worst() const {
  const TensorDifference* worst = nullptr;
  for (const auto* list : {&weights, &outputs}) {
    for (const TensorDifference& difference : *list) {
      if (!difference.same && (worst == nullptr || difference.relative > worst->relative)) worst = &difference;
    }
  }
  return worst;
}

bool Verification::same() const { return config.empty() && worst() == nullptr; }

Verification verify_models(const VerifyOptions& options) {
  const models::DecoderConfig a = models::read_config(options.a), b = models::read_config(options.b);
  Verification result;
  for (const auto& [key, of_a, of_b] : models::config_differences(a, b))
    result.config.push_back(concat(key, " = ", in_words(of_a), " and ", in_words(of_b)));
  if (!result.config.empty()) return result;
  const DescribedModel model(a);
  result.weights = compare_weights(model, options);
  if (options.outputs) result.outputs = compare_outputs(model, options);
  return result;
}

}  // namespace octet::train
