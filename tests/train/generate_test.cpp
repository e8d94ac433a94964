// The law by which tokens are drawn, and what a model sees of a long text.
#include "octet/train/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

using Ids = std::vector<std::int32_t>;

// Its vocabulary is larger than any model's of these tests.
class AnyIds final : public data::Tokenizer {
 public:
  std::string name() const override { return "any"; }
  std::string hash() const override { return "any"; }
  std::int32_t vocab_size() const override { return 1 << 20; }
  std::optional<std::int32_t> end_of_document() const override { return std::nullopt; }
  void encode(std::string_view, std::vector<std::int32_t>&) const override {}
  std::vector<std::size_t> encode_counting(std::string_view, std::span<const std::size_t>,
                                           std::vector<std::int32_t>&) const override {
    return {};
  }
  void decode(std::span<const std::int32_t>, std::string&) const override {}
  std::size_t cut(std::string_view text) const override { return text.size(); }
};

class Generated : public ::testing::Test {
 protected:
  void make(std::int64_t seq_len) {
    train::EngineOptions options = tiny_options("fp64");
    options.storage.training = false;
    options.whole_logits = true;
    options.micro_batch_size = 1;
    options.seq_len = seq_len;
    options.model.vocab = kVocab;
    options.model.init_std = 0.5;
    engine_ = make_engine(options);
  }
  Ids generate(const Ids& prompt, const train::GenerateOptions& options) const {
    Ids ids;
    train::generate(*engine_, AnyIds(), prompt, options, [&](std::int32_t id) {
      ids.push_back(id);
      return true;
    });
    return ids;
  }
  // The softmax of the logits after `ids`, in textbook form.
  std::vector<double> probabilities(const Ids& ids, double temperature) const {
    const std::vector<double> logits = values_of(engine_->logits(ids).slice_rows(std::ssize(ids) - 1, std::ssize(ids)));
    std::vector<double> result(logits.size());
    double sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) sum += result[i] = std::exp(logits[i] / temperature);
    for (double& p : result) p /= sum;
    return result;
  }

  static constexpr std::int64_t kVocab = 8;
  std::unique_ptr<train::Engine> engine_;
};

// Counts the pairs of the first two tokens of many seeds. Their probability is the product of two softmaxes, the second after the
// first token. A count is within five deviations of a binomial's mean.
TEST_F(Generated, TokensAreDrawnFromTheSoftmaxEachByItself) {
  make(8);
  const Ids prompt = {3, 1, 2};
  constexpr int kSeeds = 4000;
  for (const double temperature : {0.5, 2.0}) {
    std::map<std::pair<std::int32_t, std::int32_t>, int> counts;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const Ids ids = generate(prompt, {.max_tokens = 2, .temperature = temperature, .seed = seed});
      ++counts[{ids.at(0), ids.at(1)}];
    }
    const std::vector<double> first = probabilities(prompt, temperature);
    EXPECT_GT(*std::max_element(first.begin(), first.end()) * kVocab, 1.2) << "the logits differ";
    for (std::int32_t a = 0; a < kVocab; ++a) {
      Ids longer = prompt;
      longer.push_back(a);
      const std::vector<double> second = probabilities(longer, temperature);
      for (std::int32_t b = 0; b < kVocab; ++b) {
        const double p = first[static_cast<std::size_t>(a)] * second[static_cast<std::size_t>(b)];
        EXPECT_NEAR((counts[{a, b}]), kSeeds * p, 5 * std::sqrt(kSeeds * p * (1 - p)) + 1)
            << a << ", " << b << ", " << temperature;
      }
    }
  }
}

TEST_F(Generated, ALongTextIsSeenFromItsEnd) {
  make(6);
  const Ids text = {0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4}, last(text.end() - 6, text.end()), first(text.begin(), text.begin() + 6);
  const auto likeliest = [&](const Ids& ids) {
    const std::vector<double> p = probabilities(ids, 1);
    return static_cast<std::int32_t>(std::max_element(p.begin(), p.end()) - p.begin());
  };
  ASSERT_NE(likeliest(last), likeliest(first)) << "the test would not see the difference";
  const Ids ids = generate(text, {.max_tokens = 2, .temperature = 0});
  EXPECT_EQ(ids.at(0), likeliest(last));
  Ids next(last.begin() + 1, last.end());
  next.push_back(ids.at(0));
  EXPECT_EQ(ids.at(1), likeliest(next));
}

}  // namespace
}  // namespace octet::testing
