#include "octet/comm/rendezvous.h"

#include <utility>

#include "octet/base/require.h"
#include "octet/comm/handshake.h"
#include "octet/comm/rendezvous_client.h"
#include "octet/comm/rendezvous_server.h"
#include "octet/comm/socket.h"

namespace octet::comm {
namespace {

const std::string& checked_key(const std::string& key) {
  require(key.size() <= kMaxKey, "rendezvous: a key of ", key.size(), " bytes, more than ", kMaxKey);
  return key;
}

}  // namespace

Rendezvous::Rendezvous(const Options& options)
    : rank_(options.rank), size_(options.size), port_(options.port), timeout_s_(options.timeout_s) {
  require(size_ >= 1 && rank_ >= 0 && rank_ < size_, "rendezvous: rank ", rank_, " of ", size_);
  JoinOptions joining{.host = options.host,
                      .port = options.port,
                      .token = options.token,
                      .claim = {static_cast<std::uint64_t>(rank_), static_cast<std::uint64_t>(size_), options.version},
                      .timeout_s = options.join_timeout_s};
  if (rank_ == 0) {
    Descriptor listener = listen_at(options.host, options.port);
    joining.port = port_ = port_of(listener);
    joining.host = comm::address_of(listener);
    server_ =
        std::make_unique<RendezvousServer>(std::move(listener), RendezvousServer::Options{.size = size_,
                                                                                          .silence_s = options.silence_s,
                                                                                          .handshake_s = options.handshake_s,
                                                                                          .token = options.token,
                                                                                          .version = options.version});
    if (options.listening) options.listening(port_);
  }
  Connection connection = join(joining);
  address_ = comm::address_of(connection.socket());
  client_ = std::make_unique<RendezvousClient>(std::move(connection), rank_, options.join_timeout_s, options.silence_s);
  client_->await_ready();
}

Rendezvous::~Rendezvous() = default;

void Rendezvous::set(const std::string& key, std::string_view value, int reads) {
  require(value.size() <= kMaxValue, "rendezvous: ", key, ": ", value.size(), " bytes, more than ", kMaxValue);
  client_->post({Message::set, static_cast<std::uint64_t>(reads), 0, checked_key(key), std::string(value)});
}

std::string Rendezvous::get(const std::string& key) { return get(key, timeout_s_); }

std::string Rendezvous::get(const std::string& key, double timeout_s) {
  return client_->request({Message::get, 0, milliseconds_of(timeout_s), checked_key(key)});
}

void Rendezvous::barrier(const std::string& name) { meet("barrier \"" + name + "\"", ""); }

void Rendezvous::agree(const std::string& what, const std::string& value) { meet("agreement on " + what, value); }

void Rendezvous::meet(const std::string& name, const std::string& value) {
  client_->request({Message::meet, 0, milliseconds_of(timeout_s_), checked_key(name), value});
}

std::string Rendezvous::lost_text(double wait_s) const { return client_->lost_text(wait_s); }

}  // namespace octet::comm
