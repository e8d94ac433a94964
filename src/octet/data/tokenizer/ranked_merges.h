// The merges of vocabularies that rank tokens, not merges (SentencePiece by score, tiktoken by id): two neighbours are joined
// when together they are a token, the one of lowest rank first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octet/data/tokenizer/bpe.h"

namespace octet::data {

constexpr std::size_t kLongestRanked = 1024;  // bytes; the work grows with the square

struct RankedToken {
  std::string text;  // at most kLongestRanked bytes
  std::int32_t id, rank;
};

// Of every way to make a token of two others.
std::vector<BpeMerge> ranked_merges(std::span<const RankedToken> tokens);

}  // namespace octet::data
