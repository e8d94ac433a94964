// How vocabularies write spaces and bytes that are no text of their own.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace octet::data {

// Byte-level (GPT-2): each byte is a character; the printable ones of Latin-1 are themselves, the others in their order U+0100
// and up.
std::string character_of_byte(unsigned char byte);
// The bytes of a token so written; nothing when it holds another character.
std::optional<std::string> bytes_of_characters(std::string_view token);

// Metaspace: "▁" (U+2581) is a space.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
// `text` with each of them as a space.
void append_spaced(std::string_view text, std::string& to);
std::string spaced(std::string_view text);

// Byte fallback: "<0x0A>".
std::string byte_token(unsigned char byte);

}  // namespace octet::data
