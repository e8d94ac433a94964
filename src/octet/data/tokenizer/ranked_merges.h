// Derives merges for vocabularies that rank tokens instead of merges (SentencePiece by score, tiktoken by id): two neighbours are joined
// if together they form a token, and the token of the lowest rank is formed first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octet/data/tokenizer/bpe.h"

namespace octet::data {

constexpr std::size_t kLongestRanked = 1024;  // bytes; the work for a token grows with the square of its length

struct RankedToken {
  std::string text;  // at most kLongestRanked bytes
  std::int32_t id, rank;
};

// Returns a merge for every way to split a token into two others.
std::vector<BpeMerge> ranked_merges(std::span<const RankedToken> tokens);

}  // namespace octet::data
