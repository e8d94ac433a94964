// Whether two model directories hold one model: tensor by tensor, and by what both compute.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace octet::train {

struct VerifyOptions {
  std::filesystem::path a, b;    // Hugging Face directories, in any form that ModelWeights reads
  double tolerance = 1e-4;       // relative
  bool outputs = true;           // logits, loss and gradients, too, by the recipe fp32 on the CPU
  std::filesystem::path tokens;  // as `octet probe` reads them; "": random ones
  std::uint64_t seed = 42;       // of those
  std::function<void(std::int64_t bytes, std::int64_t of)> progress = {};  // of the weights
};

// A tensor a of the one and b of the other model.
struct TensorDifference {
  std::string name;
  double absolute = 0;            // max |a - b|; infinite where only one of two elements is a number
  double relative = 0;            // absolute / max |a|; infinite where that is 0 and absolute is not
  double norm_a = 0, norm_b = 0;  // Frobenius
  bool same = true;               // absolute <= tolerance max |a|
};

struct Verification {
  std::vector<std::string> config;        // "num_hidden_layers = 2 and 3"; where there is one, no tensor is compared
  std::vector<TensorDifference> weights;  // in the order of the model
  // logits, loss and grad.NAME. A gradient that cancels, as of a bias of keys, is roundoff alone: 2^-20 of the largest element of
  // all gradients is no difference.
  std::vector<TensorDifference> outputs;

  bool same() const;
  // The one with the largest relative difference that makes them differ; null where none does.
  const TensorDifference* worst() const;
};

// Throws Error{data} for directories that are not whole: as loading them does.
Verification verify_models(const VerifyOptions& options);

}  // namespace octet::train
