#include "octet/app/exclude_command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "octet/app/process_group.h"
#include "octet/base/require.h"

namespace octet::app {
void ExcludeCommand::start(const std::string& node, int code, const std::string& reason) {
  if (command_.empty()) return;
  std::vector<std::string> environment =
      environment_with({concat("OCTET_NODE=", node), concat("OCTET_CODE=", code), concat("OCTET_REASON=", reason)});
  // A group of its own, so that Ctrl-C does not end it, and no handlers or blocked signals of the supervisor.
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  // The command may outlive this process, and must not keep the memory of its snapshots.
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  std::array<char*, 4> arguments = {const_cast<char*>("sh"), const_cast<char*>("-c"), command_.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, "/bin/sh", &actions, &attributes, arguments.data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == 0)
    running_.push_back(pid);
  else
    failures_.push_back(concat("--on-exclude could not be started: ", std::strerror(error)));
}

std::vector<std::string> ExcludeCommand::failures() {
  std::erase_if(running_, [&](pid_t pid) {
    int status = 0;
    if (::waitpid(pid, &status, WNOHANG) != pid) return false;
    if (WIFSIGNALED(status)) failures_.push_back(concat("--on-exclude was killed by signal ", WTERMSIG(status)));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      failures_.push_back(concat("--on-exclude ended with code ", WEXITSTATUS(status)));
    return true;
  });
  return std::exchange(failures_, {});
}

}  // namespace octet::app
