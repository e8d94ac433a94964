// What tests ask about the facts of `octet doctor`.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "octet/app/facts.h"

namespace octet::app {

inline const Fact& fact_of(const std::vector<Fact>& facts, const std::string& name) {
  for (const Fact& fact : facts) {
    if (fact.name == name) return fact;
  }
  throw std::runtime_error("no fact " + name);
}

// Succeeds if the fact has this verdict, and advice that contains all parts.
inline ::testing::AssertionResult advises(const std::vector<Fact>& facts, const std::string& name, Verdict verdict,
                                          const std::vector<std::string>& parts) {
  const Fact& fact = fact_of(facts, name);
  if (fact.verdict != verdict) return ::testing::AssertionFailure() << name << ": another verdict; advice: " << fact.advice;
  for (const std::string& part : parts) {
    if (fact.advice.find(part) == std::string::npos) return ::testing::AssertionFailure() << fact.advice << "\nlacks " << part;
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult all_ok(const std::vector<Fact>& facts) {
  for (const Fact& fact : facts) {
    if (fact.verdict != Verdict::ok) return ::testing::AssertionFailure() << fact.name << ": " << fact.advice;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace octet::app
