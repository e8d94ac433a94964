#pragma once

namespace octet::app {

// Takes the numbers of stdin, stdout and stderr where the program was started without them (`<&-`, some daemons): the next file
// to be opened would have one, and what is said would be written into it. Reading and writing there fail as if they were closed.
// To be called before any file is opened. Throws Error{internal} when /dev/null cannot be opened.
void hold_standard_streams();

}  // namespace octet::app
