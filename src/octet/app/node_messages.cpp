#include "octet/app/node_messages.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "octet/base/require.h"

namespace octet::app {
namespace {

using Value = nlohmann::json;

std::string dump(const Value& json) { return json.dump(-1, ' ', false, Value::error_handler_t::replace); }

// Calls read(json) and turns what it throws into a sentence.
template <class Read>
auto read_message(const char* name, const std::string& text, const Read& read) {
  try {
    return read(Value::parse(text));
  } catch (const Value::exception& error) {
    fail(ExitCode::peer, "sent a message \"", name, "\" that cannot be read: ", error.what());
  }
}

// -1: it has not happened. A rank may have written its page after `now`.
double age_s(std::int64_t ns, std::int64_t now) { return ns > 0 ? std::max(0.0, static_cast<double>(now - ns) * 1e-9) : -1; }

// Never 0, which means that it has not happened.
std::int64_t time_ns(double age_s, std::int64_t now) {
  return age_s < 0 ? 0 : std::max<std::int64_t>(1, now - static_cast<std::int64_t>(age_s * 1e9));
}

}  // namespace

std::string text_of(const NodeJoin& join) {
  return dump({{"name", join.name},
               {"host", join.host},
               {"port", join.port},
               {"ranks", join.ranks},
               {"replicas_port", join.replicas_port},
               {"command", join.command},
               {"launch", join.launch},
               {"unfit", join.unfit},
               {"utc_s", join.utc_s}});
}

NodeJoin join_of(const std::string& text) {
  return read_message(topic::kJoin, text, [](const Value& json) {
    return NodeJoin{.name = json.at("name").get<std::string>(),
                    .host = json.at("host").get<std::string>(),
                    .port = json.at("port").get<int>(),
                    .ranks = json.at("ranks").get<int>(),
                    .replicas_port = json.at("replicas_port").get<int>(),
                    .command = json.at("command").get<std::string>(),
                    .launch = json.at("launch").get<std::string>(),
                    .unfit = json.at("unfit").get<std::string>(),
                    .utc_s = json.at("utc_s").get<std::int64_t>()};
  });
}

std::string text_of(const NodeAddress& address) { return dump({{"node", address.node}, {"host", address.host}}); }

NodeAddress address_of(const std::string& text) {
  return read_message(topic::kRedirect, text, [](const Value& json) {
    return NodeAddress{.node = json.at("node").get<int>(), .host = json.at("host").get<std::string>()};
  });
}

std::string text_of(const Order& order) {
  const RanksHere& ranks = order.ranks;
  return dump({{"attempt", order.attempt},
               {"recorded", order.recorded},
               {"job", order.job},
               {"loaded", order.loaded},
               {"saved", order.saved},
               {"trained", order.trained},
               {"gate", order.gate},
               {"first", ranks.first},
               {"count", ranks.count},
               {"all", ranks.all},
               {"host", ranks.host},
               {"port", ranks.port},
               {"replicas_to", order.replicas.to},
               {"replicas_from", order.replicas.from},
               {"ranks_per_host", order.replicas.ranks_per_host},
               {"links", order.links},
               {"chosen", order.chosen},
               {"command", order.command},
               {"config", order.config}});
}

Order order_of(const std::string& text) {
  return read_message(topic::kOrder, text, [](const Value& json) {
    Order order{.attempt = json.at("attempt").get<std::int64_t>(),
                .recorded = json.at("recorded").get<std::int64_t>(),
                .job = json.at("job").get<std::string>(),
                .loaded = json.at("loaded").get<bool>(),
                .saved = json.at("saved").get<bool>(),
                .trained = json.at("trained").get<bool>(),
                .gate = json.at("gate").get<bool>(),
                .ranks = {.first = json.at("first").get<int>(),
                          .count = json.at("count").get<int>(),
                          .all = json.at("all").get<int>(),
                          .host = json.at("host").get<std::string>(),
                          .port = json.at("port").get<int>()},
                .replicas = {.to = json.at("replicas_to").get<std::string>(),
                             .from = json.at("replicas_from").get<std::vector<std::string>>(),
                             .ranks_per_host = json.at("ranks_per_host").get<int>()},
                .links = json.at("links").get<std::vector<std::string>>(),
                .chosen = json.at("chosen").get<std::vector<int>>(),
                .command = json.at("command").get<std::vector<std::string>>(),
                .config = json.at("config").get<std::string>()};
    const RanksHere& ranks = order.ranks;
    demand(ranks.first >= 0 && ranks.count >= 0 && ranks.count <= kMostRanks && ranks.all >= ranks.first + ranks.count,
           ExitCode::peer, "ordered ", ranks.count, " ranks from ", ranks.first, " on, of ", ranks.all);
    return order;
  });
}

std::string text_of(const LinkReport& report) {
  Value links = Value::array();
  for (const LinkRate& link : report.links)
    links.push_back(
        {{"to", link.to}, {"bytes_per_s", link.bytes_per_s}, {"latency_s", link.latency_s}, {"trouble", link.trouble}});
  return dump({{"attempt", report.attempt}, {"links", std::move(links)}});
}

LinkReport link_report_of(const std::string& text) {
  return read_message(topic::kLinks, text, [](const Value& json) {
    LinkReport report{.attempt = json.at("attempt").get<std::int64_t>(), .links = {}};
    for (const Value& link : json.at("links")) {
      report.links.push_back({.to = link.at("to").get<std::string>(),
                              .bytes_per_s = link.at("bytes_per_s").get<double>(),
                              .latency_s = link.at("latency_s").get<double>(),
                              .trouble = link.at("trouble").get<std::string>()});
    }
    return report;
  });
}

std::string text_of(const NodeEnd& end) {
  return dump({{"attempt", end.attempt},
               {"code", end.code},
               {"what", end.what},
               {"cause", static_cast<int>(end.cause)},
               {"unreachable", end.unreachable},
               {"asked", end.asked},
               {"all", end.all},
               {"port", end.port}});
}

NodeEnd end_of(const std::string& text) {
  return read_message(topic::kEnded, text, [](const Value& json) {
    const int cause = json.at("cause").get<int>();
    demand(cause >= 0 && cause < kCauses, ExitCode::peer, "sent the cause ", cause);
    const auto unreachable = json.at("unreachable").get<std::vector<int>>();
    for (const int rank : unreachable) demand(rank >= 0, ExitCode::peer, "cannot reach rank ", rank);
    return NodeEnd{.attempt = json.at("attempt").get<std::int64_t>(),
                   .code = json.at("code").get<int>(),
                   .what = json.at("what").get<std::string>(),
                   .cause = static_cast<Cause>(cause),
                   .unreachable = unreachable,
                   .asked = json.at("asked").get<bool>(),
                   .all = json.at("all").get<bool>(),
                   .port = json.at("port").get<int>()};
  });
}

double grace_of(const std::string& text) {
  return read_message(topic::kStop, text, [](const Value& json) { return json.at("grace_s").get<double>(); });
}

std::string text_of(const RunOver& over) { return dump({{"code", over.code}, {"why", over.why}}); }

RunOver over_of(const std::string& text) {
  return read_message(topic::kFinish, text, [](const Value& json) {
    return RunOver{.code = json.at("code").get<int>(), .why = json.at("why").get<std::string>()};
  });
}

std::string pages_text(std::int64_t attempt, const telemetry::RankPages& pages, int first, int count) {
  const std::int64_t now = telemetry::monotonic_ns();
  Value list = Value::array();
  for (int rank = first; rank < first + count; ++rank) {
    const telemetry::RankPage& page = pages.page(rank);
    Value entered = Value::array();
    for (const auto& ns : page.entered_ns) entered.push_back(age_s(ns, now));
    Value groups = Value::array();
    for (const telemetry::GroupPage& group : page.groups) {
      if (const std::string name = group.name_text(); !name.empty())
        groups.push_back({name, static_cast<int>(group.exchange.load()), group.begun.load(), group.bytes.load(),
                          group.waits.load(), group.members.load()});
    }
    list.push_back({{"rank", rank},
                    {"phase", static_cast<int>(page.phase.load())},
                    {"step", page.step.load()},
                    {"start_step", page.start_step.load()},
                    {"saved_step", page.saved_step.load()},
                    {"changed", age_s(page.changed_ns, now)},
                    {"first_step", age_s(page.first_step_ns, now)},
                    {"alive", age_s(page.alive_ns, now)},
                    {"entered", std::move(entered)},
                    {"marks", page.marks.load()},
                    {"origin", static_cast<int>(page.origin.load())},
                    {"snapshot_step", page.snapshot_step.load()},
                    {"snapshot", age_s(page.snapshot_ns, now)},
                    {"own_s", page.own_s.load()},
                    {"own_step", page.own_step.load()},
                    {"slow_since", page.slow_since.load()},
                    {"slow_intervals", page.slow_intervals.load()},
                    {"slower", page.slower.load()},
                    {"loss", page.loss.load()},
                    {"step_s", page.step_s.load()},
                    {"tokens", page.tokens.load()},
                    {"saved", age_s(page.saved_ns, now)},
                    {"steps", page.steps.load()},
                    {"last_step", age_s(page.last_step_ns, now)},
                    {"groups", std::move(groups)}});
  }
  return dump({{"attempt", attempt}, {"pages", std::move(list)}});
}

bool read_pages(const std::string& text, std::int64_t attempt, telemetry::RankPages& pages) {
  return read_message(topic::kPages, text, [&](const Value& json) {
    if (json.at("attempt").get<std::int64_t>() != attempt) return false;
    const std::int64_t now = telemetry::monotonic_ns();
    for (const Value& from : json.at("pages")) {
      const int rank = from.at("rank").get<int>(), phase = from.at("phase").get<int>();
      if (rank < 0 || rank >= pages.ranks() || phase < 0 || phase >= telemetry::kPhases) continue;
      telemetry::RankPage& page = pages.page(rank);
      page.phase = static_cast<telemetry::Phase>(phase);
      page.step = from.at("step").get<std::int64_t>();
      page.start_step = from.at("start_step").get<std::int64_t>();
      page.saved_step = from.at("saved_step").get<std::int64_t>();
      page.changed_ns = time_ns(from.at("changed").get<double>(), now);
      page.first_step_ns = time_ns(from.at("first_step").get<double>(), now);
      page.alive_ns = time_ns(from.at("alive").get<double>(), now);
      const Value& entered = from.at("entered");
      for (std::size_t i = 0; i < page.entered_ns.size(); ++i) page.entered_ns[i] = time_ns(entered.at(i).get<double>(), now);
      page.marks = from.at("marks").get<std::int64_t>();
      page.origin = static_cast<telemetry::Origin>(from.at("origin").get<std::uint32_t>());
      page.snapshot_step = from.at("snapshot_step").get<std::int64_t>();
      page.snapshot_ns = time_ns(from.at("snapshot").get<double>(), now);
      page.own_s = from.at("own_s").get<double>();
      page.own_step = from.at("own_step").get<std::int64_t>();
      page.slow_since = from.at("slow_since").get<std::int64_t>();
      page.slow_intervals = from.at("slow_intervals").get<std::int64_t>();
      page.slower = from.at("slower").get<double>();
      const Value& loss = from.at("loss");  // JSON has no NaN, so dump() writes null
      page.loss = loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>();
      page.step_s = from.at("step_s").get<double>();
      page.tokens = from.at("tokens").get<std::int64_t>();
      page.saved_ns = time_ns(from.at("saved").get<double>(), now);
      page.steps = from.at("steps").get<std::int64_t>();
      page.last_step_ns = time_ns(from.at("last_step").get<double>(), now);
      const Value& groups = from.at("groups");
      for (std::size_t i = 0; i < page.groups.size(); ++i) {
        telemetry::GroupPage& group = page.groups[i];
        group.clear();
        if (i >= groups.size()) continue;
        group.set_name(groups[i].at(0).get<std::string>());
        group.exchange = static_cast<telemetry::Exchange>(groups[i].at(1).get<int>());
        group.begun = groups[i].at(2).get<std::int64_t>();
        group.bytes = groups[i].at(3).get<double>();
        group.waits = groups[i].at(4).get<std::uint32_t>();
        group.members = groups[i].at(5).get<std::uint32_t>();
      }
    }
    return true;
  });
}

}  // namespace octet::app
