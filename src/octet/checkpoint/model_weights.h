// The weights of a model directory in the Hugging Face layout, to be read: model.safetensors, or model.safetensors.index.json and
// its shards, in floats or in FP8 with block scales (block_fp8.h). They are read in pieces; what nobody asks for is not read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/file.h"
#include "octet/checkpoint/safetensors.h"

namespace octet::checkpoint {

inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

// {tensor: shard} of an index's text. Throws Error{data} "SOURCE: reason", for a file outside the directory, too.
std::map<std::string, std::string> parse_index(std::string_view text, const std::string& source);

// Whether `dir` holds weights at all (config.json alone means: start at random).
bool has_weights(const std::filesystem::path& dir);

class ModelWeights {
 public:
  // Throws Error{data}, one line with the file: no weights, an index that is not one or names a file outside the directory, a
  // shard that is no safetensors file, a config.json that names another quantisation. All that an index and its shards do not
  // agree about is said in one: absent shards, tensors that their shard does not hold, that lie in another one or that the index
  // does not name.
  static ModelWeights open(const std::filesystem::path& dir);

  const std::filesystem::path& dir() const { return dir_; }
  // Sorted; without the scales of those that are quantised.
  const std::vector<std::string>& names() const { return names_; }
  // Null when there is no tensor of this name. Of those quantised the codes.
  const TensorInfo* find(const std::string& name) const;
  // Why its values cannot be read, '"NAME" is I32, expected F32, BF16, F16 or F64', or "" when they can.
  std::string fault_of(const std::string& name) const;

 private:
  friend class WeightReader;
  struct Place {
    std::size_t file;
    const TensorInfo* info;
  };
  struct Shard {
    FileReader file;
    SafetensorsHeader header;
  };
  ModelWeights() = default;
  void add(const std::filesystem::path& path);
  void add_shards();
  const Place& place_of(const std::string& name) const;

  std::filesystem::path dir_;
  bool block_fp8_ = false;
  std::vector<Shard> shards_;
  std::map<std::string, Place> places_;
  std::vector<std::string> names_;
};

// The values of one tensor that has no fault, piece by piece, of all forms in the same way: codes times scales in F32; to BF16
// and F16 to nearest even, from F64 by way of F32. Takes a few MiB at most, and the scales of one tensor.
class WeightReader {
 public:
  // `weights` outlives it. Throws Error{data} for an unknown name and for scales that are negative or not finite.
  WeightReader(const ModelWeights& weights, const std::string& name);

  std::int64_t elements() const { return elements_; }
  // out[i] = element begin + i in row-major order, as `to`: F32, BF16, F16 or F64.
  void read(std::int64_t begin, std::int64_t count, DType to, void* out);

 private:
  const FileReader& file_;
  const TensorInfo& info_;
  std::size_t data_begin_;  // of the tensor in the file
  std::int64_t elements_ = 0;
  std::vector<float> scales_;  // of codes; empty otherwise
  std::vector<std::byte> stored_;
  std::vector<float> decoded_;
};

bool is_stored_float(DType dtype);

// out[i] = in[i]; by way of F32 unless both are the same.
void convert(DType from, const void* in, DType to, void* out, std::int64_t count);

}  // namespace octet::checkpoint
