#include "octet/parallel/tensor_cut.h"

#include <gtest/gtest.h>

#include <set>

#include "octet/base/require.h"

namespace octet::parallel {
namespace {

// Returns the global indices of the elements that the rank holds, in its own order.
std::vector<std::int64_t> elements_of(const TensorCut& cut) {
  std::vector<std::int64_t> result;
  for (const TensorPiece& piece : cut.pieces(0, cut.local().elements())) {
    for_runs(piece, cut.global(), [&](std::int64_t global, std::int64_t local, std::int64_t count) {
      EXPECT_EQ(local, static_cast<std::int64_t>(result.size()));
      for (std::int64_t i = 0; i < count; ++i) result.push_back(global + i);
    });
  }
  EXPECT_EQ(result.size(), static_cast<std::size_t>(cut.local().elements()));
  return result;
}

TEST(TensorCut, HoldsRowsOrColumns) {
  const Shape global{4, 6};
  EXPECT_EQ(TensorCut(global, {.along = Cut::rows}, {1, 2}).local(), (Shape{2, 6}));
  EXPECT_EQ(elements_of({global, {.along = Cut::rows}, {1, 2}}).front(), 12);
  EXPECT_EQ(TensorCut(global, {.along = Cut::columns}, {1, 3}).local(), (Shape{4, 2}));
  EXPECT_EQ(elements_of({global, {.along = Cut::columns}, {1, 3}}), (std::vector<std::int64_t>{2, 3, 8, 9, 14, 15, 20, 21}));
  for (const TensorPlace place : {TensorPlace{0, 1}, TensorPlace{2, 3}}) {
    const TensorCut uncut({5}, {}, place);
    EXPECT_EQ(uncut.local(), (Shape{5}));
    const auto pieces = uncut.pieces(1, 3);
    ASSERT_EQ(pieces.size(), 1u);
    EXPECT_EQ(pieces[0].begin, 1);
    EXPECT_EQ(pieces[0].end, 4);
    EXPECT_EQ(pieces[0].holder, place.rank);
    EXPECT_EQ(pieces[0].holders, place.size);
  }
}

// A rank holds its share of the rows of each part, one part below the other. On a single rank this is one piece.
TEST(TensorCut, HoldsAShareOfEachPartOfAFusedLinear) {
  const CutRule rule{.along = Cut::rows, .part_rows = {4, 2, 2}};
  const TensorCut cut({8, 3}, rule, {1, 2});
  EXPECT_EQ(cut.local(), (Shape{4, 3}));
  EXPECT_EQ(elements_of(cut), (std::vector<std::int64_t>{6, 7, 8, 9, 10, 11, 15, 16, 17, 21, 22, 23}));
  EXPECT_EQ(cut.pieces(0, 12).size(), 3u);
  EXPECT_EQ(TensorCut({8, 3}, rule, {0, 1}).pieces(0, 24).size(), 1u);
}

// A bias is cut as the rows of its matrix are.
TEST(TensorCut, CutsAVectorAsTheRowsOfItsMatrix) {
  for (const CutRule& rule : {CutRule{.along = Cut::rows}, CutRule{.along = Cut::rows, .part_rows = {8, 4, 4}, .least_rows = 2}}) {
    for (int rank = 0; rank < 4; ++rank) {
      const TensorCut matrix({16, 1}, rule, {rank, 4}), vector({16}, rule, {rank, 4});
      EXPECT_EQ(vector.local(), (Shape{matrix.local()[0]}));
      EXPECT_EQ(elements_of(vector), elements_of(matrix));
      const auto of_matrix = matrix.pieces(1, 2), of_vector = vector.pieces(1, 2);
      ASSERT_EQ(of_vector.size(), of_matrix.size());
      for (std::size_t i = 0; i < of_vector.size(); ++i) EXPECT_EQ(of_vector[i].holders, of_matrix[i].holders);
    }
  }
  EXPECT_THROW(TensorCut({16}, {.along = Cut::columns}, {0, 4}), Error);
}

// If there are fewer heads of K and V than ranks, neighbouring ranks hold the same heads.
TEST(TensorCut, NeighboursHoldWhatIsTooFew) {
  const CutRule rule{.along = Cut::rows, .part_rows = {8, 4, 4}, .least_rows = 2};
  for (int rank = 0; rank < 4; ++rank) {
    const TensorCut cut({16, 1}, rule, {rank, 4});
    const auto pieces = cut.pieces(0, 6);
    ASSERT_EQ(pieces.size(), 3u);
    EXPECT_EQ(pieces[0].start[0], 2 * rank);
    EXPECT_EQ(pieces[0].holders, 1);
    for (int part : {1, 2}) {
      EXPECT_EQ(pieces[static_cast<std::size_t>(part)].start[0], 4 + 4 * part + 2 * (rank / 2));
      EXPECT_EQ(pieces[static_cast<std::size_t>(part)].holder, rank % 2);
      EXPECT_EQ(pieces[static_cast<std::size_t>(part)].holders, 2);
    }
  }
  EXPECT_EQ(TensorCut({6, 1}, {.along = Cut::rows, .part_rows = {4, 1, 1}}, {3, 4}).pieces(0, 3).size(), 2u)
      << "one head of each: beside each other, and not beside the last of the queries, which nobody else holds";
}

// If the elements of a rank are cut once more, each element appears once and in its place.
TEST(TensorCut, PiecesOfPartsAreTheWhole) {
  const std::vector<CutRule> rules = {
      {}, {.along = Cut::rows}, {.along = Cut::columns}, {.along = Cut::rows, .part_rows = {8, 4, 4}}};
  for (const CutRule& rule : rules) {
    for (const int ranks : {1, 2, 4}) {
      std::multiset<std::int64_t> seen;
      for (int rank = 0; rank < ranks; ++rank) {
        const TensorCut cut({16, 8}, rule, {rank, ranks});
        const std::vector<std::int64_t> whole = elements_of(cut);
        const std::int64_t all = cut.local().elements();
        for (std::int64_t first = 0; first < all; first += 11) {
          std::int64_t next = first;
          for (const TensorPiece& piece : cut.pieces(first, std::min<std::int64_t>(11, all - first))) {
            EXPECT_EQ(piece.local, next);
            const kernels::GlobalElements elements = piece.global_elements(cut.global());
            for (std::int64_t i = 0; i < piece.elements(); ++i) {
              EXPECT_EQ(elements.at(i), whole[static_cast<std::size_t>(next + i)]);
              if (piece.holder == 0) seen.insert(elements.at(i));
            }
            next += piece.elements();
          }
        }
        EXPECT_EQ(cut.pieces(all, 0).size(), 1u) << "a rank without elements names the tensor all the same";
      }
      EXPECT_EQ(seen.size(), 128u);
      EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 128u);
    }
  }
}

TEST(TensorCut, RefusesUnequalParts) {
  EXPECT_THROW(TensorCut({6, 4}, {.along = Cut::rows}, {0, 4}), Error);
  EXPECT_THROW(TensorCut({4, 6}, {.along = Cut::columns}, {0, 4}), Error);
  EXPECT_THROW(TensorCut({8, 2}, {.along = Cut::rows, .part_rows = {4, 2}}, {0, 2}), Error);
  EXPECT_THROW(TensorCut({6, 2}, {.along = Cut::rows, .part_rows = {6}, .least_rows = 2}, {0, 4}), Error);
  EXPECT_THROW(TensorCut({1, 2}, {.along = Cut::rows, .least_rows = 2}, {0, 2}), Error);
  EXPECT_THROW(TensorCut({4, 4}, {}, {2, 2}), Error);
}

}  // namespace
}  // namespace octet::parallel
