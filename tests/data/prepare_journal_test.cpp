// Prepares a corpus with a tokenizer that was trained on its documents and that puts a token before and after each document.
#include "octet/data/prepare_journal.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <random>

#include "data/acting_tokenizer.h"
#include "data/files.h"
#include "data/tokenizer/definitions.h"

namespace octet::data {
namespace {

// Returns the merges "l r" that BPE learns. Each is the most frequent pair, or the first of several. Words begin with spaces.
std::vector<std::string> learned_merges(const std::string& text, int count) {
  std::map<std::vector<std::string>, int> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin + 1), text.size());
    std::vector<std::string> word;
    for (; begin < end; ++begin) word.push_back(character_of_byte(static_cast<unsigned char>(text[begin])));
    ++words[word];
  }
  std::vector<std::string> merges;
  while (static_cast<int>(merges.size()) < count) {
    std::map<std::pair<std::string, std::string>, int> pairs;
    for (const auto& [word, times] : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) pairs[{word[i], word[i + 1]}] += times;
    }
    const auto best = std::max_element(pairs.begin(), pairs.end(), [](auto& a, auto& b) { return a.second < b.second; });
    if (best == pairs.end()) break;
    const auto [left, right] = best->first;
    merges.push_back(left + " " + right);
    std::map<std::vector<std::string>, int> merged;
    for (const auto& [word, times] : words) {
      std::vector<std::string> now;
      for (const std::string& part : word) {
        if (!now.empty() && now.back() == left && part == right) {
          now.back() += part;
        } else {
          now.push_back(part);
        }
      }
      merged[now] += times;
    }
    words = std::move(merged);
  }
  return merges;
}

std::string random_text(std::mt19937& random, std::size_t bytes) {
  static const std::vector<std::string> syllables = {"ta", "ri", "mön", "sel", "日本", "do", "ke",
                                                     "'s", ", ", "7",   ".\n", " ",    " ",  " "};
  std::string text = "x";
  while (text.size() < bytes) text += syllables[random() % syllables.size()];
  return text;
}

// Texts, one of which takes several tasks, and several tasks of lines, some of which are repeated; and a trained tokenizer with
// its files.
struct Job {
  TemporaryFolder folder;
  std::vector<std::string> texts;  // each text once, in the order of the corpus
  PrepareOptions options{.inputs = {folder / "in"}, .output = folder / "whole", .duplicates = Duplicates::drop, .workers = 1};

