// The regular expressions with which byte-level tokenizers divide text into words, run by PCRE2 (JIT, UTF, UCP).
//
// Only a fixed list of patterns is supported. Hugging Face's tokenizers use Oniguruma, which differs from PCRE2 in syntax (the meaning
// of "{1,3}+") and in character classes (U+180E; letters added after Unicode 14). Each pattern on the list has a translation to PCRE2
// that was compared with the original.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace octet::data {

// Immutable. Many threads may use it at once, each with its own Matcher.
class SplitPattern {
 public:
  // The working memory of one thread. It serves every pattern.
  class Matcher {
   public:
    Matcher();
    ~Matcher();

   private:
    friend class SplitPattern;
    struct State;
    std::unique_ptr<State> state_;
  };

  // `regex` must be spelled exactly as in a tokenizer.json on the list. Throws Error{config} "FILE: split pattern ... is not supported"
  // for any other.
  SplitPattern(std::string_view regex, const std::string& file);
  ~SplitPattern();

  // The pattern of Llama 3 and its relatives. Llama 3's tiktoken file does not name it.
  static std::string_view llama3();
  // The pattern of a ByteLevel pre-tokenizer with use_regex.
  static std::string_view gpt2();

  // Divides one text into words. The text must be valid UTF-8 and outlive this.
  class Words {
   public:
    // Sets `word` to the next word, or returns false at the end. A word is a match or the text between two matches; all words
    // together are the whole text.
    bool next(std::string_view& word);

   private:
    friend class SplitPattern;
    Words(const SplitPattern& pattern, Matcher& matcher, std::string_view text);
    const SplitPattern& pattern_;
    Matcher& matcher_;
    std::string_view text_;
    std::size_t at_ = 0;               // where the next word begins
    std::size_t begin_ = 0, end_ = 0;  // range of the next match, if end_ > at_
    bool recent_ = false;              // the text holds letters or numbers that were added after Unicode 14
  };
  Words words(std::string_view text, Matcher& matcher) const { return Words(*this, matcher, text); }

  // Whether a word always ends just before text[at], for 0 < at < size, whatever comes before and after: text[at] is a space or a line
  // feed and follows a letter.
  bool ends_word(std::string_view text, std::size_t at, Matcher& matcher) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace octet::data
