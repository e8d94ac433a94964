// Shows where the threads of another process are.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace octet::app {

// Asks every thread of the process to write its stack to stderr (base/print_stack.h), and returns a line for each thread with
// the kernel's view: "thread 123 (octet): D, in nfs_wait_bit_killable". A thread that is blocked in the kernel writes nothing.
// Returns {} if the process has ended.
std::vector<std::string> ask_for_stacks(pid_t process);

// Whether a line that a rank wrote belongs to such a stack.
bool is_stack_line(std::string_view line);
// Returns the line with C++ names in readable form.
std::string readable_stack_line(std::string_view line);

}  // namespace octet::app
