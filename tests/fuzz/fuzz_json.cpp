// Reads any bytes as JSON. This must give an error that names the place, or a tree. The plain tree, the ordered tree and the
// events must agree, and the tree can be copied, written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "octet/base/json.h"
#include "octet/base/require.h"

namespace {

void hold(bool holds) {
  if (!holds) std::abort();
}

// Counts the levels of the events.
class Depth final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return ++open_ <= octet::kJsonDepth; }
  bool start_array(std::size_t) override { return ++open_ <= octet::kJsonDepth; }
  bool key(std::string&) override { return true; }
  bool end_object() override { return --open_ >= 0; }
  bool end_array() override { return --open_ >= 0; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  int open_ = 0;
};

template <class Parse>
auto attempt(const Parse& parse) -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (const octet::Error& error) {
    const std::string message = error.what();
    hold(error.code() == octet::ExitCode::data);
    hold(message.starts_with("fuzz.json: line ") && message.find_first_of("\n\x1b") == std::string::npos &&
         message.size() < 2000);
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tree = attempt([&] { return octet::parse_json(text, "fuzz.json"); });
  const auto ordered = attempt([&] { return octet::parse_ordered_json(text, "fuzz.json"); });
  Depth events;
  if (size > 3 * octet::kOrderedKeys) return 0;  // may have more keys than an ordered tree takes
  hold(tree.has_value() == ordered.has_value());
  hold(tree.has_value() == !octet::json_of(text).is_discarded());
  hold(tree.has_value() == !octet::read_json_events(text, events).has_value());
  if (!tree) return 0;
  const nlohmann::json copy = *tree;
  hold(copy == nlohmann::json(*ordered));
  hold(octet::parse_json(copy.dump(), "fuzz.json") == copy);
  octet::shown(copy);
  return 0;
}
