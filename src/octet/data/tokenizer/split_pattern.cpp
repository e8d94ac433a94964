#include "octet/data/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <limits>

#include "octet/base/require.h"
#include "octet/base/visible.h"
#include "octet/data/tokenizer/utf8.h"

namespace octet::data {
namespace {

// The contents of the character classes for \s, \p{L} and \p{N}.
// kSpaces lists Unicode's white space, because PCRE2's \s also matches U+180E.
constexpr std::string_view kSpaces = R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kLetters = R"(\p{L})", kNumbers = R"(\p{N})";
// Letters and numbers added in Unicode 15 and 16. PCRE2 10.42 knows Unicode 14; Hugging Face's tokenizers 0.23 know Unicode 16.
constexpr std::string_view kRecentLetters =
    R"(\x{1c89}-\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3}\x{10d4a}-\x{10d65}\x{10d6f}-\x{10d85})"
    R"(\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240}\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1})"
    R"(\x{113d3}\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f}\x{13441}-\x{13446})"
    R"(\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d40}-\x{16d6c}\x{18cff}\x{1b132}\x{1b155}\x{1df25}-\x{1df2a})"
    R"(\x{1e030}-\x{1e06d}\x{1e4d0}-\x{1e4eb}\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
constexpr std::string_view kRecentNumbers =
    R"(\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59}\x{16130}-\x{16139}\x{16d70}-\x{16d79})"
    R"(\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3}\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})";

struct Known {
  std::string_view regex;  // the spelling in a tokenizer.json
  std::string_view ours;   // the translation; inside brackets, S, L and N stand for \s, \p{L} and \p{N}
};

// In each pattern, a word that holds a letter ends before the next white space. ends_word() relies on this.
const std::array<Known, 3>& known_patterns() {
  static const std::array<Known, 3> patterns = {{
      {SplitPattern::llama3(),
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nLN]?[L]+|[N]{1,3}| ?[^SLN]+[\r\n]*|[S]*[\r\n]+|[S]+(?![^S])|[S]+)"},
      // Qwen 2: like Llama 3, but each digit is a word.
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nLN]?[L]+|[N]| ?[^SLN]+[\r\n]*|[S]*[\r\n]+|[S]+(?![^S])|[S]+)"},
      {SplitPattern::gpt2(), R"('s|'t|'re|'ve|'m|'ll|'d| ?[L]+| ?[N]+| ?[^SLN]+|[S]+(?![^S])|[S]+)"},
  }};
  return patterns;
}

std::string with_classes(std::string_view pattern, std::string_view letters, std::string_view numbers) {
  std::string text;
  for (const char c : pattern) {
    if (c == 'L') {
      text += letters;
    } else if (c == 'N') {
      text += numbers;
    } else if (c == 'S') {
      text += kSpaces;
    } else {
      text += c;
    }
  }
  return text;
}

struct Regex {
  explicit Regex(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset,
                         nullptr);
    require(code != nullptr, "PCRE2 refuses our pattern at ", offset, " with error ", error);
    const int done = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    demand(done == 0, ExitCode::internal, "PCRE2 cannot compile patterns to machine code here (error ", done, ")");
  }
  ~Regex() { pcre2_code_free(code); }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;
  pcre2_code* code = nullptr;
};

constexpr std::size_t kStackBegin = 32 << 10, kStackMost = 16 << 20;

}  // namespace

struct SplitPattern::Compiled {
  Regex plain;  // for texts without recent letters and numbers; takes half the time of `complete`
  Regex complete;
  Regex recent{concat("[", kRecentLetters, kRecentNumbers, "]")};
  Regex letter{concat("[", kLetters, "]")};
};

struct SplitPattern::Matcher::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kStackBegin, kStackMost, nullptr);
  State() {
    if (data == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
    // Lifts the limit for long texts. The time of these patterns is linear in the length of the text.
    pcre2_set_match_limit(context, std::numeric_limits<std::uint32_t>::max());
  }
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  // Whether there is a match at or after `from`.
  bool match(const Regex& regex, std::string_view text, std::size_t from) {
    const int found = pcre2_jit_match(regex.code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                      PCRE2_NO_UTF_CHECK, data, context);
    demand(found >= 0 || found == PCRE2_ERROR_NOMATCH, ExitCode::internal, "PCRE2 gave up on a text of ", text.size(),
           " bytes (error ", found, ")");
    return found >= 0;
  }
  std::size_t begin() const { return pcre2_get_ovector_pointer(data)[0]; }
  std::size_t end() const { return pcre2_get_ovector_pointer(data)[1]; }
};

SplitPattern::Matcher::Matcher() : state_(std::make_unique<State>()) {}
SplitPattern::Matcher::~Matcher() = default;

std::string_view SplitPattern::llama3() {
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::string_view SplitPattern::gpt2() { return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"; }

SplitPattern::SplitPattern(std::string_view regex, const std::string& file) {
  for (const Known& known : known_patterns()) {
    if (regex != known.regex) continue;
    compiled_.reset(new Compiled{
        .plain = Regex(with_classes(known.ours, kLetters, kNumbers)),
        .complete = Regex(with_classes(known.ours, concat(kLetters, kRecentLetters), concat(kNumbers, kRecentNumbers))),
    });
    return;
  }
  fail(ExitCode::config, file, ": split pattern ", printable(regex),
       " is not supported; supported: those of Llama 3, Qwen 2 and GPT-2");
}
SplitPattern::~SplitPattern() = default;

SplitPattern::Words::Words(const SplitPattern& pattern, Matcher& matcher, std::string_view text)
    : pattern_(pattern), matcher_(matcher), text_(text), recent_(matcher.state_->match(pattern.compiled_->recent, text, 0)) {}

bool SplitPattern::Words::next(std::string_view& word) {
  if (at_ == text_.size()) return false;
  if (end_ <= at_) {
    Matcher::State& state = *matcher_.state_;
    const bool found = state.match(recent_ ? pattern_.compiled_->complete : pattern_.compiled_->plain, text_, at_);
    begin_ = found ? state.begin() : text_.size();
    end_ = found ? state.end() : text_.size();
  }
  const std::size_t stop = begin_ > at_ ? begin_ : end_;
  word = text_.substr(at_, stop - at_);
  at_ = stop;
  return true;
}

bool SplitPattern::ends_word(std::string_view text, std::size_t at, Matcher& matcher) const {
  if (text[at] != ' ' && text[at] != '\n') return false;
  const std::size_t begin = character_before(text, at);
  const Utf8Char before = utf8_char(text, begin);
  if (!before.valid || begin + before.bytes != at) return false;
  return matcher.state_->match(compiled_->letter, text.substr(begin, before.bytes), 0);
}

}  // namespace octet::data
