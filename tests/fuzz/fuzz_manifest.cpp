// Reads any bytes as the manifest of a checkpoint. This must give Error{data} or a manifest that can be written and read again.
// The checksum is corrected first, because no other input would be parsed.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "octet/base/checksum.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/checkpoint/manifest.h"

namespace {

std::string with_sum(std::string_view text) {
  nlohmann::json document = octet::json_of(text);
  if (!document.is_object()) return std::string(text);
  document["format"] = "octet-checkpoint";
  document["version"] = 1;
  document.erase("xxh3");
  const std::string body = document.dump();
  char sum[17];
  std::snprintf(sum, sizeof sum, "%016llx",
                static_cast<unsigned long long>(octet::checksum(std::as_bytes(std::span(body.data(), body.size())))));
  document["xxh3"] = sum;
  return document.dump();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto hold = [](bool holds) {
    if (!holds) std::abort();
  };
  for (const std::string& text : {std::string(bytes), with_sum(bytes)}) {
    try {
      const auto manifest = octet::checkpoint::parse_manifest(text, "manifest.json");
      const auto again = octet::checkpoint::parse_manifest(octet::checkpoint::to_json(manifest), "manifest.json");
      hold(again.step == manifest.step && again.meta == manifest.meta && again.tensors.size() == manifest.tensors.size());
    } catch (const octet::Error& error) {
      hold(error.code() == octet::ExitCode::data);
      hold(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
  return 0;
}
