#include "octet/data/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet::data {
namespace {

struct LlmcVersion {
  std::int32_t magic, version;
  std::int64_t width;
  std::int32_t document_token;
};
constexpr std::array<LlmcVersion, 2> kLlmcVersions = {{{20240520, 1, 2, 50256}, {20240801, 7, 4, 128000}}};
constexpr std::size_t kLlmcNumbers = 256;

std::int64_t token_at(const char* at, std::int64_t width) {
  std::uint32_t token = 0;  // both the file and the machine are little endian
  std::memcpy(&token, at, static_cast<std::size_t>(width));
  return token;
}

bool has_llmc_header(const InputFiles::File& file) {
  if (file.is_standard_input() || lower_extension(unpacked_name(file.path)) != ".bin") return false;
  std::int32_t magic = 0;
  try {
    open_source(file.path)->read(reinterpret_cast<char*>(&magic), sizeof magic);
  } catch (const Error& error) {
    fail_again(error, concat(file.name(), ": ", error.what()));
  }
  return std::any_of(kLlmcVersions.begin(), kLlmcVersions.end(), [&](const LlmcVersion& known) { return known.magic == magic; });
}

}  // namespace

std::int64_t TokenFile::vocab_limit() const { return width == 2 ? 65536 : INT32_MAX; }

TokenFile open_tokens(ByteSource& source, InputFormat format) {
  require(format == InputFormat::llmc || format == InputFormat::nanogpt, "tokens of format ", static_cast<int>(format));
  if (format == InputFormat::nanogpt) return {};
  std::array<std::int32_t, kLlmcNumbers> header{};
  const std::size_t got = source.read(reinterpret_cast<char*>(header.data()), sizeof header);
  demand(got == sizeof header, ExitCode::data, "truncated: ", got, " bytes, the header of llm.c has ", sizeof header);
  for (const LlmcVersion& known : kLlmcVersions) {
    if (header[0] != known.magic || header[1] != known.version) continue;
    demand(header[2] >= 0, ExitCode::data, "its header promises ", header[2], " tokens");
    return {.width = known.width, .tokens = header[2], .document_token = known.document_token, .begins = true};
  }
  fail(ExitCode::data, "not tokens of llm.c: magic ", header[0], " version ", header[1],
       "; known are 20240520 version 1 and 20240801 version 7");
}

TokenFile token_file_of(const InputFiles::File& file, InputFormat format) {
  try {
    return open_tokens(*open_source(file.path), format);
  } catch (const Error& error) {
    fail_again(error, concat(file.name(), ": ", error.what()));
  }
}

InputFormat format_of_tokens(InputFiles files) {
  const auto first = files.next();
  if (first && has_llmc_header(*first)) return InputFormat::llmc;
  while (const auto file = files.next()) {
    demand(!file->named || !has_llmc_header(*file), ExitCode::config, file->name(),
           ": tokens of llm.c cannot be mixed with other inputs (", first->name(), "). Prepare them as a corpus of their own");
  }
  return InputFormat::automatic;
}

std::size_t TokenFile::whole_documents(std::string_view bytes) const {
  for (std::int64_t i = static_cast<std::int64_t>(bytes.size()) / width - 1; i >= 0; --i) {
    if (token_at(bytes.data() + i * width, width) == document_token)
      return static_cast<std::size_t>((begins ? i : i + 1) * width);
  }
  return 0;
}

void read_documents(const TokenFile& file, std::string_view bytes, std::int64_t vocab_size, const std::string& name,
                    std::int64_t first, std::vector<std::int32_t>& ids, std::vector<std::size_t>& documents) {
  const auto count = static_cast<std::int64_t>(bytes.size()) / file.width;
  std::size_t tokens = 0;  // number of tokens of the current document
  const auto end_document = [&] {
    if (tokens > 0) documents.push_back(tokens);
    tokens = 0;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = token_at(bytes.data() + i * file.width, file.width);
    demand(token < vocab_size, ExitCode::data, name, ": token ", token, " at position ", first + i,
           " is outside the vocabulary of ", vocab_size);
    const bool mark = token == file.document_token;
    if (mark && file.begins) end_document();
    ids.push_back(static_cast<std::int32_t>(token));
    ++tokens;
    if (mark && !file.begins) end_document();
  }
  end_document();
}

}  // namespace octet::data
