// Shows where the threads of this process are when another process asks.
#pragma once

namespace octet {

// From now on, a thread that gets SIGURG writes its stack to stderr and goes on. A process that has not called this ignores the
// signal.
void print_stack_on_signal();

}  // namespace octet
