// Reads any bytes as a safetensors file. This must give Error{data} or tensors that fill the data section without gaps.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "octet/base/require.h"
#include "octet/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto hold = [](bool holds) {
    if (!holds) std::abort();
  };
  try {
    const auto header =
        octet::checkpoint::parse_safetensors_header(std::as_bytes(std::span(data, size)), size, "fuzz.safetensors");
    std::size_t position = 0;
    for (const auto& tensor : header.tensors) {
      hold(tensor.begin == position && tensor.begin <= tensor.end);
      position = tensor.end;
      if (!tensor.dtype) continue;
      // The parser has checked that no product overflows.
      std::size_t bytes = octet::size_of(*tensor.dtype);
      for (const std::int64_t dim : tensor.dims) bytes *= static_cast<std::size_t>(dim);
      hold(bytes == tensor.end - tensor.begin);
    }
    hold(header.data_begin + position == size);
  } catch (const octet::Error& error) {
    hold(error.code() == octet::ExitCode::data);
    hold(std::string(error.what()).find('\n') == std::string::npos);
  }
  return 0;
}
