#include "octet/train/world.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "octet/base/checksum.h"
#include "octet/base/log.h"
#include "octet/base/process_identity.h"
#include "octet/comm/multicast.h"
#include "octet/comm/socket.h"
#include "octet/comm/transport.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/telemetry/rank_page.h"
#include "octet/train/meeting.h"
#include "octet/train/setup.h"

namespace octet::train {
namespace {

// The timeout of waits for large files: a rank's part of a checkpoint, or rank 0's verification of a corpus.
constexpr double kFilesTimeoutS = 3600;
// How long to wait, after an operation fails here, until rank 0 reports which rank is lost. A rank with a broken link needs part
// of this time to find it.
constexpr double kNewsS = 2 + comm::Links::kAnswerS;

// Checks that the tensor axis divides all dims that it splits.
void check_tensor_axis(const Config& config) {
  const models::DecoderConfig model = decoder_config(config);
  const std::int64_t ranks = config.parallel.tensor;
  const auto divides = [&](const char* name, std::int64_t size, std::int64_t least = 1) {
    demand(size % (least * ranks) == 0, ExitCode::config, config.file, ": ", name, " = ", size, ": must be a multiple of ",
           least == 1 ? "" : concat(least, " x "), "parallel.tensor = ", ranks);
  };
  demand(model.qk_norm != nn::QkNorm::whole, ExitCode::config, config.file, ": parallel.tensor = ", ranks, ": ", model.family,
         " has a norm over all heads, which the tensor axis would cut. Use parallel.shard or parallel.context");
  divides("num_attention_heads", model.heads);
  demand(model.kv_heads % ranks == 0 || ranks % model.kv_heads == 0, ExitCode::config, config.file,
         ": num_key_value_heads = ", model.kv_heads, ": must be a multiple of parallel.tensor = ", ranks, ", or divide it");
  divides("num_attention_heads x head_dim", model.heads * model.head_dim, 16);
  if (model.mixtures() < model.layers || model.expert_ffn == 0) divides("intermediate_size", model.ffn, 16);
  if (model.expert_ffn > 0) divides("moe_intermediate_size", model.expert_ffn, 16);
  divides("vocab_size", model.vocab);
  divides("training.micro_batch_size x training.seq_len / parallel.context",
          config.training.micro_batch_size * config.training.seq_len / config.parallel.context);
}

// Checks that each rank of the expert axis gets the same number of experts.
void check_experts(const Config& config) {
  const std::int64_t experts = decoder_config(config).experts, ranks = config.parallel.expert;
  demand(experts > 0, ExitCode::config, config.file, ": parallel.expert = ", ranks, ": the model has no experts");
  demand(experts % ranks == 0, ExitCode::config, config.file, ": parallel.expert = ", ranks, ": must divide the ", experts,
         " experts of a layer");
}

// Checks that the stages have blocks enough.
void check_stages(const Config& config) {
  const models::DecoderConfig model = decoder_config(config);
  const std::int64_t stages = config.parallel.pipeline, chunks = stages * config.parallel.pipeline_chunks;
  demand(!model.tied_head, ExitCode::config, config.file, ": parallel.pipeline = ", stages,
         ": the model's head is tied to its embedding, and the first and the last stage would both need it; use parallel.shard or "
         "parallel.tensor, or model.tie_word_embeddings = false");
  demand(stages <= model.layers, ExitCode::config, config.file, ": parallel.pipeline = ", stages, ": the model has ", model.layers,
         " blocks, and every stage needs one");
  demand(model.layers % chunks == 0 || (model.layers + 2) % chunks == 0, ExitCode::config, config.file,
         ": parallel.pipeline = ", stages, config.parallel.pipeline_chunks > 1 ? concat(" x pipeline_chunks = ", config.parallel.pipeline_chunks) : "",
         ": must divide the ", model.layers, " blocks, or ", model.layers + 2, ", which counts embedding and head");
}

// Returns how many blocks take about as long as the head. Times are in BF16 operations at the rate of products. On an H200
// operations in FP8 take 0.55 of that, operations of attention 1.9 times as long, and what a block does beside them 0.07 of its
// products (docs/measurements/h200-one-gpu.md, "Where a token's time goes").
int head_blocks(const Config& config) {
  if (config.parallel.pipeline == 1) return 0;
  if (config.parallel.pipeline_head_blocks >= 0) return static_cast<int>(config.parallel.pipeline_head_blocks);
  const models::DecoderConfig model = decoder_config(config);
  const double fp8 = config.precision.recipe == "bf16" ? 1 : 0.55, operations = model.train_flops_per_token(1),
               head = 6.0 * static_cast<double>(model.vocab * model.dim), products = operations - head,
               attention = model.train_flops_per_token(config.training.seq_len) - operations;
  const double again = config.activation_checkpoint.mode == "full" ? 4.0 / 3 : 1;  // a block's forward pass, once more
  const double block = again * ((fp8 + 0.07) * products + 1.9 * attention) / static_cast<double>(model.layers);
  return static_cast<int>(std::lround((config.precision.head == "recipe" ? fp8 : 1) * head / block));
}

std::string sum_of(const std::string& text) {
  RunningChecksum sum;
  sum.update(text);
  return sum.hex();
}

}  // namespace

parallel::Mesh mesh_of(const Config& config, int ranks) {
  const ParallelConfig& p = config.parallel;
  const std::int64_t shard = p.shard == -1 ? ranks / (p.pipeline * p.replicate * p.context * p.tensor) : p.shard;
  if (p.tensor > 1) check_tensor_axis(config);
  if (p.expert > 1) check_experts(config);
  if (p.pipeline > 1) check_stages(config);
  return parallel::Mesh(
      {static_cast<int>(p.replicate), static_cast<int>(shard), static_cast<int>(p.context), static_cast<int>(p.tensor)},
      static_cast<int>(p.expert),
      {.count = static_cast<int>(p.pipeline), .chunks = static_cast<int>(p.pipeline_chunks), .head_blocks = head_blocks(config)});
}

int gpu_of(const comm::RankEnvironment& where) {
  return where.source != "torchrun" && cuda_device_count() == 1 ? 0 : where.local_rank;
}

World::World(const comm::RankEnvironment& where, const Config& config) : rank_(where.rank), mesh_(mesh_of(config, where.size)) {
  telemetry::own_page().enter(telemetry::Phase::joining);
  if (where.size > 1) {
    use_interface_for_nccl(
        config.comm);  // before the first thread starts, because setenv and getenv must not run at the same time
    rendezvous_ = std::make_unique<comm::Rendezvous>(meeting_options(where, config.comm));
    agree("the configuration (its checksum)", sum_of(print_config(config)));
  }
  const DeviceKind kind = device_of(config);
  if (kind == DeviceKind::cuda) gpu_ = gpu_of(where);
  if (kind == DeviceKind::cuda && where.size > 1 && is_first()) {
    if (const std::string found = variables_of_nccl(::environ); !found.empty()) log_info("NCCL reads " + found);
  }
  device_ = make_device(kind, std::max(gpu_, 0));
  name_ = concat("rank ", rank_, " (", ProcessIdentity::mine().host, gpu_ >= 0 ? concat(" GPU ", gpu_) : "", ")");
  const auto set = [this](const std::string& key, std::string_view value, int reads) { rendezvous_->set(key, value, reads); };
  const auto get = [this](const std::string& key) { return rendezvous_->get(key); };
  const auto blame = [this](const std::vector<int>& ranks) {
    std::string cause = lost_text();
    if (cause.empty()) cause = broken_links(ranks);
    if (cause.empty()) cause = lost_text(kNewsS);
    return concat("step ", step_ + 1, cause.empty() ? "" : ": ", cause);
  };
  const auto lost = [this] { return lost_text(); };
  if (rendezvous_ && kind == DeviceKind::cuda) {
    comm::probe_multicast({.name = "multicast", .rank = rank_, .size = size(), .set = set, .get = get}, gpu_of(where));
  }
  const std::string address = rendezvous_ ? address_for_groups(*rendezvous_, config.comm) : "";
  if (rendezvous_) links_.emplace(*rendezvous_, address);
  groups_ = parallel::make_groups(mesh_, rank_, [&](const std::string& name, const std::vector<int>& ranks) {
    return comm::make_group(*device_, {.name = name,
                                       .rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin()),
                                       .size = static_cast<int>(ranks.size()),
                                       .address = address,
                                       .timeout_s = config.comm.timeout_s,
                                       .set = set,
                                       .get = get,
                                       .blame = [blame, ranks] { return blame(ranks); },
                                       .lost = lost,
                                       .broken_links = [this, ranks] { return broken_links(ranks); }});
  });
  telemetry::own_page().unreachable = 0;  // a link that was only slow has nothing to do with a later failure
}

