// Reads any bytes as the TOML of a run and as an option. Both must give a Config that can be printed and read back, or
// Error{config} with a message of one line.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "octet/base/require.h"
#include "octet/train/config.h"

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

template <class F>
void attempt(F&& f) {
  try {
    f();
  } catch (const octet::Error& error) {
    expect(error.code() == octet::ExitCode::config);
    expect(std::string(error.what()).find('\n') == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace octet::train;
  const std::string text(reinterpret_cast<const char*>(data), size);
  attempt([&] {
    const Config config = parse_config(text, "fuzz.toml");
    const std::string printed = print_config(config);
    expect(print_config(parse_config(printed, "printed.toml")) == printed);
    expect(to_json(config).dump().size() > 2);
    check_config(config);
  });
  attempt([&] {
    Config config;
    apply_override(config, text);
    expect(print_config(parse_config(print_config(config), "printed.toml")) == print_config(config));
  });
  return 0;
}
