#pragma once

namespace octet::app {

// Takes the numbers of stdin, stdout and stderr where the program was started without them (`<&-`, some daemons): the next file
// to be opened would have one, and what is said would be written into it. Reading and writing there fail as if they were closed.
// To be called before any file is opened. Throws Error{internal} when /dev/null cannot be opened.
void hold_standard_streams();

// For commands whose work matters more than what they print: from here on no write to stdout fails, and none ends the program, also
// when its reader has gone (`| head`, a closed terminal). The first that is refused is said on stderr; the rest is discarded.
void outlive_stdout();
// Whether stdout refused anything for another reason than a reader that has gone, such as a full disk.
bool lost_output();

}  // namespace octet::app
