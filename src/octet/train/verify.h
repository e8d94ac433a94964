// Checks whether two model directories hold the same model: compares their weights tensor by tensor, and what both models compute.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace octet::train {

struct VerifyOptions {
  std::filesystem::path a, b;    // Hugging Face directories, in any form that ModelWeights reads
  double tolerance = 1e-4;       // relative to the largest magnitude of each tensor of `a`
  bool outputs = true;           // also compares logits, loss and gradients, computed with the recipe fp32 on the CPU
  std::filesystem::path tokens;  // tokens for the outputs, as `octet probe` reads them; "": random tokens
  std::uint64_t seed = 42;       // seed of the random tokens
  std::function<void(std::int64_t bytes, std::int64_t of)> progress = {};  // called with the bytes of weights compared, and the total
};

// The difference between tensor a of the first model and tensor b of the second.
struct TensorDifference {
  std::string name;
  double absolute = 0;            // max |a - b|; infinite if a - b is not finite for some element, unless both are NaN or equal
  double relative = 0;            // absolute / max |a|; infinite if max |a| is 0 and absolute is not
  double norm_a = 0, norm_b = 0;  // Frobenius norms
  bool same = true;               // absolute <= tolerance * max |a|
};

struct Verification {
  std::vector<std::string> config;        // differences such as "num_hidden_layers = 2 and 3"; if there are any, no tensor is compared
  std::vector<TensorDifference> weights;  // in the order of the model
  // logits, loss and grad.NAME. Some gradients are zero except for roundoff, such as the gradient of a bias of the keys. So a gradient's
  // `same` also permits a difference of 2^-20 times the largest element of all gradients.
  std::vector<TensorDifference> outputs;

  bool same() const;
  // Returns the tensor with the largest relative difference among those that are not the same, or nullptr if all are the same.
  const TensorDifference* worst() const;
};

// Compares the models. Throws Error{data} if a directory cannot be loaded.
Verification verify_models(const VerifyOptions& options);

}  // namespace octet::train
