#include "octet/report/same_job.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/require.h"

namespace octet::report {
namespace {

std::string in_words(const std::vector<std::string>& facts) {
  std::string text;
  for (std::size_t i = 0; i < facts.size(); ++i) text += (i == 0 ? "" : i + 1 == facts.size() ? " and " : ", ") + facts[i];
  return text;
}

// The same corpus may lie in another folder on another machine, so names leave the folders out.
std::string file_name(std::string_view path) { return std::string(path.substr(path.rfind('/') + 1)); }

// The elements of a list of words.
template <class Visitor>
void split(std::string_view text, std::string_view separator, Visitor&& visit) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(text.size(), part.size() + separator.size()));
    visit(part);
  }
}

// The sources of RunInfo::data that a run trains on.
struct TrainingData {
  std::string paths, names;

  explicit TrainingData(std::string_view data) {
    split(data, ", ", [&](std::string_view source) {
      if (source.ends_with(" (validation)") || source.find(" (evaluation ") != source.npos) return;
      paths.append(source) += ", ";
      names.append(file_name(source)) += ", ";
    });
  }
};

// A part of the configuration in run.json; null if it is not known.
Json config_of(const Run& run, const char* section) {
  const Json config = json_of(run.info.config.text);
  return config.is_object() ? config.value(section, Json()) : Json();
}

Json value_of(const Json& section, const std::string& key) { return section.is_object() ? section.value(key, Json()) : Json(); }

bool differ(const Json& a, const Json& b) { return !a.is_null() && !b.is_null() && a != b; }

std::string text_of(const Json& section, const std::string& key) {
  const Json value = value_of(section, key);
  return value.is_string() ? value.get<std::string>() : "";
}

bool is_for_validation(const Json& source) { return text_of(source, "split") == "validation"; }

// The shares of the training sources in the samples.
std::vector<double> shares_of(const Json& data) {
  std::vector<double> shares;
  double sum = 0;
  for (const Json& source : value_of(data, "source")) {
    if (is_for_validation(source)) continue;
    const Json weight = value_of(source, "weight");
    shares.push_back(weight.is_number() ? weight.get<double>() : 1);
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

bool differ(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         !std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) { return std::abs(x - y) <= 1e-9 * (x + y); });
}

// Whether data.split and data.split_by say which part of a source is trained on.
bool splits(const Json& data) {
  const Json sources = value_of(data, "source");
  return std::none_of(sources.begin(), sources.end(), is_for_validation) &&
         std::any_of(sources.begin(), sources.end(), [](const Json& source) { return text_of(source, "split") == "auto"; });
}

// Appends the keys that differ in how two runs train on sources of the same names.
void compare_settings(const Run& run, const Run& baseline, std::vector<std::string>& facts) {
  const Json data = config_of(run, "data"), of_baseline = config_of(baseline, "data");
  if (!data.is_object() || !of_baseline.is_object()) return;
  if (differ(shares_of(data), shares_of(of_baseline))) facts.emplace_back("data.source.weight");
  const bool split = splits(data) || splits(of_baseline);
  for (const auto& [key, value] : data.items()) {
    if (key == "source" || (key.starts_with("split") && !split)) continue;
    if (differ(value, value_of(of_baseline, key))) facts.push_back("data." + key);
  }
  const Json mask = value_of(config_of(run, "training"), "mask"), masks = value_of(config_of(baseline, "training"), "mask");
  if (differ(mask, masks)) facts.emplace_back("training.mask");
}

// Returns the last step that both runs have logged, if their numbers of tokens seen differ there; otherwise nothing.
std::optional<std::int64_t> step_of_other_tokens(const Run& run, const Run& baseline) {
  for (auto a = run.metrics.rbegin(), b = baseline.metrics.rbegin(); a != run.metrics.rend() && b != baseline.metrics.rend();) {
    if (a->step == b->step) return a->tokens_seen == b->tokens_seen ? std::nullopt : std::optional(a->step);
    ++(a->step > b->step ? a : b);
  }
  return std::nullopt;
}

