#include "octet/base/require.h"

#include <cstring>

namespace octet {

void fail_requirement(Location where, const std::string& message) {
  const char* root = std::strstr(where.file, "src/octet/");
  throw Error(ExitCode::internal, concat(message, " [", root ? root : where.file, ":", where.line, "]"));
}

}  // namespace octet
