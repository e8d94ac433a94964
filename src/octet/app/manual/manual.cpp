#include "octet/app/manual/manual.h"

#include <fmt/format.h>

#include "octet/app/manual/values.h"
#include "octet/base/directory.h"
#include "octet/base/fields.h"
#include "octet/base/file.h"
#include "octet/base/system_call.h"
#include "octet/base/visible.h"

namespace octet::app {
namespace {

std::string completion_of(const std::string& shell, const Command& root) {
  const Command commands = with_topics(root);
  return shell == "bash" ? bash_completion(commands) : shell == "zsh" ? zsh_completion(commands) : fish_completion(commands);
}

// Puts the files where shells and man look below /usr/share, /usr/local/share or the data folder of a Python environment.
std::vector<ManualFile> shared_files(const Command& root) {
  std::vector<ManualFile> files = man_pages(root);
  files.push_back({"bash-completion/completions/octet", completion_of("bash", root)});
  files.push_back({"zsh/site-functions/_octet", completion_of("zsh", root)});
  files.push_back({"fish/vendor_completions.d/octet.fish", completion_of("fish", root)});
  return files;
}

void write_below(const std::filesystem::path& folder, const std::vector<ManualFile>& files) {
  for (const ManualFile& file : files) {
    const std::filesystem::path path = folder / file.path;
    create_output([&] {
      make_folders(path.parent_path());
      FileWriter writer(path);
      writer.write(file.text);
      writer.finish();
    });
  }
  fmt::print("{}: {} files\n", folder.string(), files.size());
}

}  // namespace

std::string manual_topics() {
  return "  commands        commands and their options; NAME is a command, for example data prepare\n"
         "  configuration   keys of a run's file; NAME is a section, for example precision\n"
         "  files           fields of the files that a run writes; NAME is a file, for example run.json\n"
         "  exit-codes      meaning of the exit codes";
}

int run_manual(const ManualArgs& args, const Command& root) {
  if (!args.output.empty()) {
    write_below(args.output, shared_files(root));
    return 0;
  }
  const std::string name = joined(args.name, " ");
  demand(args.topic != "exit-codes" || name.empty(), ExitCode::config, "`octet manual exit-codes` has no parts, so `", printable(name),
         "` cannot be one");
  fmt::print("{}", args.topic == "commands"        ? commands_page(root, name)
                   : args.topic == "configuration" ? configuration_page(name)
                   : args.topic == "files"         ? files_page(name)
                                                   : exit_codes_page());
  return 0;
}

int run_completion(const std::string& shell, const Command& root) {
  fmt::print("{}", completion_of(shell, root));
  return 0;
}

}  // namespace octet::app
