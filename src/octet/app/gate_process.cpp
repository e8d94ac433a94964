#include "octet/app/gate_process.h"

#include <algorithm>
#include <utility>

#include "octet/base/json.h"
#include "octet/base/require.h"

namespace octet::app {
namespace {

std::string gate_command(GateKind kind) { return concat("octet doctor --gate ", name_of(kind)); }

// Reads the measured links from the gate's JSON, which link_facts() has written.
std::vector<LinkRate> links_of(const Json& json) {
  std::vector<LinkRate> links;
  for (std::size_t i = 0; json.is_object() && i < json.at("to").size(); ++i) {
    links.push_back({.to = json["to"][i].get<std::string>(),
                     .bytes_per_s = json["bytes_per_s"][i].get<double>(),
                     .latency_s = json["latency_s"][i].get<double>(),
                     .trouble = json["trouble"][i].get<std::string>()});
  }
  return links;
}

ProcessGroupOptions gate_options(GateKind kind, const std::filesystem::path& folder, int gpus) {
  return {.program = "/proc/self/exe",
          .arguments = {"octet", "doctor", concat("--gate=", name_of(kind)), concat("--folder=", folder.string()),
                        concat("--gpus=", gpus), "--json"},
          .first_rank = 1};  // rank 0 would get this process's stdin
}

}  // namespace

GateProcess::GateProcess(GateKind kind, const std::filesystem::path& folder, int gpus, std::vector<std::string> environment,
                         SignalPipe& signals)
    : kind_(kind),
      group_(
          [&] {
            ProcessGroupOptions options = gate_options(kind, folder, gpus);
            options.output = [this](int, StandardStream stream, std::string_view line) {
              if (stream == StandardStream::out)
                json_ += line;
              else
                last_words_ = line.substr(0, line.find('\n'));
            };
            options.note = [](std::string_view) {};
            options.environment = {std::move(environment)};
            return options;
          }(),
          &signals) {
  group_.start();
}

double GateProcess::limit_s() const { return kind_ == GateKind::full ? kFullGateLimitS : kQuickGateLimitS; }

void GateProcess::turn(int also, double at_most_s) {
  group_.turn(also, late_ ? at_most_s : std::min(at_most_s, std::max(0.0, limit_s() - seconds())));
  if (!running() || late_ || seconds() < limit_s()) return;
  late_ = true;
  group_.end(0);
}

GateEnd GateProcess::conclude() {
  if (asked_to_end()) return {.code = static_cast<int>(ExitCode::preempted), .what = "asked to end before ranks were started"};
  const int unfit = static_cast<int>(ExitCode::unfit);
  // The gate waits for a driver or for the storage. If gates of several hosts do, it is the storage.
  if (late_)
    return {.code = unfit,
            .what = concat("gate: `", gate_command(kind_), "` has not ended within ", limit_s(),
                           " s. Run it by hand; `dmesg` may say what hangs."),
            .cause = Cause::storage};
  const int code = group_.conclude();
  const Json json = json_of(json_);
  if (code == 0) return {.links = json.is_object() ? links_of(json.value("links", Json())) : std::vector<LinkRate>()};
  const Json gate = json.is_object() ? json.value("gate", Json()) : Json();
  if ((code != unfit && code != static_cast<int>(ExitCode::data)) || !gate.is_object())
    return {.code = code, .what = concat("`", gate_command(kind_), "` ended with code ", code, ": ", last_words_)};
  const bool storage = gate.value("check", "").starts_with("storage.");
  return {.code = code, .what = concat("gate: ", gate.value("fault", "")), .cause = storage ? Cause::storage : Cause::unknown};
}

}  // namespace octet::app
