#include "octet/train/peak.h"

namespace octet::train {

std::optional<Peak> peak_of(std::string_view gpu_name) {
  const auto has = [&](std::string_view part) { return gpu_name.find(part) != std::string_view::npos; };
  const bool card = has("PCIe") || has("NVL");
  return (has("H100") || has("H200")) && !card ? std::optional(kHopperPeak) : std::nullopt;
}

}  // namespace octet::train
