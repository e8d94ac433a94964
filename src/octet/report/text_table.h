// Tables for a terminal, and the numbers in them: "-" stands for one that is not finite.
#pragma once

#include <string>
#include <vector>

namespace octet::report {

std::string text_number(double value, int decimals);
std::string text_percent(double value, int decimals);  // "+1.2 %"
std::string text_count(double value);                  // "12,345"

// Lines of cells, the head first and a rule under it; the first `words` columns to the left, the others to the right. All lines
// have as many cells as the head. Ends with a newline.
std::string text_table(const std::vector<std::vector<std::string>>& lines, std::size_t words = 1);

}  // namespace octet::report
