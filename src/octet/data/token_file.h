// Files of token ids that other programs wrote: llm.c's and nanoGPT's .bin.
//   llm.c: 256 little-endian i32, of which the first three are magic, version and number of tokens: 20240520 and 1 for u16 tokens
//   (GPT-2), 20240801 and 7 for u32 (Llama 3). A document begins with token 50256 or 128000. Source: llm.c,
//   dev/data/data_common.py. nanoGPT: u16 tokens and nothing else. A document ends with token 50256. Source: nanoGPT,
//   data/openwebtext/prepare.py.
// Where these tokens do not occur, a file is one document.
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
  std::optional<std::int64_t> tokens;   // as the header says
  std::int32_t document_token = 50256;  // where a document begins, or ends
  bool begins = false;                  // it begins with that token
  std::int64_t vocab_limit() const;     // ids of this width are below
  // Bytes of the whole documents that `bytes` begins with; 0 when the first goes on behind them.
  std::size_t whole_documents(std::string_view bytes) const;
};

// What stands before the tokens is read from `source`. Throws Error{data} with the reason alone.
TokenFile open_tokens(ByteSource& source, InputFormat format);
// The same of a file; throws Error{data} "FILE: reason".
TokenFile token_file_of(const InputFiles::File& file, InputFormat format);

// InputFormat::llmc where the first of these files is a .bin (or .bin.gz, .bin.zst) with a header of llm.c, `automatic` otherwise;
// Error{config} for such a file that is named behind others.
InputFormat format_of_tokens(InputFiles files);

// Appends the ids of whole documents, and the number of tokens of each. Throws Error{data} "FILE: ..." for a token outside
// [0, vocab_size); `first` is the number of the first token in the file.
void read_documents(const TokenFile& file, std::string_view bytes, std::int64_t vocab_size, const std::string& name,
                    std::int64_t first, std::vector<std::int32_t>& ids, std::vector<std::size_t>& documents);

}  // namespace octet::data
