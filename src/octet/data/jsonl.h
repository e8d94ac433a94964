// One line of a JSONL file: an object with the document under one of its fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octet::data {

// The string under the top-level field `field` (the last one, should there be several); constant stack whatever the nesting.
// `file` and `line_number` (from 1) name the place in errors: Error{data} "FILE:LINE: reason".
std::string jsonl_text(std::string_view line, const std::string& field, const std::string& file, std::int64_t line_number);

// White space only: such lines are skipped.
bool is_blank(std::string_view line);

}  // namespace octet::data
