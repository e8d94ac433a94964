// Check that a call throws octet::Error with a given exit code and a message of one line.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "octet/base/require.h"

namespace octet::testing {

// Returns the message of the Error with this exit code that `act` throws, or "" if it throws none.
template <class F>
std::string error_if_any(ExitCode code, F&& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

// Does the same, but also fails the test if `act` throws nothing.
template <class F>
std::string error_of(ExitCode code, F&& act) {
  const std::string message = error_if_any(code, act);
  EXPECT_NE(message, "") << "no error";
  return message;
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" lacks \"" << part << "\"";
}

}  // namespace octet::testing
