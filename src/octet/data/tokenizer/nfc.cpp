#include "octet/data/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "octet/base/require.h"
#include "octet/data/tokenizer/utf8.h"

namespace octet::data {
namespace {

using Point = utf8proc_int32_t;
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

struct Range {
  Point first, last;
};
// Characters that NFC moves or joins since Unicode 10 (the list ends with Unicode 18), found by comparing tokenizers 0.23 with
// Python's unicodedata2. U+11A7 is older: it never joins, but utf8proc 2.8 joins it with the syllable before it.
constexpr std::array<Range, 63> kRecent = {
    {{0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},   {0x1715, 0x1715},   {0x1ABF, 0x1AF0},   {0x1DF6, 0x1DFA},
     {0xA82C, 0xA82C},   {0x105D2, 0x105D2}, {0x105DA, 0x105DA}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
     {0x10ECB, 0x10ECF}, {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
     {0x1133B, 0x1133B}, {0x113B8, 0x113B8}, {0x113BB, 0x113BB}, {0x113C2, 0x113C2}, {0x113C9, 0x113C9}, {0x113CE, 0x113D0},
     {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
     {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
     {0x11F41, 0x11F42}, {0x1611E, 0x16120}, {0x16129, 0x16129}, {0x1612F, 0x1612F}, {0x16D67, 0x16D67}, {0x16FF0, 0x16FF1},
     {0x1D127, 0x1D128}, {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C}, {0x1D25F, 0x1D25F}, {0x1D280, 0x1D281}, {0x1E08F, 0x1E08F},
     {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3},
     {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5}}};

bool is_recent(Point point) {
  const auto* range = std::lower_bound(kRecent.begin(), kRecent.end(), point, [](Range r, Point p) { return r.last < p; });
  return range != kRecent.end() && range->first <= point;
}

// Appends the canonical decomposition of `point`.
void append_decomposed(Point point, std::vector<Point>& points) {
  std::array<Point, 8> parts{};  // a character decomposes into at most four
  const auto count = utf8proc_decompose_char(point, parts.data(), parts.size(), kCompose, nullptr);
  require(count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()), "utf8proc: U+", point, " decomposes into ", count);
  points.insert(points.end(), parts.begin(), parts.begin() + count);
}

// Joins decomposed characters in canonical order.
void compose(std::vector<Point>& points) {
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), kCompose);
  require(count >= 0, "utf8proc: error ", count);
  points.resize(static_cast<std::size_t>(count));
}

enum class Behaviour {
  stays,    // begins a new stretch, and does not change if no character that joins follows
  changes,  // begins a new stretch, and changes
  joins,    // a mark or jamo, which may change place or join with the characters before it
};

Behaviour kind_of(Point point) {
  constexpr Point kFirstMark = 0x300, kJamoVowels = 0x1160, kJamoEnd = 0x1200, kSyllables = 0xAC00, kSyllablesEnd = 0xD7A4;
  if (point < kFirstMark || (point >= kSyllables && point < kSyllablesEnd)) return Behaviour::stays;
  const utf8proc_category_t category = utf8proc_category(point);
  const bool mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
  if (mark || (point >= kJamoVowels && point < kJamoEnd)) return is_recent(point) ? Behaviour::stays : Behaviour::joins;
  std::array<Point, 1> part{};
  if (utf8proc_decompose_char(point, part.data(), 1, kCompose, nullptr) == 1 && part[0] == point) return Behaviour::stays;
  std::vector<Point> points;
  append_decomposed(point, points);
  compose(points);
  return points.size() == 1 && points[0] == point ? Behaviour::stays : Behaviour::changes;
}

// Appends a stretch of characters that join, in NFC. utf8proc_map() would do the same, but takes quadratic time for long runs of
// marks.
void append_stretch(const std::vector<Point>& stretch, std::string& to) {
  std::vector<Point> points;
  for (const Point point : stretch) append_decomposed(point, points);
  const auto order = [](Point point) { return utf8proc_get_property(point)->combining_class; };
  for (auto begin = points.begin(); begin != points.end();) {
    const auto end = std::find_if(begin, points.end(), [&](Point point) { return order(point) == 0; });
    std::stable_sort(begin, end, [&](Point a, Point b) { return order(a) < order(b); });
    begin = end == points.end() ? end : end + 1;
  }
  compose(points);
  for (const Point point : points) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto size = utf8proc_encode_char(point, bytes.data());
    to.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(size));
  }
}

}  // namespace

std::string_view nfc(std::string_view text, std::string& buffer) {
  // Every character below U+0300 stays as it is, unless a mark follows.
  constexpr unsigned char kLeadOfMarks = 0xCC;
  const auto is_high = [](char c) { return static_cast<unsigned char>(c) >= kLeadOfMarks; };
  const auto high = static_cast<std::size_t>(std::find_if(text.begin(), text.end(), is_high) - text.begin());
  if (high == text.size()) return text;
  std::size_t at = high > 0 ? character_before(text, high) : 0;
  const auto read = [&](std::size_t from, Point& point) {
    const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + from),
                                       static_cast<utf8proc_ssize_t>(text.size() - from), &point);
    require(size > 0, "nfc: not UTF-8 at byte ", from);
    return static_cast<std::size_t>(size);
  };

  buffer.clear();
  std::size_t copied = 0, open = at;  // `buffer` holds text[0, copied) in NFC; the last character that stays begins at `open`
  Point last = 0;                     // the character before `at`
  std::vector<Point> stretch;
  while (at < text.size()) {
    Point point = 0;
    const std::size_t size = read(at, point);
    const Behaviour kind = kind_of(point);
    if (kind == Behaviour::stays) {
      open = at;
      at += size;
      last = point;
      continue;
    }
    stretch.clear();
    if (kind == Behaviour::changes || is_recent(last)) open = at;
    if (open < at) stretch.push_back(last);
    for (Behaviour next = kind; next != Behaviour::stays && at < text.size();) {
      const std::size_t length = read(at, point);
      next = kind_of(point);
      if (next == Behaviour::stays) break;
      stretch.push_back(point);
      at += length;
    }
    buffer.append(text, copied, open - copied);
    append_stretch(stretch, buffer);
    copied = open = at;
    last = 0;
  }
  if (copied == 0) return text;
  buffer.append(text, copied, text.size() - copied);
  return buffer;
}

}  // namespace octet::data
