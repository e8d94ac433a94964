# cmake -D OUTPUT=FILE -D SOURCE=FOLDER -D OCTET_COMMIT=TEXT -P write_commit.cmake: see commit.cmake.
set(commit "${OCTET_COMMIT}")
if(commit STREQUAL "" AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE failed)
  execute_process(COMMAND git --no-optional-locks status --porcelain --untracked-files=no WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE changes
    ERROR_QUIET)
  if(NOT failed EQUAL 0)
    set(commit "")
  elseif(NOT changes STREQUAL "")
    string(APPEND commit "+changes")
  endif()
endif()
if(commit STREQUAL "")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [=[
#include "octet/train/version.h"

namespace octet::train {

// A section of fixed size holds the commit, so that programs of two commits with the same code differ in this section alone.
// tools/testing.sh leaves it out of its checksums.
[[gnu::section(".octet_commit")]] const char kCommit[64] = "@commit@";

const char* commit() { return kCommit; }

}  // namespace octet::train
]=] @ONLY)
