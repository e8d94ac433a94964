// Reads any bytes as an .idx file. This must give Error{data} or an index whose answers are all in range. The first eight bytes
// are the size of the .bin file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "octet/base/require.h"
#include "octet/data/corpus_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint64_t bin_bytes = 0;
  if (size < sizeof bin_bytes) return 0;
  std::memcpy(&bin_bytes, data, sizeof bin_bytes);
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(sizeof bin_bytes);
  try {
    const octet::data::CorpusIndex index(bytes, bin_bytes, "fuzz.idx", "fuzz.bin");
    const auto hold = [](bool holds) {
      if (!holds) std::abort();
    };
    hold(static_cast<std::uint64_t>(index.tokens() * octet::data::token_type_bytes(index.type())) == bin_bytes);
    hold(index.document_start(index.documents()) == index.tokens());
    for (std::int64_t d = 0; d < index.documents(); ++d) {
      const std::int64_t start = index.document_start(d), end = index.document_start(d + 1);
      hold(0 <= start && start <= end && end <= index.tokens());
      if (start < end) hold(index.document_at(start) == d && index.document_at(end - 1) == d);
    }
  } catch (const octet::Error& error) {
    if (error.code() != octet::ExitCode::data) std::abort();
  }
  return 0;
}
