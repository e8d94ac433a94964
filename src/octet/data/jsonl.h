// Reads one line of a JSONL file: an object with the document's text in one of its fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octet::data {

// Returns the string in the top-level field `field`. If the field occurs several times, the last one counts. The stack does not grow
// with the nesting of the JSON. Throws Error{data} "FILE:LINE: reason"; `line_number` counts from 1.
std::string jsonl_text(std::string_view line, const std::string& field, const std::string& file, std::int64_t line_number);

// Returns "", or advice to append to an error in this line if the file may be one JSON array.
std::string array_advice(std::string_view line, std::int64_t line_number);

// Whether the line holds nothing but white space. The reader skips such lines.
bool is_blank(std::string_view line);

}  // namespace octet::data
