// A tokenizer that does something at a certain call: an interruption in the middle, whatever the machine does meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

// Else it is `tokenizer`. `act` runs before the text of call number `calls` (from 1) is encoded.
class ActingTokenizer final : public Tokenizer {
 public:
  ActingTokenizer(const Tokenizer& tokenizer, int calls, std::function<void()> act)
      : tokenizer_(tokenizer), calls_(calls), act_(std::move(act)) {}
  std::string name() const override { return tokenizer_.name(); }
  std::string hash() const override { return tokenizer_.hash(); }
  std::int32_t vocab_size() const override { return tokenizer_.vocab_size(); }
  std::optional<std::int32_t> end_of_document() const override { return tokenizer_.end_of_document(); }
  std::span<const std::int32_t> prefix() const override { return tokenizer_.prefix(); }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    if (--calls_ == 0) act_();
    tokenizer_.encode(text, ids);
  }
  void decode(std::span<const std::int32_t> ids, std::string& text) const override { tokenizer_.decode(ids, text); }
  std::size_t cut(std::string_view text) const override { return tokenizer_.cut(text); }

 private:
  const Tokenizer& tokenizer_;
  mutable std::atomic<int> calls_;
  std::function<void()> act_;
};

}  // namespace octet::data
