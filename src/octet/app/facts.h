// The findings of `octet doctor` as a list of facts, and the two ways to print it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/json.h"

namespace octet::app {

enum class Verdict : std::uint8_t { ok, warn, bad };

struct Fact {
  std::string name;   // of the JSON: "octet", or "group.name"
  std::string label;  // of the text; "" for a fact that only JSON shows
  Json value;         // null: not known
  std::string text;   // the value for people
  Verdict verdict = Verdict::ok;
  std::string advice;  // what is wrong and what to do; "" with Verdict::ok
};

template <class T>
Json json_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// A line for each fact with a label, then the advice.
std::string facts_text(const std::vector<Fact>& facts);

// {"octet": ..., "group": {"name": ...}, "verdict": "ok" | "warn" | "bad", "problems": [{"name", "verdict", "advice"}]}:
// `verdict` is the worst of all, and `problems` has the facts that are not ok.
Json facts_json(const std::vector<Fact>& facts);

}  // namespace octet::app
