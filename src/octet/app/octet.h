// The commands of octet with their options and the structs that these fill in. The texts in cli.cpp and cli_models.cpp are also
// the reference pages, the man pages and shell completion.
#pragma once

#include <string>
#include <utility>

#include "octet/app/command_line.h"
#include "octet/app/commands.h"
#include "octet/app/manual/manual.h"

namespace octet::app {

class Octet {
 public:
  Octet();
  int run(int argc, const char* const* argv);

 private:
  int take_launched(int argc, const char* const* argv);
  TrainArgs train_of(const std::vector<std::string>& command) const;

  void add_data();
  void add_training();
  void add_eval();
  void add_models();
  void add_convert();
  void add_planning();
  void add_numerics();
  void add_bench();
  void add_program();

  CLI::App& add(CLI::App& parent, CommandLine::Text text, CommandLine::Action action = {}) {
    return line_.add(parent, std::move(text), std::move(action));
  }
  template <class T>
  CLI::Option* option(CLI::App& command, const Field& field, T& member) {
    return line_.option(command, field, member);
  }
  CLI::Option* size_option(CLI::App& command, const Field& field, std::int64_t& bytes) {
    return line_.size_option(command, field, bytes);
  }
  static CLI::Option* flag(CLI::App& command, const Field& field, bool& member) {
    return command.add_flag(std::string(field.name), member, std::string(field.help));
  }
  void device_option(CLI::App& command, std::string& member, const char* help = "Device that computes; auto takes a GPU if there is one.") {
    option(command, {.name = "--device", .help = help, .choices = "auto | cpu | cuda"}, member)->capture_default_str();
  }

  static Field json_field() { return {.name = "--json", .help = "Print JSON, for programs."}; }

  bool only_reads_ = false;  // `train` reads its arguments and does nothing
  CommandLine line_;
  CLI::App& root_ = line_.root();

  DoctorArgs doctor_;
  DataPrepareArgs prepare_;
  DataInspectArgs inspect_;
  TrainArgs train_;
  EvalArgs eval_;
  AdviseArgs advise_;
  PlanArgs plan_;
  CompareArgs compare_;
  LaunchArgs launch_;
  StatusArgs status_;
  ReportArgs report_;
  GenerateArgs generate_;
  ProbeArgs probe_;
  QuantizeArgs quantize_;
  BenchArgs bench_;
  BenchTokenizeArgs tokenize_;
  ConvertImportArgs import_;
  ConvertExportArgs export_;
  ConvertVerifyArgs verify_;
  ManualArgs manual_;
  std::string shell_;
};

}  // namespace octet::app
