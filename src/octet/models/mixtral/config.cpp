#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/decoder/names.h"
#include "octet/models/mixtral/mixtral.h"

namespace octet::models {
namespace {

DecoderConfig parse_mixtral(const nlohmann::json& object, const std::string& source) {
  const JsonReader read(object, source);
  DecoderConfig c =
      parse_decoder(read, "mixtral", {.kv_heads = 8, .max_position = 131072, .rope_theta = 1e6, .norm_epsilon = 1e-5});
  c.sliding_window = read.integer("sliding_window", 0);
  c.experts = read.integer("num_local_experts", 8);
  c.experts_per_token = read.integer("num_experts_per_tok", 2);
  c.router_balance = read.number("router_aux_loss_coef", 0.001);
  c.router_z = read.number("router_z_loss_coef", 0.0);
  if (read.has("router_bias_update_rate")) c.router_bias_rate = read.number("router_bias_update_rate");
  c.output_router_logits = read.boolean("output_router_logits", false);
  demand(c.experts > 0, ExitCode::data, source, ": num_local_experts = ", c.experts, ": must be positive");
  const double jitter = read.number("router_jitter_noise", 0.0);
  demand(jitter == 0.0, ExitCode::data, source, ": router_jitter_noise = ", jitter, " is not supported (0)");
  check(c, source);
  return c;
}

nlohmann::ordered_json write_mixtral(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "MixtralForCausalLM");
  object["sliding_window"] = c.sliding_window > 0 ? nlohmann::ordered_json(c.sliding_window) : nlohmann::ordered_json();
  object["num_local_experts"] = c.experts;
  object["num_experts_per_tok"] = c.experts_per_token;
  object["router_aux_loss_coef"] = c.router_balance;
  if (c.router_z != 0) object["router_z_loss_coef"] = c.router_z;  // Octet's own, as the next one
  if (c.router_bias_rate) object["router_bias_update_rate"] = *c.router_bias_rate;
  object["output_router_logits"] = c.output_router_logits;
  return object;
}

}  // namespace

Family mixtral_family() {
  return {.model_type = "mixtral",
          .parse = parse_mixtral,
          .write = write_mixtral,
          .names = parameter_names,
          .modules = {.feed_forward = "block_sparse_moe", .up = {"w1", "w3"}, .down = "w2"}};
}

}  // namespace octet::models
