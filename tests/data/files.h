// Folders, texts, tokenizers and hand-made corpora for the tests of data.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/data/corpus_writer.h"
#include "octet/data/tokenizer/byte.h"
#include "support/errors.h"
#include "support/folder.h"

namespace octet::data {

using testing::contains;
using testing::error_of;
using testing::names_in;
using testing::TemporaryFolder;

inline std::vector<std::int32_t> ids_of(const std::string& text) {
  std::vector<std::int32_t> ids;
  ByteTokenizer().encode(text, ids);
  return ids;
}

inline CorpusInfo write_corpus(const std::filesystem::path& prefix, const std::vector<std::string>& documents) {
  CorpusWriter writer(prefix, ByteTokenizer());
  for (const std::string& document : documents) {
    writer.append(ids_of(document));
    writer.end_document();
  }
  return writer.finish();
}

inline std::string text_of(const Corpus& corpus, std::int64_t document) {
  const std::int64_t first = corpus.document_start(document);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(corpus.document_start(document + 1) - first));
  corpus.read(first, ids, 256);
  std::string text;
  ByteTokenizer().decode(ids, text);
  return text;
}

// Appends the little-endian bytes of a number, by the formats' own definition.
template <class T>
void put(std::string& to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    to.push_back(static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xFF));
}

// An .idx file, field by field, so that a test can make any of them wrong.
struct HandMadeIndex {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> pointers;
  std::vector<std::int64_t> documents;
  std::uint64_t sequence_count = 0, document_count = 0;  // the counts in the header

  // Makes a consistent index with sequences of these lengths and documents that begin at these sequences.
  HandMadeIndex(std::uint8_t type_code, std::int64_t width, std::vector<std::int32_t> sequence_lengths,
                std::vector<std::int64_t> starts)
      : code(type_code), lengths(std::move(sequence_lengths)), documents(std::move(starts)) {
    std::int64_t at = 0;
    for (const std::int32_t length : lengths) {
      pointers.push_back(at);
      at += length * width;
    }
    documents.push_back(static_cast<std::int64_t>(lengths.size()));
    sequence_count = lengths.size();
    document_count = documents.size();
  }

  std::string bytes() const {
    std::string out = magic;
    put(out, version);
    put(out, code);
    put(out, sequence_count);
    put(out, document_count);
    for (const auto value : lengths) put(out, value);
    for (const auto value : pointers) put(out, value);
    for (const auto value : documents) put(out, value);
    return out;
  }
};

// Each token is a byte + 1. Texts may be cut only after a space. Each document ends with token 0.
class LetterTokenizer : public Tokenizer {
 public:
  explicit LetterTokenizer(std::int32_t vocab_size = 300) : vocab_size_(vocab_size) {}
  std::string name() const override { return "letters"; }
  std::string hash() const override { return "00000000000000aa"; }
  std::int32_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> end_of_document() const override { return 0; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + 1);
  }
  std::vector<std::size_t> encode_counting(std::string_view text, std::span<const std::size_t> places,
                                           std::vector<std::int32_t>& ids) const override {
    encode(text, ids);
    return {places.begin(), places.end()};
  }
  void decode(std::span<const std::int32_t> ids, std::string& text) const override {
    for (const auto id : ids) text.push_back(static_cast<char>(id - 1));
  }
  std::size_t cut(std::string_view text) const override {
    const std::size_t space = text.rfind(' ');
    return space == std::string_view::npos ? 0 : space + 1;
  }

 private:
  std::int32_t vocab_size_;
};

}  // namespace octet::data
