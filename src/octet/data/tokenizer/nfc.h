// Unicode's normalization form C (NFC), with utf8proc, as PyPI's tokenizers 0.23 computes it.
//
// That library knows the marks of Unicode 9. It neither reorders nor joins marks that were added later, so nfc() does not either,
// whichever version of Unicode utf8proc on this machine has.
#pragma once

#include <string>
#include <string_view>

namespace octet::data {

// Returns `text` in NFC: `text` itself if it is in NFC already, else the contents of `buffer`. `text` must be valid UTF-8.
std::string_view nfc(std::string_view text, std::string& buffer);

}  // namespace octet::data
