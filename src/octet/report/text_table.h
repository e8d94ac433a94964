// Formats tables for a terminal and the numbers in them. A number that is not finite is shown as "-".
#pragma once

#include <string>
#include <vector>

namespace octet::report {

std::string text_number(double value, int decimals);
std::string text_percent(double value, int decimals);  // "+1.2%"
std::string text_count(double value);                  // "12,345"

// Formats lines of cells. The first line is the head, with a rule below it. The first `words` columns are left-aligned and the others
// right-aligned. All lines must have as many cells as the head. The result ends with a newline.
std::string text_table(const std::vector<std::vector<std::string>>& lines, std::size_t words = 1);

}  // namespace octet::report
