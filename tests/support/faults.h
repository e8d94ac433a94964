// Runs the program with system calls that fail. support/faults/faults.cpp says how rules are written.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/paths.h"

namespace octet::testing {

// What a shell puts before a command whose system calls shall fail. The faults that happen are logged to the file `log` in the
// folder where the command runs. "" if the library cannot be loaded.
inline std::string with_faults(const std::string& rules, const std::string& log = "faults.log") {
  if (faults_library().empty()) return "";
  return "env LD_PRELOAD='" + faults_library() + "' OCTET_FAULTS='" + rules + "' OCTET_FAULTS_LOG=\"$PWD/" + log + "\" ";
}

// The fixture of tests whose system calls fail. It skips them if the library cannot be loaded.
class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (faults_library().empty()) GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  }
  // Returns the `how` for run_program() and Process.
  static std::string failing(const std::string& rules, const std::string& log = "faults.log") {
    return "exec " + with_faults(rules, log);
  }
};

}  // namespace octet::testing
