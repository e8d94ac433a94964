#include "octet/app/chat.h"

#include <gtest/gtest.h>

namespace octet::app {
namespace {

using Ids = std::vector<std::int32_t>;

// Takes ids one after another. Returns those of the answer, and whether it has ended.
std::pair<Ids, bool> answer_of(const Ids& end, const Ids& ids) {
  AnswerEnd answer(end);
  Ids certain;
  for (const std::int32_t id : ids) {
    if (answer.take(id, certain)) return {certain, true};
  }
  certain.insert(certain.end(), answer.held().begin(), answer.held().end());
  return {certain, false};
}

TEST(AnswerEnd, IsNoPartOfTheAnswer) {
  EXPECT_EQ(answer_of({7}, {1, 2, 7, 3}), (std::pair<Ids, bool>{{1, 2}, true}));
  EXPECT_EQ(answer_of({7, 8, 9}, {1, 7, 8, 9, 2}), (std::pair<Ids, bool>{{1}, true}));
  EXPECT_EQ(answer_of({7, 8, 9}, {7, 8, 9}), (std::pair<Ids, bool>{{}, true}));
}

TEST(AnswerEnd, WhatOnlyBeginsLikeItIsPartOfTheAnswer) {
  EXPECT_EQ(answer_of({7, 8, 9}, {7, 8, 1, 7}), (std::pair<Ids, bool>{{7, 8, 1, 7}, false}));
  // The end begins within what began like it.
  EXPECT_EQ(answer_of({7, 7, 8}, {7, 7, 7, 8}), (std::pair<Ids, bool>{{7}, true}));
  EXPECT_EQ(answer_of({7, 8, 7, 9}, {7, 8, 7, 8, 7, 9}), (std::pair<Ids, bool>{{7, 8}, true}));
}

TEST(AnswerEnd, IdsAreHandedOnAsSoonAsTheyAreCertain) {
  AnswerEnd answer({7, 8});
  Ids certain;
  answer.take(1, certain);
  EXPECT_EQ(certain, (Ids{1}));
  answer.take(7, certain);
  EXPECT_EQ(certain, (Ids{1}));
  answer.take(2, certain);
  EXPECT_EQ(certain, (Ids{1, 7, 2}));
}

}  // namespace
}  // namespace octet::app
