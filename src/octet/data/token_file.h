// Files of token ids that other programs wrote: the .bin files of llm.c and nanoGPT.
//   llm.c: a header of 256 little-endian i32, then the tokens. The header begins with magic, version and number of tokens. Magic
//   20240520 and version 1 mean u16 tokens of GPT-2, whose documents begin with token 50256. Magic 20240801 and version 7 mean u32
//   tokens of Llama 3, whose documents begin with token 128000. Source: llm.c, dev/data/data_common.py.
//   nanoGPT: u16 tokens without a header. A document ends with token 50256. Source: nanoGPT, data/openwebtext/prepare.py.
// A file without such a token is one document.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octet/data/byte_source.h"
#include "octet/data/input_files.h"

namespace octet::data {

struct TokenFile {
  std::int64_t width = 2;               // bytes of a token
  std::optional<std::int64_t> tokens;   // number of tokens in the header; nothing if there is no header
  std::int32_t document_token = 50256;  // the token that marks a document's beginning or end
  bool begins = false;                  // true: the token marks the beginning; false: it marks the end
  std::int64_t vocab_limit() const;     // smallest number above all token ids of this width
  // The number of bytes, from the beginning of `bytes`, that hold whole documents. 0 if the first document does not end in `bytes`.
  std::size_t whole_documents(std::string_view bytes) const;
};

// Reads the header, if the format has one. `source` is then at the first token. Throws Error{data} with the reason only.
TokenFile open_tokens(ByteSource& source, InputFormat format);
// Opens `file` and reads its header. Throws Error{data} "FILE: reason".
TokenFile token_file_of(const InputFiles::File& file, InputFormat format);

// Returns InputFormat::llmc if the first file is a .bin (or .bin.gz, .bin.zst) with an llm.c header, otherwise `automatic`. Throws
// Error{config} if the user names such a file after a file of another kind.
InputFormat format_of_tokens(InputFiles files);

// Appends the tokens in `bytes`, which must hold whole documents, to `ids`, and the number of tokens of each document to `documents`.
// Throws Error{data} "FILE: ..." for a token outside [0, vocab_size). `name` is the file and `first` the number of the first token in
// the file; both are for messages.
void read_documents(const TokenFile& file, std::string_view bytes, std::int64_t vocab_size, const std::string& name,
                    std::int64_t first, std::vector<std::int32_t>& ids, std::vector<std::size_t>& documents);

}  // namespace octet::data
