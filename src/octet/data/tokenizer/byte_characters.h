// How vocabularies write spaces, and bytes that are not text by themselves.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace octet::data {

// Byte-level vocabularies (GPT-2) write each byte as a character. A printable Latin-1 byte is its own character; the other bytes, in
// order, are U+0100, U+0101 and so on. Source: GPT-2, src/encoder.py, bytes_to_unicode.
std::string character_of_byte(unsigned char byte);
// Returns the bytes of a token written this way, or nothing if it holds any other character.
std::optional<std::string> bytes_of_characters(std::string_view token);

// Metaspace vocabularies write a space as "▁" (U+2581).
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
// Append or return `text` with each "▁" replaced by a space.
void append_spaced(std::string_view text, std::string& to);
std::string spaced(std::string_view text);

// The name of a byte's token in a vocabulary with byte fallback: "<0x0A>".
std::string byte_token(unsigned char byte);

}  // namespace octet::data
