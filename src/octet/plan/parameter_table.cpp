#include "octet/plan/parameter_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>

#include "octet/base/math.h"
#include "octet/kernels/adamw/fp8_moments.h"
#include "octet/telemetry/format.h"

namespace octet::plan {
namespace {

using parallel::Copy;
using parallel::Held;
using parallel::kCopies;
using parallel::Parameter;
using parallel::Place;

std::size_t rounded(std::size_t bytes) {
  return static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(Device::kAlignment)));
}

// Returns the bytes of a copy that stay on this rank. If the copy lies in a slot, only its shard stays.
std::size_t bytes_that_stay(const Parameter& p, Copy copy) {
  const Held& held = p.copy(copy);
  if (held.place == Place::absent) return 0;
  std::int64_t elements = held.place == Place::whole ? p.shard_count() * p.stride : p.stride;
  if (copy == Copy::columnwise) elements = p.elements();  // made on this rank, and not of padded shards
  return rounded(size_of(held.dtype) * static_cast<std::size_t>(elements));
}

std::size_t bytes_of_scales(const Parameter& p) {
  const Tensor &rows = p.codes.rowwise_scale_inv, &columns = p.codes.columnwise_scale_inv;
  std::size_t bytes = rows ? rounded(rows.bytes()) : 0;
  if (columns && columns.data != rows.data) bytes += rounded(columns.bytes());
  return bytes;
}

// The scales of moments in FP8.
std::size_t bytes_of_moment_scales(const Parameter& p) {
  if (!p.moment1_scale) return 0;
  return 2 * rounded(static_cast<std::size_t>(kernels::moment_scales(p.stride)) * size_of(DType::f32));
}

// A name without its numbers: "model.layers.*.mlp.down_proj" and {3}.
struct Numbered {
  std::string pattern;
  std::vector<std::int64_t> numbers;
};
Numbered numbered(const std::string& name) {
  Numbered result;
  for (std::size_t i = 0; i < name.size();) {
    const bool begins = std::isdigit(static_cast<unsigned char>(name[i])) && i > 0 && name[i - 1] == '.';
    const std::size_t end = std::min(name.size(), name.find_first_not_of("0123456789", i));
    if (begins && (end == name.size() || name[end] == '.')) {
      result.pattern += '*';
      result.numbers.push_back(std::stoll(name.substr(i, end - i)));
      i = end;
    } else {
      result.pattern += name[i++];
    }
  }
  return result;
}

// "0-3,7"
std::string ranges_of(const std::set<std::int64_t>& numbers) {
  std::string text;
  for (auto first = numbers.begin(); first != numbers.end();) {
    auto end = std::next(first);
    std::int64_t last = *first;
    for (; end != numbers.end() && *end == last + 1; ++end) last = *end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", *first);
    if (last > *first) text += fmt::format("-{}", last);
    first = end;
  }
  return text;
}

// A kind, and the numbers in the places of its name.
struct Group {
  ParameterKind kind;
  std::string pattern;
  std::vector<std::set<std::int64_t>> numbers;

  bool holds(const Parameter& p, const std::string& of) const {
    return pattern == of && kind.shape == p.spec.shape && kind.shards == p.shard_count() && kind.copies == p.copies;
  }
  std::string name() const {
    std::string text;
    auto at = numbers.begin();
    for (const char c : pattern) text += c == '*' ? ranges_of(*at++) : std::string(1, c);
    constexpr std::string_view kWeight = ".weight";
    if (text.ends_with(kWeight)) text.resize(text.size() - kWeight.size());
    return text;
  }
};

// "E4M3" instead of the "F8_E4M3" of safetensors.
std::string_view short_name(DType dtype) {
  const std::string_view name = name_of(dtype);
  return name.starts_with("F8_") ? name.substr(3) : name;
}

std::string cell_of(const Held& held) {
  if (held.place == Place::absent) return "-";
  return fmt::format("{} {}", name_of(held.place), short_name(held.dtype));
}

std::string count_text(std::size_t count) { return telemetry::format_count(static_cast<std::int64_t>(count)); }

}  // namespace

std::size_t ParameterKind::total() const { return std::accumulate(bytes.begin(), bytes.end(), scale_bytes); }

