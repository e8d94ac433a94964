// The byte tokenizer: ids 0 to 255 are the bytes. It has no end-of-document token; the corpus index marks where documents end.
#pragma once

#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  std::string hash() const override;
  std::int32_t vocab_size() const override { return 256; }
  std::optional<std::int32_t> end_of_document() const override { return std::nullopt; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::vector<std::size_t> encode_counting(std::string_view text, std::span<const std::size_t> places,
                                           std::vector<std::int32_t>& ids) const override;
  void decode(std::span<const std::int32_t> ids, std::string& text) const override;
  std::size_t cut(std::string_view text) const override { return text.size(); }
};

}  // namespace octet::data
