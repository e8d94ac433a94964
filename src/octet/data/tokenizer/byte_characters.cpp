#include "octet/data/tokenizer/byte_characters.h"

#include <array>

namespace octet::data {
namespace {

struct Characters {
  std::array<int, 256> of_byte{};
  std::array<int, 0x180> bytes{};  // -1: the character stands for no byte

  Characters() {
    bytes.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const int character = printable ? byte : next++;
      of_byte[static_cast<std::size_t>(byte)] = character;
      bytes[static_cast<std::size_t>(character)] = byte;
    }
  }
};

const Characters& characters() {
  static const Characters table;
  return table;
}

}  // namespace

std::string character_of_byte(unsigned char byte) {
  const int character = characters().of_byte[byte];
  if (character < 0x80) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

std::optional<std::string> bytes_of_characters(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size(); ++at) {
    unsigned character = static_cast<unsigned char>(token[at]);
    if (character >= 0x80) {
      if (character >= 0xE0 || ++at == token.size()) return std::nullopt;
      character = (character & 0x1F) << 6 | (static_cast<unsigned char>(token[at]) & 0x3F);
    }
    if (character >= characters().bytes.size() || characters().bytes[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(characters().bytes[character]));
  }
  return bytes;
}

void append_spaced(std::string_view text, std::string& to) {
  for (std::size_t mark = text.find(kSpaceMark); mark != std::string_view::npos; mark = text.find(kSpaceMark)) {
    to.append(text.substr(0, mark)).push_back(' ');
    text.remove_prefix(mark + kSpaceMark.size());
  }
  to += text;
}

std::string spaced(std::string_view text) {
  std::string result;
  append_spaced(text, result);
  return result;
}

std::string byte_token(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

}  // namespace octet::data
