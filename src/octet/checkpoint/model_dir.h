// The weights of a model directory in the Hugging Face layout: model.safetensors, or model.safetensors.index.json and its shards.
// config.json and tokenizer files belong to models/ and data/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "octet/checkpoint/safetensors.h"
#include "octet/device/device.h"
#include "octet/parallel/parameter.h"

namespace octet::checkpoint {

// Whether `dir` holds weights at all (config.json alone means: start at random).
bool has_weights(const std::filesystem::path& dir);

class ModelWeights {
 public:
  // Throws Error{data}, one line with the file: no weights, an index that is not one, names a file outside the directory, a
  // missing shard or a tensor that its shard does not hold, a tensor in two shards, a shard that is no safetensors file.
  static ModelWeights open(const std::filesystem::path& dir);

  const std::filesystem::path& dir() const { return dir_; }
  const std::vector<std::string>& names() const { return names_; }  // sorted
  // Null when there is no tensor of this name.
  const TensorInfo* find(const std::string& name) const;
  // A view of read-only host memory. Throws Error{data} for an unknown name.
  Tensor get(const std::string& name) const;

 private:
  struct Place {
    std::size_t file;
    const TensorInfo* info;
  };
  std::filesystem::path dir_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> places_;
  std::vector<std::string> names_;
};

// Converts tensors (F64, F32, BF16, F16; to BF16 to nearest even, from F64 by way of F32) to the dtype of each parameter's
// primary() and copies them into what of `table` this rank holds, the pieces of each parameter whatever the shape of primary(),
// perhaps none; waits for the queue. Missing, extra and
// misshapen tensors and dtypes that are no floats are all said in one Error{data}. Tensors of the directory that match one of the
// globs in `ignorable` (a tied "lm_head.weight") are passed over, and so always are "*rotary_emb.inv_freq". On the meta device
// only the checks are made.
void load_weights(Queue& queue, const ModelWeights& weights, const parallel::NameTable& table,
                  const std::vector<std::string>& ignorable = {});

// Gives all elements of a global parameter's primary, in its own dtype and any shape, contiguous in host memory that stays as it
// is until the next call.
using WholeParameter = std::function<Tensor(const parallel::Parameter& parameter)>;

constexpr std::int64_t kMaxShardBytes = 5'000'000'000;  // as transformers cuts

// Writes the parameters as `dtype` (F32, BF16, F16 or F64) into `dir`, made if need be: model.safetensors when they fit into
// max_shard_bytes, else model-00001-of-0000N.safetensors and so on in the order of `table`, and an index. Files of
// other shardings that stood there are removed. Each file appears complete or not at all, the index last. Throws
// Error{internal} "PATH: reason" for a full disk and the like.
// `whole` is called once for each parameter, in the order of the table, where the entries of a parameter follow one another:
// it may be collective. Then one rank saves and the others join; when the disk is full all calls are made all the same, so
// that nobody is left waiting.
void save_weights(const std::filesystem::path& dir, const parallel::NameTable& table, DType dtype, const WholeParameter& whole,
                  std::int64_t max_shard_bytes = kMaxShardBytes);
// Of primaries that lie whole on the device of `queue`. On the meta device nothing happens.
void save_weights(Queue& queue, const std::filesystem::path& dir, const parallel::NameTable& table, DType dtype,
                  std::int64_t max_shard_bytes = kMaxShardBytes);
// The calls of `whole` that save_weights makes, and nothing else.
void join_save_weights(const parallel::NameTable& table, const WholeParameter& whole);

}  // namespace octet::checkpoint
