#include "octet/data/tokenizer/byte.h"

#include "octet/base/checksum.h"
#include "octet/base/require.h"

namespace octet::data {

std::string ByteTokenizer::hash() const {
  RunningChecksum sum;
  sum.update("byte 256");
  return sum.hex();
}

void ByteTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::size_t before = ids.size();
  ids.resize(before + text.size());
  for (std::size_t i = 0; i < text.size(); ++i) ids[before + i] = static_cast<unsigned char>(text[i]);
}

std::vector<std::size_t> ByteTokenizer::encode_counting(std::string_view text, std::span<const std::size_t> places,
                                                        std::vector<std::int32_t>& ids) const {
  encode(text, ids);
  return {places.begin(), places.end()};
}

void ByteTokenizer::decode(std::span<const std::int32_t> ids, std::string& text) const {
  for (const std::int32_t id : ids) {
    demand(id >= 0 && id < 256, ExitCode::data, "tokenizer byte: token ", id, " is not in [0, 256)");
    text.push_back(static_cast<char>(id));
  }
}

}  // namespace octet::data