// The names and paths of what is evaluated: of one set, or of all sets if `set` is empty. Without named sets, these are the
// sources that are used only for validation; the result is empty if the held-out text comes from the training sources.
std::vector<std::string> held_out_text(const Run& run, std::string_view set) {
  std::vector<std::string> text;
  const Json sets = value_of(config_of(run, "evaluation"), "source");
  for (const Json& source : sets) {
    const std::string name = text_of(source, "name");
    if (set.empty() || name == set) text.push_back(name + "=" + file_name(text_of(source, "path")));
  }
  for (const Json& source : sets.empty() ? value_of(config_of(run, "data"), "source") : Json()) {
    if (is_for_validation(source)) text.push_back(file_name(text_of(source, "path")) + "*" + value_of(source, "weight").dump());
  }
  std::sort(text.begin(), text.end());
  return text;
}

}  // namespace

std::string other_job(const Run& run, const Run& baseline) {
  std::vector<std::string> facts;
  const auto compare = [&](auto fact, const char* name) {
    using Fact = std::decay_t<decltype(run.info.*fact)>;
    const bool known = run.info.*fact != Fact() && baseline.info.*fact != Fact();
    const bool equal = !known || run.info.*fact == baseline.info.*fact;
    if (!equal) facts.emplace_back(name);
    return equal;
  };
  compare(&telemetry::RunInfo::parameters, "parameters");
  compare(&telemetry::RunInfo::seq_len, "sequence length");
  if (compare(&telemetry::RunInfo::tokens_per_step, "tokens per step")) {  // but they may have been others before
    if (const auto step = step_of_other_tokens(run, baseline)) facts.push_back(concat("tokens seen by step ", *step));
  }
  const TrainingData data(run.info.data), of_baseline(baseline.info.data);
  if (!data.names.empty() && !of_baseline.names.empty() && data.names != of_baseline.names) {
    facts.emplace_back("data");
  } else {
    compare_settings(run, baseline, facts);
  }
  return in_words(facts);
}

std::string other_hardware(const Run& run, const Run& baseline) {
  const auto differ = [&](const std::string& a, const std::string& b) { return !a.empty() && !b.empty() && a != b; };
  std::vector<std::string> facts;
  if (differ(run.info.device, baseline.info.device) || differ(run.info.device_name, baseline.info.device_name))
    facts.emplace_back("device");
  if (run.info.processes != baseline.info.processes) facts.emplace_back("number of ranks");
  return in_words(facts);
}

std::string other_batches(const Run& run, const Run& baseline) {
  if (run.info.data.empty() || baseline.info.data.empty()) return "";  // without run.json, neither data nor seed is known
  std::vector<std::string> facts;
  if (run.info.seed != baseline.info.seed) facts.emplace_back("seed");
  if (TrainingData(run.info.data).paths != TrainingData(baseline.info.data).paths) facts.emplace_back("folder of the data");
  return in_words(facts);
}

std::string other_held_out(const Run& run, const Run& baseline, std::string_view set) {
  const Json evaluation = config_of(run, "evaluation"), of_baseline = config_of(baseline, "evaluation");
  if (!evaluation.is_object() || !of_baseline.is_object()) return "";
  std::vector<std::string> facts;
  const std::vector<std::string> text = held_out_text(run, set);
  if (text != held_out_text(baseline, set)) facts.emplace_back("held-out text");
  if (differ(value_of(evaluation, "sequences"), value_of(of_baseline, "sequences"))) facts.emplace_back("evaluation.sequences");
  const bool decides = set.empty() && text.size() > 1 && facts.empty();
  if (decides && differ(value_of(evaluation, "decides"), value_of(of_baseline, "decides")))
    facts.emplace_back("evaluation.decides");
  return in_words(facts);
}

std::string other_precision_before(const Run& run) {
  std::string text;
  split(run.info.changes, "; ", [&](std::string_view change) {
    if (change.find(": precision.") != change.npos) (text += text.empty() ? "" : "; ").append(change);
  });
  return text;
}

}  // namespace octet::report
