// Mixtral 8x7B and 8x22B (Jiang et al., 2024), as transformers' MixtralForCausalLM has them.
#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/families.h"

namespace octet::models {
namespace {

DecoderConfig parse_mixtral(const JsonReader& read) {
  DecoderConfig c = parse_decoder(read, {.kv_heads = 8, .max_position = 131072, .rope_theta = 1e6, .norm_epsilon = 1e-5});
  c.sliding_window = read.integer("sliding_window", 0);
  c.experts = read.integer("num_local_experts", 8);
  c.experts_per_token = read.integer("num_experts_per_tok", 2);
  parse_router(read, c);
  demand(c.experts > 0, ExitCode::data, read.source(), ": num_local_experts = ", c.experts, ": must be positive");
  const double jitter = read.number("router_jitter_noise", 0.0);
  demand(jitter == 0.0, ExitCode::data, read.source(), ": router_jitter_noise = ", jitter, " is not supported (0)");
  return c;
}

nlohmann::ordered_json write_mixtral(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "MixtralForCausalLM");
  write_sliding_window(c, object);
  object["num_local_experts"] = c.experts;
  object["num_experts_per_tok"] = c.experts_per_token;
  write_router(c, object);
  return object;
}

}  // namespace

Family mixtral_family() {
  return {.model_type = "mixtral",
          .parse = parse_mixtral,
          .write = write_mixtral,
          .modules = {.feed_forward = "block_sparse_moe", .up = {"w1", "w3"}, .down = "w2"}};
}

}  // namespace octet::models
