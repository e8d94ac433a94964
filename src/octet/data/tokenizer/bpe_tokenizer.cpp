#include "octet/data/tokenizer/bpe_tokenizer.h"

#include <algorithm>

#include "octet/base/require.h"
#include "octet/data/tokenizer/byte_characters.h"
#include "octet/data/tokenizer/nfc.h"
#include "octet/data/tokenizer/utf8.h"
#include "octet/data/tokenizer/word_cache.h"

namespace octet::data {

struct BpeTokenizer::Worker {
  WordCache cache;
  Bpe::Scratch scratch;
  SplitPattern::Matcher matcher;
  // begins[i]: where id i of the last piece begins in it, after the changes of transformed(). Filled if `counts` is true.
  std::vector<std::size_t> begins;
  bool counts = false;
  std::string valid, piece, word;  // buffers for changed text: without invalid UTF-8, normalized, with a space put before it
};

// Borrows a worker of the tokenizer for one call. A tokenizer keeps as many workers as it ever had calls at the same time.
class BpeTokenizer::Borrowed {
 public:
  explicit Borrowed(const BpeTokenizer& owner) : owner_(owner) {
    {
      const std::scoped_lock lock(owner_.mutex_);
      if (!owner_.idle_.empty()) {
        worker_ = std::move(owner_.idle_.back());
        owner_.idle_.pop_back();
      }
    }
    if (!worker_) worker_ = std::make_unique<Worker>();
  }
  ~Borrowed() {
    const std::scoped_lock lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(worker_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Worker& operator*() const { return *worker_; }

 private:
  const BpeTokenizer& owner_;
  std::unique_ptr<Worker> worker_;
};

BpeTokenizer::BpeTokenizer(BpeDefinition definition, std::string name, std::string hash)
    : name_(std::move(name)),
      hash_(std::move(hash)),
      pieces_(std::move(definition.pieces)),
      verbatim_(pieces_.size()),
      space_after_(pieces_.size()),
      prefix_(std::move(definition.prefix)),
      end_of_document_(definition.end_of_document),
      metaspace_(definition.metaspace),
      bpe_(definition.model),
      added_(definition.added),
      normalized_(definition.normalized),
      normalizer_(definition.normalizer) {
  if (!definition.pattern.empty()) pattern_.emplace(definition.pattern, definition.file);
  const Borrowed worker(*this);
  using Space = Metaspace::Space;
  for (const auto* tokens : {&definition.added, &definition.normalized}) {
    const bool space_after =
        metaspace_.space == Space::always || (metaspace_.space == Space::doubled && tokens == &definition.added);
    for (const AddedTokens::Token& token : *tokens) {
      verbatim_.at(static_cast<std::size_t>(token.id)) = true;
      space_after_[static_cast<std::size_t>(token.id)] = space_after;
      // Cutting is switched off if a text could be cut inside this token.
      for (std::size_t at = 1; at < token.text.size(); ++at) can_cut_ = can_cut_ && !may_cut(token.text, at, *worker);
    }
  }
  if (!pattern_ && metaspace_.space == Space::doubled) can_cut_ = false;  // a space would be put before the rest
}
BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::string valid;
  if (valid_utf8(text) < text.size()) {
    append_replacing_invalid(text, valid);
    text = valid;
  }
  encode_counting(text, {}, ids);
}

std::vector<std::size_t> BpeTokenizer::encode_counting(std::string_view text, std::span<const std::size_t> places,
                                                       std::vector<std::int32_t>& ids) const {
  const Borrowed borrowed(*this);
  Worker& worker = *borrowed;
  const std::size_t before = ids.size();
  std::vector<std::size_t> counts;
  worker.counts = !places.empty();
  // Counts for the places up to `end`; these ids begin before all of them.
  const auto count_to = [&](std::size_t end) {
    while (counts.size() < places.size() && places[counts.size()] <= end) counts.push_back(ids.size() - before);
  };
  for (std::size_t at = 0; at < text.size();) {
    const AddedTokens::Match match = added_.find(text, at);
    count_to(at);
    if (match.begin > at) {
      const std::string_view piece = text.substr(at, match.begin - at);
      const std::size_t piece_before = ids.size() - before;
      encode_piece(piece, at == 0, worker, ids);
      while (counts.size() < places.size() && places[counts.size()] < match.begin)
        counts.push_back(piece_before + count_before(piece, places[counts.size()] - at, worker));
    }
    count_to(match.begin);
    if (match.end > match.begin) {
      ids.push_back(match.id);
      count_to(match.end - 1);
    }
    at = match.end;
  }
  count_to(text.size());
  return counts;
}

// The number of ids of the piece that was encoded last which begin before piece[place], place > 0.
std::size_t BpeTokenizer::count_before(std::string_view piece, std::size_t place, Worker& worker) const {
  const std::size_t end = transformed(piece.substr(0, place), worker).size();
  return static_cast<std::size_t>(std::lower_bound(worker.begins.begin(), worker.begins.end(), end) - worker.begins.begin());
}

// The piece in which normalized tokens and words are found: in NFC, or with spaces for "▁" and, if there are normalized tokens,
// with the space before it. May use worker.piece.
std::string_view BpeTokenizer::transformed(std::string_view piece, Worker& worker) const {
  if (normalizer_ == BpeDefinition::Normalizer::nfc) return nfc(piece, worker.piece);
  const bool space = marks_spaces() && !normalized_.empty();
  if (!space && (pattern_ || piece.find(kSpaceMark) == std::string_view::npos)) return piece;
  worker.piece.assign(space ? " " : "");
  append_spaced(piece, worker.piece);
  return worker.piece;
}

void BpeTokenizer::encode_piece(std::string_view piece, bool first, Worker& worker, std::vector<std::int32_t>& ids) const {
  piece = transformed(piece, worker);
  worker.begins.clear();
  for (std::size_t at = 0; at < piece.size();) {
    const AddedTokens::Match match = normalized_.find(piece, at);
    if (match.begin > at) {
      const std::string_view section = piece.substr(at, match.begin - at);
      const std::size_t before = ids.size();
      // With normalized tokens, transformed() has put the space.
      const bool space = marks_spaces() ? normalized_.empty() : !pattern_ && puts_space(section, first && at == 0);
      if (pattern_) {
        encode_split(section, worker, ids);
      } else {
        encode_spaced(section, space, worker, ids);
      }
      std::size_t begin = at;
      for (std::size_t i = before; worker.counts && i < ids.size(); ++i) {
        worker.begins.push_back(begin);
        begin += pieces_[static_cast<std::size_t>(ids[i])].size() - (space && i == before ? 1 : 0);
      }
    }
    if (match.end > match.begin) {
      ids.push_back(match.id);
      worker.begins.push_back(match.begin);
    }
    at = match.end;
  }
}

bool BpeTokenizer::puts_space(std::string_view piece, bool first) const {
  if (piece.front() == ' ') return false;
  return metaspace_.space == Metaspace::Space::always || (metaspace_.space == Metaspace::Space::first && first);
}

void BpeTokenizer::encode_split(std::string_view text, Worker& worker, std::vector<std::int32_t>& ids) const {
  SplitPattern::Words words = pattern_->words(text, worker.matcher);
  for (std::string_view word; words.next(word);) encode_word(word, worker, ids);
}

// Divides the text where no merge can join the neighbours. The ids are the same as for the text as one word, and short words are
// more often in the cache.
void BpeTokenizer::encode_spaced(std::string_view text, bool space, Worker& worker, std::vector<std::int32_t>& ids) const {
  const bool always = metaspace_.words == Metaspace::Words::spaced;
  std::size_t begin = 0;
  const auto give = [&](std::size_t end) {
    std::string_view word = text.substr(begin, end - begin);
    if (space) {
      worker.word.assign(" ").append(word);
      word = worker.word;
    }
    if (!word.empty()) encode_word(word, worker, ids);
    space = false;
    begin = end;
  };
  char before = ' ';
  for (std::size_t at = 0; at < text.size(); before = text[at++]) {
    const bool inside = (text[at] & 0xC0) == 0x80;  // inside a character
    if (!inside && (!bpe_.joins(before, text[at]) || (always && text[at] == ' '))) give(at);
  }
  give(text.size());
}

void BpeTokenizer::encode_word(std::string_view word, Worker& worker, std::vector<std::int32_t>& ids) const {
  if (const auto known = worker.cache.find(word); !known.empty()) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  const std::size_t before = ids.size();
  bpe_.encode(word, worker.scratch, ids);
  worker.cache.insert(word, std::span(ids).subspan(before));
}

void BpeTokenizer::decode(std::span<const std::int32_t> ids, std::string& text) const {
  using Space = Metaspace::Space;
  const bool spaces = !pattern_ && metaspace_.space != Space::never;
  bool begins = text.empty();
  for (const std::int32_t id : ids) {
    demand(id >= 0 && id < vocab_size(), ExitCode::data, "tokenizer ", name_, ": token ", id, " is not in [0, ", vocab_size(),
           ")");
    const auto index = static_cast<std::size_t>(id);
    std::string_view piece = pieces_[index];
    if (spaces && begins && !verbatim_[index] && !piece.empty() && piece.front() == ' ') piece.remove_prefix(1);
    text += piece;
    begins = space_after_[index];
  }
}

bool BpeTokenizer::may_cut(std::string_view text, std::size_t at, Worker& worker) const {
  if (pattern_) {
    if (!pattern_->ends_word(text, at, worker.matcher)) return false;
    if (normalizer_ == BpeDefinition::Normalizer::none) return true;
    // NFC changes neither a space or line feed nor what stands on its other side, but it may replace the letter by a letter and a
    // mark.
    const std::string_view normalized =
        nfc(text.substr(character_before(text, at), at - character_before(text, at)), worker.piece);
    return pattern_->ends_word(concat(normalized, text[at]), normalized.size(), worker.matcher);
  }
  // Cuts only before a space: a rest without a leading space could get a space put before it.
  const char before = text[at - 1];
  return text[at] == ' ' && before != ' ' && (before & 0x80) == 0 &&
         (metaspace_.words == Metaspace::Words::spaced || !bpe_.joins(before, ' '));
}

std::size_t BpeTokenizer::cut(std::string_view text) const {
  if (!can_cut_ || text.empty()) return 0;
  const Borrowed worker(*this);
  for (std::size_t at = text.size() - 1; at > 0; --at) {
    if (may_cut(text, at, *worker)) return at;
  }
  return 0;
}

}  // namespace octet::data