std::string World::lost_text(double wait_s) const {
  std::string text = rendezvous_->lost_text(wait_s);
  if (mesh_.stages().count == 1) return text;
  constexpr std::string_view kRank = "rank ";
  for (std::size_t at = text.find(kRank); at != std::string::npos; at = text.find(kRank, at)) {
    at += kRank.size();
    const std::size_t end = text.find_first_not_of("0123456789", at);
    if (end == at) continue;
    const int rank = std::stoi(text.substr(at));
    const std::string stage = concat(" (stage ", mesh_.coordinate(parallel::Axis::pipeline, rank), ")");
    text.insert(std::min(end, text.size()), stage);
  }
  return text;
}

std::string World::broken_links(const std::vector<int>& ranks) const {
  const comm::Links::Broken broken = links_->broken(ranks);
  telemetry::own_page().unreachable = broken.ranks.empty() ? 0 : broken.ranks.front() + 1;
  return broken.text;
}

checkpoint::Ranks World::checkpoint_ranks() {
  if (!rendezvous_) return {};
  return {.rank = rank_,
          .size = size(),
          .name = concat("checkpoint ", checkpoint_uses_++),
          .set = [this](const std::string& key, std::string_view value, int reads) { rendezvous_->set(key, value, reads); },
          .get = [this](const std::string& key) { return rendezvous_->get(key, kFilesTimeoutS); }};
}

std::string World::from_first(const std::string& what, const std::string& value) {
  if (!rendezvous_) return value;
  if (is_first()) rendezvous_->set(what, value, size());
  return rendezvous_->get(what, kFilesTimeoutS);
}

void World::wait_for_first(const std::string& what) {
  if (!rendezvous_) return;
  if (is_first()) rendezvous_->set(what, "", size());
  rendezvous_->get(what, comm::kLongestWait);
}

void World::publish(const std::string& what, const std::string& value, int times) {
  if (rendezvous_) rendezvous_->set(what, value, times);
}

std::string World::read(const std::string& what) { return rendezvous_ ? rendezvous_->get(what) : ""; }

void World::barrier(const std::string& name) {
  if (rendezvous_) rendezvous_->barrier(name);
}

void World::agree(const std::string& what, const std::string& value) {
  if (rendezvous_) rendezvous_->agree(what, value);
}

}  // namespace octet::train
