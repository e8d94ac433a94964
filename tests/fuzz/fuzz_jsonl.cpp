// Reads any bytes as a line of a JSONL file. This must give its text or an error that names the place.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "octet/base/require.h"
#include "octet/base/visible.h"
#include "octet/data/jsonl.h"
#include "octet/data/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  octet::printable(line);
  octet::data::TextChecker whole, split;
  whole.feed(line);
  split.feed(line.substr(0, size / 2));
  split.feed(line.substr(size / 2));
  if (whole.finish() != split.finish() || whole.good_bytes() != split.good_bytes()) std::abort();
  if (octet::data::is_blank(line)) return 0;
  try {
    octet::data::jsonl_text(line, "text", "fuzz.jsonl", 1);
  } catch (const octet::Error& error) {
    if (error.code() != octet::ExitCode::data || std::string_view(error.what()).substr(0, 14) != "fuzz.jsonl:1: ") std::abort();
  }
  return 0;
}
