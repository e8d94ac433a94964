// The command line: finds the command, reads its options, and turns what it throws into one line and an exit code.
#pragma once

namespace octet::app {

int run(int argc, const char* const* argv);

}  // namespace octet::app
