#include "octet/base/json.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <unordered_set>
#include <utility>
#include <vector>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/base/visible.h"

namespace octet {

namespace {

using Events = nlohmann::json_sax<nlohmann::json>;

// Reads the text for the library and notes how far the library has come, which its events do not say.
class Place {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Place(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Place& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  Place operator++(int) { return std::exchange(*this, std::next(*this)); }
  bool operator==(const Place& other) const { return at_ == other.at_; }
  bool operator!=(const Place& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

struct Limits {
  int depth = kJsonDepth;
  std::size_t keys = SIZE_MAX;  // of one object
};

// Refuses duplicate keys and deep nesting, and passes the events on, if anybody wants them. It stands before the library's
// builder of trees as a pass of its own, because the library's parser with a callback visits all members of an object after each
// member, which takes minutes for many tensors.
class Guard final : public Events {
 public:
  Guard(Limits limits, Events* next) : limits_(limits), next_(next) {}

  bool null() override { return !next_ || next_->null(); }
  bool boolean(bool value) override { return !next_ || next_->boolean(value); }
  bool number_integer(std::int64_t value) override { return !next_ || next_->number_integer(value); }
  bool number_unsigned(std::uint64_t value) override { return !next_ || next_->number_unsigned(value); }
  bool number_float(double value, const std::string& text) override { return !next_ || next_->number_float(value, text); }
  bool string(std::string& value) override { return !next_ || next_->string(value); }
  bool binary(nlohmann::json::binary_t& value) override { return !next_ || next_->binary(value); }
  bool start_object(std::size_t size) override { return open() && (!next_ || next_->start_object(size)); }
  bool start_array(std::size_t size) override { return open() && (!next_ || next_->start_array(size)); }
  bool end_object() override { return close() && (!next_ || next_->end_object()); }
  bool end_array() override { return close() && (!next_ || next_->end_array()); }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second) return refuse(in_quotes(name) + " occurs twice");
    if (keys_.back().size() > limits_.keys) return refuse(concat("more than ", limits_.keys, " keys in one object"));
    return !next_ || next_->key(name);
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing ..."
    std::string_view words = error.what();
    if (const std::size_t bracket = words.find("] "); bracket != std::string_view::npos) words.remove_prefix(bracket + 2);
    if (const std::size_t place = words.find(": "); words.starts_with("parse error at") && place != std::string_view::npos)
      words.remove_prefix(place + 2);
    constexpr std::size_t kShown = 200;  // the words repeat the text that was read last
    return refuse("not valid JSON: " + printable(words.substr(0, kShown)));
  }

  const std::string& reason() const { return reason_; }

 private:
  bool open() {
    keys_.emplace_back();
    return std::cmp_less_equal(keys_.size(), limits_.depth) || refuse(concat("nested deeper than ", limits_.depth, " levels"));
  }
  bool close() {
    keys_.pop_back();
    return true;
  }
  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }

  Limits limits_;
  Events* next_;
  std::string reason_;
  std::vector<std::unordered_set<std::string>> keys_;  // keys of each open object; empty for lists
};

std::optional<JsonFault> find_fault(std::string_view text, Limits limits, Events* next) {
  if (text.size() > kJsonBytes) return JsonFault{1, concat(text.size(), " bytes of JSON are more than ", kJsonBytes)};
  // The library takes a NUL for the end of its input. A crash of the machine can leave NULs in a file.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    return JsonFault{nul + 1, "not valid JSON: a NUL byte"};
  const char* reached = text.data();
  Guard guard(limits, next);
  const char* const end = text.data() + text.size();
  if (nlohmann::json::sax_parse(Place(text.data(), &reached), Place(end, &reached), &guard)) return std::nullopt;
  const auto byte = static_cast<std::size_t>(reached - text.data());
  return JsonFault{std::max<std::size_t>(byte, 1), guard.reason().empty() ? "not what is expected here" : guard.reason()};
}

constexpr Limits kOrdered = {.keys = kOrderedKeys};

template <class Tree>
Tree parse_tree(std::string_view text, const std::string& source, Limits limits) {
  if (const auto fault = find_fault(text, limits, nullptr)) {
    const std::string_view before = text.substr(0, fault->byte - 1);
    const std::size_t line_begin = before.rfind('\n') + 1;  // 0 in the first line
    fail(ExitCode::data, source, ": line ", 1 + std::count(before.begin(), before.end(), '\n'), ", column ",
         fault->byte - line_begin, ": ", fault->reason);
  }
  return Tree::parse(text.begin(), text.end());
}

template <class Tree>
Tree read_tree(const std::filesystem::path& path, Limits limits) {
  const MappedFile file(path);
  return parse_tree<Tree>({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string(), limits);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& source, int max_depth) {
  return parse_tree<nlohmann::json>(text, source, {.depth = max_depth});
}

Json parse_ordered_json(std::string_view text, const std::string& source) { return parse_tree<Json>(text, source, kOrdered); }

nlohmann::json read_json(const std::filesystem::path& path) { return read_tree<nlohmann::json>(path, {}); }

Json read_ordered_json(const std::filesystem::path& path) { return read_tree<Json>(path, kOrdered); }

Json json_of(std::string_view text) {
  return find_fault(text, kOrdered, nullptr) ? Json(Json::value_t::discarded) : Json::parse(text.begin(), text.end());
}

std::optional<JsonFault> read_json_events(std::string_view text, nlohmann::json_sax<nlohmann::json>& events) {
  return find_fault(text, {}, &events);
}

std::string json_text(const Json& value, int indent) { return value.dump(indent, ' ', false, Json::error_handler_t::replace); }

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kShown = 200;
  const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() <= kShown ? printable(text) : printable(std::string_view(text).substr(0, kShown)) + "...";
}

Json to_json(const TomlNode& value) {
  using Kind = TomlNode::Kind;
  switch (value.kind) {
    case Kind::absent: return nullptr;
    case Kind::boolean: return value.boolean;
    case Kind::integer: return value.integer;
    case Kind::real: return std::isfinite(value.real) ? Json(value.real) : Json();
    case Kind::string: return value.string;
    case Kind::array: {
      Json list = Json::array();
      for (const TomlNode& item : value.items) list.push_back(to_json(item));
      return list;
    }
    case Kind::table: {
      Json object = Json::object();
      for (const TomlEntry& entry : value.entries) {
        if (entry.value.kind != Kind::absent) object[entry.key] = to_json(entry.value);
      }
      return object;
    }
  }
  return nullptr;
}

}  // namespace octet
