// Lets whoever asks see where the threads of this process are.
#pragma once

namespace octet {

// From now on, a thread that gets SIGURG writes its stack to stderr and goes on. The system ignores this signal by default, so it
// harms no process that has not called this.
void print_stack_on_signal();

}  // namespace octet