  Job() {
    std::mt19937 random(3);
    texts = {random_text(random, 2000), random_text(random, 8'000'000)};
    folder.write("in/a.txt", texts[0]);
    folder.write("in/b.txt", texts[1]);
    std::string lines;
    for (int i = 0; i < 12000; ++i) {
      const bool again = i % 5 == 4;
      if (!again) texts.push_back(random_text(random, 200 + random() % 400));
      lines += Json{{"text", again ? texts[2 + random() % (texts.size() - 2)] : texts.back()}}.dump() + "\n";
    }
    folder.write("in/c.jsonl", lines);
    texts.push_back(random_text(random, 3000));
    folder.write("in/d.txt", texts.back());
    folder.write("model/tokenizer.json", byte_level_json(learned_merges(texts[0] + texts.back(), 200)).dump());
    folder.write("model/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  }
  std::unique_ptr<Tokenizer> tokenizer(DocumentEnd end = DocumentEnd::token) const {
    return make_tokenizer((folder / "model").string(), end);
  }
  std::vector<std::string> corpus(const std::string& name) const {
    std::vector<std::string> files;
    for (const char* suffix : {".bin", ".idx", ".json"}) files.push_back(read_file(folder / (name + suffix)));
    return files;
  }
};

TEST(PrepareJournal, ATrainedTokenizersCorpusIsTheSameWhateverHappens) {
  Job job;
  const auto tokenizer = job.tokenizer();
  const CorpusInfo info = prepare(job.options, *tokenizer).corpus;
  EXPECT_EQ(info.tokenizer_hash, tokenizer->hash());
  ASSERT_EQ(info.documents, static_cast<std::int64_t>(job.texts.size()));
  {
    const Corpus corpus(job.folder / "whole");
    std::size_t bytes = 0;
    for (const std::string& text : job.texts) bytes += text.size();
    EXPECT_LT(2 * corpus.tokens(), static_cast<std::int64_t>(bytes));  // the tokenizer has learned something
    for (std::int64_t d = 0; d < corpus.documents(); ++d) {
      const std::int64_t first = corpus.document_start(d);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(corpus.document_start(d + 1) - first));
      corpus.read(first, ids, tokenizer->vocab_size());
      ASSERT_TRUE(text_of(*tokenizer, ids) == "<|begin|>" + job.texts[static_cast<std::size_t>(d)] + "<|end|>") << d;
    }
  }
  job.options.output = job.folder / "three";
  job.options.workers = 3;
  prepare(job.options, *tokenizer);
  EXPECT_TRUE(job.corpus("three") == job.corpus("whole"));

  // Kills the run within the long text and then within the lines.
  job.options.output = job.folder / "killed";
  job.options.journal_interval_s = 0;
  int journals = 0;
  for (const int calls : {7, 9000, 1000}) {
    job.options.workers = calls == 1000 ? 3 : 1;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prepare(job.options, ActingTokenizer(*tokenizer, calls, [] { ::raise(SIGKILL); }));
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    const auto journal = job.folder / "killed.json.part";
    const bool behind = std::filesystem::exists(journal) && read_file(journal).find("\"documents\":0,") == std::string::npos;
    journals += behind ? 1 : 0;
  }
  EXPECT_EQ(journals, 3) << "a run was killed before its first document";
  prepare(job.options, *tokenizer);
  EXPECT_TRUE(job.corpus("killed") == job.corpus("whole"));
}

// The tokenizer has the same files, but the documents get other tokens.
TEST(PrepareJournal, AnotherEndOfDocumentIsAnotherJob) {
  Job job;
  const auto without = job.tokenizer(DocumentEnd::none), with = job.tokenizer();
  ASSERT_EQ(with->hash(), without->hash());
  prepare(job.options, *without);
  job.options.output = job.folder / "c";
  std::atomic<bool> stop{false};
  job.options.stop = &stop;
  error_of(ExitCode::preempted, [&] { prepare(job.options, ActingTokenizer(*with, 9000, [&] { stop.store(true); })); });
  const auto file = job.folder / "c.json.part";
  nlohmann::json journal = nlohmann::json::parse(read_file(file));
  journal.erase("dropped_fields");
  std::ofstream(file) << journal;
  EXPECT_TRUE(read_journal(CorpusParts(job.options.output), journal["job"])) << "a journal of an older Octet goes on";
  job.options.stop = nullptr;
  prepare(job.options, *without);
  EXPECT_TRUE(job.corpus("c") == job.corpus("whole"));
}

// While the inputs are read, a file appears and takes another file's place in the order. It is gone when the run goes on.
TEST(PrepareJournal, AFileThatCameAndWentLosesNoOther) {
  const TemporaryFolder folder;
  folder.write("in/a", std::string(20 << 20, 'a'));
  for (const char* name : {"in/b/1", "in/b/2", "in/b/3"}) folder.write(name, std::string(8 << 20, name[5]));
  const PrepareOptions whole{.inputs = {folder / "in"}, .output = folder / "whole", .workers = 1};
  prepare(whole, ByteTokenizer());
  std::atomic<bool> stop{false};
  PrepareOptions options{.inputs = {folder / "in"}, .output = folder / "c", .workers = 1, .stop = &stop};
  const ByteTokenizer plain;
  // The tokenizer is called once for each MiB: 20 times for `a`, and once for the new file. The writer is at most four tasks
  // behind, so it has reached b/1.
  const ActingTokenizer coming(plain, 2, [&] { folder.write("in/b/0", "before the others"); });  // before `b` is listed
  error_of(ExitCode::preempted, [&] { prepare(options, ActingTokenizer(coming, 28, [&] { stop.store(true); })); });
  EXPECT_TRUE(contains(read_file(folder / "c.json.part"), "\"position_files\":2"));  // `a` and `0`
  std::filesystem::remove(folder / "in/b/0");
  options.stop = nullptr;
  prepare(options, plain);
  for (const char* end : {".bin", ".idx"}) {
    EXPECT_TRUE(read_file(folder / concat("c", end)) == read_file(folder / concat("whole", end))) << end;
  }
}

}  // namespace
}  // namespace octet::data
