// The regular expressions by which byte-level tokenizers cut text into words, run by PCRE2 (JIT, UTF, UCP).
//
// The patterns are a closed list: PCRE2 and Oniguruma, which PyPI's tokenizers use, differ in syntax (what "{1,3}+" means) and in
// classes (U+180E; letters that came after Unicode 14), so that a pattern is taken only with a translation that was checked.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace octet::data {

// Immutable; may be used from many threads at once, each with a Matcher of its own.
class SplitPattern {
 public:
  // What one thread needs; serves every pattern.
  class Matcher {
   public:
    Matcher();
    ~Matcher();

   private:
    friend class SplitPattern;
    struct State;
    std::unique_ptr<State> state_;
  };

  // `regex` exactly as a tokenizer.json writes it; throws Error{config} "FILE: split pattern ... is not supported".
  SplitPattern(std::string_view regex, const std::string& file);
  ~SplitPattern();

  // Llama 3 and its relatives; also that of its tiktoken vocabulary, which names none.
  static std::string_view llama3();
  // What a ByteLevel pre-tokenizer with use_regex means.
  static std::string_view gpt2();

  // One text to be cut. It must be valid UTF-8 and stay where it is.
  class Words {
   public:
    // False at the end. The words in their order are the text: matches, and what lies between them.
    bool next(std::string_view& word);

   private:
    friend class SplitPattern;
    Words(const SplitPattern& pattern, Matcher& matcher, std::string_view text);
    const SplitPattern& pattern_;
    Matcher& matcher_;
    std::string_view text_;
    std::size_t at_ = 0;               // of what was not yet given
    std::size_t begin_ = 0, end_ = 0;  // of the match ahead, when end_ > at_
    bool recent_ = false;              // the text holds letters or numbers younger than Unicode 14
  };
  Words words(std::string_view text, Matcher& matcher) const { return Words(*this, matcher, text); }

  // Whether a word ends at text[at], 0 < at < size, whatever stands before and behind: between a letter and a space or line feed.
  bool ends_word(std::string_view text, std::size_t at, Matcher& matcher) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace octet::data