ParameterTable parameter_table(const parallel::ParameterStore& store, const parallel::Units& units) {
  ParameterTable table;
  const auto sum = [&](MemoryCategory category) -> ParameterBytes& { return table.bytes[static_cast<std::size_t>(category)]; };
  std::vector<Group> groups;
  for (const Parameter& p : store.parameters()) {
    if (!p.held) {
      ++table.elsewhere;
      continue;
    }
    const Numbered name = numbered(p.spec.name);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& known) { return known.holds(p, name.pattern); });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {.kind = {.shape = p.spec.shape, .shards = p.shard_count(), .copies = p.copies},
                                           .pattern = name.pattern,
                                           .numbers = std::vector<std::set<std::int64_t>>(name.numbers.size())});
    }
    ++group->kind.count;
    for (std::size_t i = 0; i < name.numbers.size(); ++i) group->numbers[i].insert(name.numbers[i]);
    for (std::size_t i = 0; i < kCopies; ++i) {
      const std::size_t bytes = bytes_that_stay(p, static_cast<Copy>(i));
      group->kind.bytes[i] += bytes;
      sum(category_of(static_cast<Copy>(i), p.copies[i].place)).copies += bytes;
    }
    group->kind.scale_bytes += bytes_of_scales(p) + bytes_of_moment_scales(p);
    sum(MemoryCategory::weights).scales += bytes_of_scales(p);
    sum(category_of(Copy::moment1, p.copy(Copy::moment1).place)).scales += bytes_of_moment_scales(p);
  }
  sum(MemoryCategory::weights).shared = units.shared_bytes().weights;
  sum(MemoryCategory::gradients).shared = units.shared_bytes().gradients;
  sum(MemoryCategory::moments).shared = units.shared_bytes().states;
  for (Group& group : groups) {
    group.kind.name = group.name();
    table.kinds.push_back(std::move(group.kind));
  }
  return table;
}

std::string text_of(const ParameterTable& table) {
  std::vector<Copy> shown;
  std::string absent;
  for (std::size_t i = 0; i < kCopies; ++i) {
    const bool any = std::any_of(table.kinds.begin(), table.kinds.end(),
                                 [&](const ParameterKind& kind) { return kind.copies[i].place != Place::absent; });
    if (any) {
      shown.push_back(static_cast<Copy>(i));
    } else {
      absent += fmt::format("{}{}", absent.empty() ? "" : ", ", name_of(static_cast<Copy>(i)));
    }
  }
  std::size_t width = std::string_view("parameter").size();
  for (const ParameterKind& kind : table.kinds) width = std::max(width, kind.name.size());
  std::string text = fmt::format("{:<{}} {:>5} {:>14}", "parameter", width, "count", "shape");
  for (const Copy copy : shown) text += fmt::format("  {:<10}", name_of(copy));
  text += fmt::format(" {:>18}\n", "bytes");
  for (const ParameterKind& kind : table.kinds) {
    text += fmt::format("{:<{}} {:>5} {:>14}", kind.name, width, kind.count, kind.shape.text());
    for (const Copy copy : shown) text += fmt::format("  {:<10}", cell_of(kind.copies[static_cast<std::size_t>(copy)]));
    text += fmt::format(" {:>18}\n", count_text(kind.total()));
  }
  text +=
      "\n  whole  all elements stay on this rank\n"
      "  shard  only this rank's shard exists\n"
      "  slot   this rank's shard stays; while the unit is open, a slot that units share holds the whole parameter\n"
      "  host   this rank's shard lies in host memory\n"
      "  row_order (a copy): FP8 codes with scales along the columns, in the order in which ranks exchange them\n";
  if (!absent.empty()) text += fmt::format("No parameter has these copies: {}.\n", absent);
  if (table.elsewhere > 0)
    text += fmt::format("Other ranks hold {} parameters that belong to other stages or experts.\n", table.elsewhere);
  text += fmt::format("\n{:<15} {:>18} {:>14} {:>18} {:>18}\n", "bytes", "copies, shards", "their scales", "slots and casts",
                      "all, as planned");
  for (std::size_t i = 0; i < kMemoryCategories; ++i) {
    const ParameterBytes& bytes = table.bytes[i];
    if (bytes.total() == 0) continue;
    text += fmt::format("{:<15} {:>18} {:>14} {:>18} {:>18}\n", name_of(static_cast<MemoryCategory>(i)), count_text(bytes.copies),
                        count_text(bytes.scales), count_text(bytes.shared), count_text(bytes.total()));
  }
  return text;
}

}  // namespace octet::plan
