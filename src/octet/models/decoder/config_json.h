// What the config.json files of all families have in common: typed reading, and the keys that describe a DecoderConfig.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "octet/base/json.h"
#include "octet/models/decoder/config.h"

namespace octet::models {

// Reads typed values of an object. Throws Error{data} that names the source and what is wrong with a value. A null counts as an
// absent key. The object and the source must outlive the reader.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& object, const std::string& source) : object_(object), source_(source) {}

  bool has(const char* key) const;
  bool has_null(const char* key) const;
  std::int64_t integer(const char* key) const;
  std::int64_t integer(const char* key, std::int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  double number(const char* key) const;
  double number(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool boolean(const char* key, bool otherwise) const;
  std::string string(const char* key, const std::string& otherwise) const;

  const nlohmann::json& object() const { return object_; }
  const std::string& source() const { return source_; }

 private:
  const nlohmann::json& object_;
  const std::string& source_;
};

nlohmann::ordered_json write_rope_scaling(const kernels::RopeScaling& scaling);
// Reads the scaling and the theta of rotary embeddings from rope_scaling or rope_parameters, where transformers 5 keeps both.
// `config` has the model's max_position, and the theta for files that have none there.
void parse_rope(const JsonReader& read, DecoderConfig& config);
// Returns a number of rope_parameters or rope_scaling, or `otherwise`.
double rope_number(const JsonReader& read, const char* key, double otherwise);

// Read and write the share of each head that is rotated: partial_rotary_factor of rope_parameters, else the number under `key`.
void parse_rotary_share(const JsonReader& read, const char* key, double otherwise, DecoderConfig& config);
double rotary_share(const DecoderConfig& config);

// Writes sliding_window, or null if there is no window.
void write_sliding_window(const DecoderConfig& config, nlohmann::ordered_json& object);

// Read and write the window that all Qwen families may have, and the list of layers of Qwen2 and Qwen3 that use it.
void parse_qwen_window(const JsonReader& read, DecoderConfig& config);
void parse_qwen_window_layers(const JsonReader& read, DecoderConfig& config);
void write_qwen_window(const DecoderConfig& config, nlohmann::ordered_json& object);
void write_qwen_window_layers(const DecoderConfig& config, nlohmann::ordered_json& object);

// Read and write the keys of a mixture's router. router_z_loss_coef and router_bias_update_rate are Octet's own.
void parse_router(const JsonReader& read, DecoderConfig& config);
void write_router(const DecoderConfig& config, nlohmann::ordered_json& object);

// Returns the GELU that `key` names.
kernels::Gelu parse_gelu(const JsonReader& read, const char* key, const std::string& otherwise);
// Returns the name of a GELU in config.json. `tanh` is the name that the family's published models have for GELU with tanh.
const char* write_gelu(kernels::Gelu kind, const char* tanh);
// Throws Error{data} if any of the keys asks for dropout.
void refuse_dropout(const JsonReader& read, std::initializer_list<const char*> keys);

// The defaults of a family's class in transformers, for keys that its config.json omits.
struct JsonDefaults {
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: hidden_size / heads
  std::int64_t max_position = 0;
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-6;
  bool rotates_parts = false;  // the family may rotate a part of each head (parse_rotary_share)
};

// Reads all keys except those that the family adds. Throws Error{data} that names each key which is missing or not supported.
DecoderConfig parse_decoder(const JsonReader& read, const JsonDefaults& defaults);
nlohmann::ordered_json write_decoder(const DecoderConfig& config, const std::string& architecture);

}  // namespace octet::models
