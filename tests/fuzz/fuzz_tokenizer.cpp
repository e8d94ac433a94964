// Reads any bytes as the file of a tokenizer. This must give a clear error or a tokenizer. Also gives the bytes as text to three
// tokenizers: their ids must be in the vocabulary, valid text must come back unchanged, and a text that is cut where the
// tokenizer allows must give the same ids.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "data/tokenizer/definitions.h"
#include "octet/base/require.h"
#include "octet/data/tokenizer/sentence_piece.h"
#include "octet/data/tokenizer/tiktoken.h"
#include "octet/data/tokenizer/utf8.h"

namespace {

using namespace octet::data;

void hold(bool holds) {
  if (!holds) std::abort();
}

void try_text(const BpeTokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = ids_of(tokenizer, text);
  for (const std::int32_t id : ids) hold(id >= 0 && id < tokenizer.vocab_size());
  hold(ids.empty() == text.empty());
  text_of(tokenizer, ids);
  const std::size_t cut = tokenizer.cut(text);
  hold(cut <= text.size());
  if (cut == 0) return;
  std::vector<std::int32_t> again = ids_of(tokenizer, text.substr(0, cut));
  tokenizer.encode(text.substr(cut), again);
  hold(again == ids);
}

void try_file(std::string_view bytes, BpeDefinition (*read)(std::string_view, const std::string&)) {
  try {
    try_text(BpeTokenizer(read(bytes, "file"), "t", "0"), "a b\n" + std::string(bytes.substr(0, 1000)));
  } catch (const octet::Error& error) {
    hold(error.code() == octet::ExitCode::data || error.code() == octet::ExitCode::config);
    const std::string_view message = error.what();
    hold(message.substr(0, 4) == "file" && message.find('\n') == std::string_view::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try_file(bytes, read_hugging_face);
  try_file(bytes, read_sentence_piece);
  try_file(bytes, read_tiktoken);

  static const BpeTokenizer byte_level = tokenizer_of(byte_level_json()), doubled = tokenizer_of(metaspace_json()),
                            first = tokenizer_of(metaspace_json("first", false));
  for (const BpeTokenizer* tokenizer : {&byte_level, &doubled, &first}) try_text(*tokenizer, bytes);
  if (valid_utf8(bytes) == size) {
    hold(text_of(byte_level, ids_of(byte_level, bytes)) == bytes);
    if (bytes.find("\xE2\x96\x81") == std::string_view::npos) hold(text_of(doubled, ids_of(doubled, bytes)) == bytes);
  }
  return 0;
}
