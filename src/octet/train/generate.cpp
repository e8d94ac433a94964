#include "octet/train/generate.h"

#include <algorithm>
#include <cmath>

#include "octet/base/rng.h"
#include "octet/tensor/host_tensor.h"

namespace octet::train {
namespace {

std::size_t sample(const std::vector<double>& logits, double temperature, double uniform) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0.0) return static_cast<std::size_t>(likeliest - logits.begin());
  std::vector<double> cumulative(logits.size());
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) cumulative[i] = sum += std::exp((logits[i] - *likeliest) / temperature);
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum);
  return static_cast<std::size_t>(std::min(chosen, cumulative.end() - 1) - cumulative.begin());
}

// The ids that have a text or end it. A model's vocabulary may be larger than its tokenizer's, padded to a multiple.
std::vector<std::int32_t> known_ids(const models::DecoderConfig& model, const data::Tokenizer& tokenizer) {
  std::vector<std::int32_t> known;
  for (std::int32_t id = 0; id < model.vocab; ++id) {
    const bool ends = std::find(model.eos.begin(), model.eos.end(), id) != model.eos.end();
    if (ends || id < tokenizer.vocab_size()) known.push_back(id);
  }
  return known;
}

}  // namespace

void generate(Engine& engine, const data::Tokenizer& tokenizer, std::vector<std::int32_t> ids, const GenerateOptions& options,
              const std::function<bool(std::int32_t)>& on_token) {
  require(!ids.empty(), "generate: no token to begin with");
  const Rng rng(options.seed, RngStream::generate);
  const std::vector<std::int32_t> known = known_ids(engine.model().config(), tokenizer);
  const auto window = static_cast<std::size_t>(engine.options().seq_len);
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    const std::size_t seen = std::min(ids.size(), window);
    const Tensor logits = engine.logits(std::span(ids).last(seen));
    const HostTensor last = to_host(engine.stream(), logits.slice_rows(logits.rows() - 1, logits.rows()));
    std::vector<double> values(known.size());
    visit_float(last.dtype(), [&]<class T>() {
      const T* row = last.view().as<T>();
      for (std::size_t i = 0; i < known.size(); ++i) values[i] = static_cast<double>(static_cast<Real<T>>(row[known[i]]));
    });
    for (std::size_t k = 0; k < known.size(); ++k) {
      demand(std::isfinite(values[k]), ExitCode::not_finite, options.model, ": the logit of token ", known[k], " is ",
             std::isnan(values[k]) ? "NaN" : "infinite", ": weights are NaN, infinite or too large, so the model cannot be used");
    }
    const std::size_t chosen = sample(values, options.temperature, rng.uniform(static_cast<std::uint64_t>(i)));
    const std::int32_t id = known[chosen];
    ids.push_back(id);
    if (!on_token(id)) return;
  }
}

}  // namespace octet::train
