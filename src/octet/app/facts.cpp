#include "octet/app/facts.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet::app {
namespace {

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::warn:
      return "warn";
    case Verdict::bad:
      return "bad";
  }
  return "";
}

}  // namespace

std::string facts_text(const std::vector<Fact>& facts) {
  std::size_t width = 0;
  for (const Fact& fact : facts) width = std::max(width, fact.label.size());
  std::string text, advice;
  for (const Fact& fact : facts) {
    if (!fact.label.empty()) text += fmt::format("{:<{}}  {}\n", fact.label, width, fact.text);
    if (fact.verdict != Verdict::ok)
      advice += fmt::format("{}: {}\n", fact.verdict == Verdict::bad ? "wrong" : "warning", fact.advice);
  }
  return advice.empty() ? text : text + "\n" + advice;
}

Json facts_json(const std::vector<Fact>& facts) {
  Json object = Json::object();
  Json problems = Json::array();
  Verdict worst = Verdict::ok;
  for (const Fact& fact : facts) {
    const std::size_t dot = fact.name.find('.');
    if (dot == std::string::npos) {
      object[fact.name] = fact.value;
    } else {
      object[fact.name.substr(0, dot)][fact.name.substr(dot + 1)] = fact.value;
    }
    worst = std::max(worst, fact.verdict);
    if (fact.verdict != Verdict::ok) {
      problems.push_back({{"name", fact.name}, {"verdict", name_of(fact.verdict)}, {"advice", fact.advice}});
    }
  }
  object["verdict"] = name_of(worst);
  object["problems"] = std::move(problems);
  return object;
}

}  // namespace octet::app
