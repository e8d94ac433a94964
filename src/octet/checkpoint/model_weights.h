// Reads the weights of a model directory in the Hugging Face layout: model.safetensors, or model.safetensors.index.json and its shards,
// with floating-point weights or FP8 weights with block scales (block_fp8.h). Opening reads only the headers; WeightReader reads values
// in pieces.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/file.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/weight_files.h"

namespace octet::checkpoint {

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

// Parses an index and returns {tensor name: file name of its shard}. Throws Error{data} "SOURCE: reason" for a malformed index or a file
// outside the directory.
std::map<std::string, std::string> parse_index(std::string_view text, const std::string& source);

// Whether `dir` holds weights. A directory with only a config.json means random initialization.
bool has_weights(const std::filesystem::path& dir);

class ModelWeights {
 public:
  // Reads config.json, the index and the headers of the shards. Throws Error{data}, one line that names the file, if there are no
  // weights, the index or a shard is malformed, the index names a file outside the directory, or config.json declares an unsupported
  // quantisation. All differences between an index and its shards are in one error: absent shards, tensors that are missing from their
  // shard or are in another shard, and tensors that the index does not name.
  static ModelWeights open(const std::filesystem::path& dir);
  // Reads the header of one file, whose weights are in floating point.
  static ModelWeights open_file(const std::filesystem::path& file);

  // The directory, or the file that was opened alone.
  const std::filesystem::path& dir() const { return dir_; }
  // The names of the weights, sorted. The scales of quantised weights are not among them.
  const std::vector<std::string>& names() const { return names_; }
  // The tensor `name`, or nullptr if there is none. For a quantised weight, this is the tensor of codes.
  const TensorInfo* find(const std::string& name) const;
  // Returns why the values of a weight cannot be read, such as '"NAME" is I32, expected F32, BF16, F16 or F64', or "" if they can.
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
  void add_single(const std::filesystem::path& path);
  void add_shards();
  const Place& place_of(const std::string& name) const;

  std::filesystem::path dir_;
  bool block_fp8_ = false;
  std::vector<Shard> shards_;
  std::map<std::string, Place> places_;
  std::vector<std::string> names_;
};

// Reads the values of one weight in pieces. The weight must have no fault (fault_of()). FP8 codes are multiplied by their scales in F32.
// Conversions to BF16 and F16 round to nearest even; conversions from F64 go through F32. Memory holds a few MiB and the scales of the
// weight.
class WeightReader {
 public:
  // `weights` must outlive the reader. Throws Error{data} for an unknown name, and for scales that are negative or not finite.
  WeightReader(const ModelWeights& weights, const std::string& name);

  std::int64_t elements() const { return elements_; }
  // Writes elements [begin, begin + count), in row-major order, to `out` as dtype `to`: F32, BF16, F16 or F64.
  void read(std::int64_t begin, std::int64_t count, DType to, void* out);

 private:
  const FileReader& file_;
  const TensorInfo& info_;
  std::size_t data_begin_;  // byte offset of the tensor's data in the file
  std::int64_t elements_ = 0;
  std::vector<float> scales_;  // the scales of FP8 codes; empty for a floating-point weight
  std::vector<std::byte> stored_;
  std::vector<float> decoded_;
};

// Whether `dtype` is F64, F32, BF16 or F16.
bool is_stored_float(DType dtype);

// Whether no value of [0, count) is NaN or infinite.
bool all_finite(DType dtype, const void* values, std::int64_t count);

// out[i] = in[i] for i in [0, count). If the dtypes differ, converts through F32.
void convert(DType from, const void* in, DType to, void* out, std::int64_t count);

}  // namespace octet::checkpoint
