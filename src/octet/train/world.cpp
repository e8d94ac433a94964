#include "octet/train/world.h"

#include <algorithm>

#include "octet/base/checksum.h"
#include "octet/comm/gloo.h"
#include "octet/train/version.h"

namespace octet::train {
namespace {

// Of a collective, and for ranks to meet. Who dies is noticed at once; this is for what is merely slow, such as rank 0 at a
// large checkpoint.
constexpr double kTimeoutS = 300;
// Between a connection that breaks here and the news of it from rank 0.
constexpr double kNewsS = 2;

std::string sum_of(const std::string& text) {
  RunningChecksum sum;
  sum.update(text);
  return sum.hex();
}

}  // namespace

parallel::Mesh mesh_of(const Config& config, int ranks) {
  const ParallelConfig& p = config.parallel;
  const std::int64_t shard = p.shard == -1 ? ranks / (p.replicate * p.context * p.tensor) : p.shard;
  const auto refuse = [&](const char* axis, std::int64_t size) {
    demand(size == 1, ExitCode::config, config.file, ": parallel.", axis, " = ", size,
           ": this version has the axes replicate, shard and context");
  };
  refuse("tensor", p.tensor);
  return parallel::Mesh({static_cast<int>(p.replicate), static_cast<int>(shard), static_cast<int>(p.context), 1});
}

World::World(const comm::RankEnvironment& where, const Config& config) : rank_(where.rank), mesh_(mesh_of(config, where.size)) {
  if (where.size > 1) {
    rendezvous_ = std::make_unique<comm::Rendezvous>(comm::Rendezvous::Options{
        .rank = where.rank, .size = where.size, .host = where.host, .port = where.port, .timeout_s = kTimeoutS});
    agree("the version of octet", kVersion);
    agree("the configuration (its checksum)", sum_of(print_config(config)));
  }
  groups_ = parallel::make_groups(mesh_, rank_, [this](const std::string& name, const std::vector<int>& ranks) {
    return comm::make_gloo_group({.name = name,
                                  .rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin()),
                                  .size = static_cast<int>(ranks.size()),
                                  .timeout_s = kTimeoutS,
                                  .set = [this](const std::string& key, std::string_view value) { rendezvous_->set(key, value); },
                                  .get = [this](const std::string& key) { return rendezvous_->get(key); },
                                  .blame =
                                      [this] {
                                        const std::string lost = rendezvous_->lost_text(kNewsS);
                                        return concat("step ", step_ + 1, lost.empty() ? "" : ": ", lost);
                                      }});
  });
}

void World::barrier(const std::string& name) {
  if (rendezvous_) rendezvous_->barrier(name);
}

void World::agree(const std::string& what, const std::string& value) {
  if (rendezvous_) rendezvous_->agree(what, value);
}

}  // namespace octet::train
