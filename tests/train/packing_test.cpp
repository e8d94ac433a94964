// With data.packing = "documents" a step is what it would be with one conversation a sequence, however the conversations are
// packed.
#include <gtest/gtest.h>

#include <random>

#include "octet/data/corpus_writer.h"
#include "octet/data/dataset.h"
#include "octet/data/tokenizer/byte.h"
#include "octet/train/sources.h"
#include "support/bounds.h"
#include "support/folder.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

constexpr std::int64_t kPackedVocab = 32;

// Writes conversations of 3 to 24 tokens with random masks. Some have no trained token, some nothing else.
std::vector<Tokens> write_conversations(const std::filesystem::path& prefix, int count) {
  std::mt19937 random(5);
  std::vector<Tokens> result;
  data::CorpusWriter writer(prefix, data::ByteTokenizer(), {.loss_mask = data::CorpusWriter::LossMask::written});
  for (int c = 0; c < count; ++c) {
    std::vector<std::int32_t> ids(3 + random() % 22);
    std::vector<std::uint8_t> trained(ids.size());
    const auto share = random() % 5;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(random() % kPackedVocab);
      trained[i] = random() % 4 < share ? 1 : 0;
    }
    writer.append(ids, trained);
    writer.end_document();
    Tokens alone{.tokens = {ids.begin(), ids.end() - 1}, .targets = {}, .document_starts = {}};
    for (std::size_t i = 1; i < ids.size(); ++i) alone.targets.push_back(trained[i] == 1 ? ids[i] : data::kNoTarget);
    result.push_back(std::move(alone));
  }
  writer.finish();
  return result;
}

struct Step {
  double loss = 0, tokens = 0;
  std::vector<std::vector<double>> gradients;
};

Step step_of(const train::EngineOptions& options, const std::vector<Tokens>& micro_batches) {
  const auto engine = make_engine(options);
  engine->begin_step(std::ssize(micro_batches));
  for (const Tokens& batch : micro_batches) engine->forward_backward(batch.batch(), nullptr);
  Step step{.loss = engine->optimizer().loss_total()[0], .tokens = engine->optimizer().loss_total()[1], .gradients = {}};
  for (const parallel::Parameter& p : engine->model().parameters().parameters())
    step.gradients.push_back(values_of(p.grad_shard));
  return step;
}

void packed_is_one_a_sequence(const models::DecoderConfig& model, std::int64_t seq_len, std::int64_t micro_batch_size) {
  const TemporaryFolder folder;
  const std::vector<Tokens> conversations = write_conversations(folder / "chats", 40);
  const data::Dataset dataset({.sources = {{.path = folder / "chats"}},
                               .seq_len = seq_len,
                               .split = {1, 0},
                               .vocab_size = kPackedVocab,
                               .packing = data::Packing::documents});
  ASSERT_LT(dataset.samples_per_epoch(), 40);

  train::EngineOptions options = tiny_options("fp32");
  options.model = model;
  options.document_mask = true;
  options.seq_len = seq_len;
  options.micro_batch_size = micro_batch_size;
  std::vector<Tokens> packed;
  std::int64_t rows = 0;
  for (; rows < dataset.samples_per_epoch(); rows += micro_batch_size) {
    const auto length = static_cast<std::size_t>(seq_len);
    Tokens batch{.tokens = std::vector<std::int32_t>(length * static_cast<std::size_t>(micro_batch_size)),
                 .targets = {},
                 .document_starts = {}};
    batch.targets.assign(batch.tokens.size(), data::kNoTarget);
    for (std::int64_t r = 0; r < micro_batch_size && rows + r < dataset.samples_per_epoch(); ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * length;
      dataset.train_sample(rows + r, {std::span(batch.tokens).subspan(at, length), std::span(batch.targets).subspan(at, length)},
                           batch.document_starts, static_cast<std::int32_t>(at));
    }
    packed.push_back(std::move(batch));
  }
  const Step together = step_of(options, packed);

  options.document_mask = false;
  options.seq_len = 24;
  options.micro_batch_size = 1;
  std::vector<Tokens> alone = conversations;
  for (Tokens& one : alone) {
    one.tokens.resize(24, 1);
    one.targets.resize(24, data::kNoTarget);
  }
  const Step apart = step_of(options, alone);

  // Sums over the same tokens in another order.
  const double bound = gamma(1024, kUnitRoundoffF32);
  EXPECT_EQ(together.tokens, apart.tokens);
  EXPECT_GT(together.tokens, 100);
  EXPECT_NEAR(together.loss, apart.loss, bound * apart.loss);
  for (std::size_t p = 0; p < apart.gradients.size(); ++p)
    EXPECT_TRUE(near_norm(together.gradients[p], apart.gradients[p], bound)) << p;
}

TEST(Packing, AStepIsThatOfOneConversationASequence) {
  packed_is_one_a_sequence(tiny_config(), 48, 1);
  packed_is_one_a_sequence(tiny_config(), 96, 3);
  packed_is_one_a_sequence(tiny_qwen3_config(), 48, 2);
}

// A stream is cut into whole sequences. What is left at its end may be most of a small corpus.
TEST(Packing, TheEndOfAStreamThatIsNeverReadIsSaid) {
  const TemporaryFolder folder;
  const std::string chats = (folder / "chats").string();
  write_conversations(folder / "chats", 40);
  const std::int64_t tokens = data::Corpus(folder / "chats").tokens();
  const auto lines = [&](std::int64_t seq_len, data::Packing packing = data::Packing::stream, data::Use use = data::Use::train) {
    return train::unread_text(data::Dataset({.sources = {{.path = chats, .weight = 1, .use = use}},
                                             .seq_len = seq_len,
                                             .split = {1, 0},
                                             .vocab_size = kPackedVocab,
                                             .packing = packing}));
  };
  const std::int64_t half = tokens / 2 + 1;
  const std::string line = concat(chats, ": the last ", tokens - half - 1, " of ", tokens, " tokens fill no sequence of ", half,
                                  " and are never read. Give --data.packing=documents to train on all documents");
  EXPECT_EQ(lines(half), std::vector<std::string>{line});
  EXPECT_TRUE(lines(half, data::Packing::documents).empty());
  EXPECT_TRUE(lines(half, data::Packing::stream, data::Use::validation).empty());
  EXPECT_TRUE(lines(tokens - 1).empty());
  EXPECT_TRUE(lines(tokens - 1 - tokens / 50).empty()) << "2% are not worth a line";
  EXPECT_EQ(lines(tokens - 2 - tokens / 50).size(), 1u);
}

TEST(Packing, SoItIsWithLearnedPositions) {
  models::DecoderConfig model = tiny_gpt_neo_config();
  model.max_position = std::max<std::int64_t>(model.max_position, 48);
  packed_is_one_a_sequence(model, 48, 2);
}

}  // namespace
}  // namespace octet::testing
