#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {

bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace octet::checkpoint
