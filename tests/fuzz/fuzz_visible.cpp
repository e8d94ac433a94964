// Makes any bytes visible for a terminal. The result must be valid UTF-8 without control characters, and the same in whatever
// pieces the bytes come.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "octet/base/visible.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto hold = [](bool holds) {
    if (!holds) std::abort();
  };
  const std::string text = std::string(reinterpret_cast<const char*>(data), size) + "\n";
  octet::VisibleText whole, cut;
  const std::string visible = whole.feed(text);
  std::string joined;
  for (std::size_t at = 0, piece; at < text.size(); at += piece) {
    piece = 1 + static_cast<unsigned char>(text[at]) % 5;
    joined += cut.feed(std::string_view(text).substr(at, piece));
  }
  hold(joined == visible);
  for (const std::string& shown : {visible, octet::printable(text), octet::in_quotes(text)}) {
    for (std::string_view rest = shown; !rest.empty();) {
      const std::size_t length = octet::utf8_length(rest);
      hold(length > 0);
      const auto first = static_cast<unsigned char>(rest[0]);
      hold(length > 1 || (first >= 0x20 && first != 0x7F) || first == '\n' || first == '\t');
      hold(length != 2 || first != 0xC2 || static_cast<unsigned char>(rest[1]) >= 0xA0);
      rest.remove_prefix(length);
    }
  }
  hold(octet::printable(text).find_first_of("\n\t") == std::string::npos);
  return 0;
}
