// `octet data prepare` when standard input is silent, and over a corpus that is there.
#include <fcntl.h>
#include <sys/stat.h>

#include <csignal>
#include <map>
#include <thread>

#include "support/faults.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

// A run that reads from a named pipe. The test holds the other end and decides when input comes.
class Stalled {
 public:
  explicit Stalled(const std::string& options) {
    if (::mkfifo((folder_ / "pipe").c_str(), 0600) != 0) return;
    process_.emplace("data prepare --input - --output corpus " + options + " < pipe", folder_.path());
    pipe_ = ::open((folder_ / "pipe").c_str(), O_WRONLY);  // waits for the reader
  }
  ~Stalled() { ::close(pipe_); }
  Stalled(const Stalled&) = delete;
  Stalled& operator=(const Stalled&) = delete;

  void write(std::string_view text) const {
    ASSERT_EQ(::write(pipe_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Waits until the run has begun its corpus. From then on it handles signals.
  void wait_until_it_reads() const {
    while (!std::filesystem::exists(folder_ / "corpus.idx.part")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void end_of_input() { ::close(std::exchange(pipe_, -1)); }
  Process& process() { return *process_; }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
  std::optional<Process> process_;
  int pipe_ = -1;
};

TEST(Prepare, AStalledInputIsInterrupted) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ::signal(signal, SIG_DFL);  // the tests themselves may run under nohup
    for (const std::string_view before : {"", "half a line"}) {
      Stalled run("--format jsonl");
      run.write(before);
      run.wait_until_it_reads();
      run.process().send(signal);
      const ProgramResult result = run.process().wait();  // the pipe is still open
      EXPECT_TRUE(refused(result, 130, "data prepare: interrupted while reading standard input; nothing was written"));
      int files = 0;
      for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(run.folder().path())) ++files;
      EXPECT_EQ(files, 1) << "more than the pipe";
    }
  }
}

// `nohup` has asked for SIGHUP to be ignored.
TEST(Prepare, ANohupIsKept) {
  ::signal(SIGHUP, SIG_IGN);
  Stalled run("--format jsonl");
  ::signal(SIGHUP, SIG_DFL);
  run.write("{\"text\": \"one\"}\n");
  run.wait_until_it_reads();
  run.process().send(SIGHUP);
  run.write("{\"text\": \"two\"}\n");
  run.end_of_input();
  const ProgramResult result = run.process().wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("2 documents"), std::string::npos) << result.out;
}

TEST(Prepare, AClosedInputIsNotAnEmptyOne) {
  const TemporaryFolder folder;
  EXPECT_TRUE(refused(run_program("data prepare --input - --output corpus", folder.path(), "exec <&-; exec"), 76,
                      "standard input: cannot read"));
}

TEST(Prepare, AnInputThatComesInPiecesIsOne) {
  Stalled run("--tokenizer byte");
  run.write("one ");
  run.wait_until_it_reads();
  std::this_thread::sleep_for(std::chrono::milliseconds(120));  // longer than a single wait of the program
  run.write("text");
  run.end_of_input();
  const ProgramResult result = run.process().wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(read_file(run.folder() / "corpus.bin"), std::string("o\0n\0e\0 \0t\0e\0x\0t\0", 16));
}

TEST(Prepare, ASecondOneOfTheSameCorpusIsRefused) {
  Stalled run("");
  run.wait_until_it_reads();
  write_text(run.folder() / "text.txt", "text");
  const ProgramResult second = run_program("data prepare --input text.txt --output corpus", run.folder().path());
  EXPECT_TRUE(refused(second, 2, "corpus: another process is writing this"));
  run.write("first");
  run.end_of_input();
  const ProgramResult first = run.process().wait();
  ASSERT_EQ(first.code, 0) << first.err;
  // Once the first process has ended, another one may write the corpus.
  EXPECT_EQ(run_program("data prepare --input text.txt --output corpus", run.folder().path()).code, 0);
  EXPECT_EQ(read_file(run.folder() / "corpus.bin"), std::string("t\0e\0x\0t\0", 8));
}

// Every file of a folder with its bytes.
std::map<std::string, std::string> files_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().filename()] = read_file(entry.path());
  }
  return files;
}

TEST(Prepare, SetsTheCorpusOfAnotherCommandAside) {
  const TemporaryFolder folder;
  write_text(folder / "one.txt", "one");
  write_text(folder / "lines.jsonl", "{\"text\": \"three\", \"other\": \"four\"}\n");
  const auto prepare = [&](const std::string& options) {
    const ProgramResult result = run_program("data prepare --output c " + options, folder.path());
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err.find("kept the earlier corpus, made by another command, as c-") != std::string::npos;
  };
  EXPECT_FALSE(prepare("--input one.txt lines.jsonl"));
  EXPECT_FALSE(prepare("--input ./one.txt lines.jsonl --workers 2 --max-output 1MB"));
  write_text(folder / "one.txt", "changed");
  EXPECT_FALSE(prepare("--input one.txt lines.jsonl"));  // the same command makes the corpus anew
  std::vector<std::map<std::string, std::string>> corpora = {files_in(folder.path())};
  EXPECT_EQ(corpora[0].at("c.bin").substr(0, 6), std::string("c\0h\0a\0", 6));
  for (const char* other :
       {"--input one.txt", "--input one.txt lines.jsonl --field other", "--input one.txt lines.jsonl --duplicates drop"}) {
    EXPECT_TRUE(prepare(other)) << other;
    const auto files = files_in(folder.path());
    for (const char* suffix : {".bin", ".idx", ".json"}) {
      EXPECT_EQ(files.at(concat("c-", corpora.size(), suffix)), corpora.back().at(concat("c", suffix))) << other;
    }
    corpora.push_back(files);
  }
}

// PREFIX may also be the name of one of the corpus's files.
TEST(Prepare, NoCorpusHasTheNameOfALossMask) {
  const TemporaryFolder folder;
  write_text(folder / "one.txt", "one");
  const auto prepare = [&](const std::string& output) {
    return run_program("data prepare --input one.txt --output " + output, folder.path());
  };
  for (const char* suffix : {"", ".bin", ".idx", ".json"})
    EXPECT_TRUE(refused(prepare(concat("c.loss", suffix)), 2, "--output c.loss: the corpus would have the name of another"))
        << suffix;
  write_text(folder / "c.loss.json", "{}");
  for (const char* suffix : {"", ".bin", ".idx", ".json"})
    EXPECT_TRUE(refused(prepare(concat("c", suffix)), 2, "--output c: c.loss.json is there")) << suffix;
}

TEST(Prepare, NamesNeedNotBeUtf8) {
  const TemporaryFolder folder;
  write_text(folder / "one.txt", "one");
  const ProgramResult result = run_program("data prepare --input one.txt --json --output c\xFF", folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json_of(result.out)["output"], "c\uFFFD");
}

// A corpus of another program has no PREFIX.json. A .bin alone may be any program's.
TEST(Prepare, SetsFilesOfOtherProgramsAside) {
  for (const std::string suffix : {".bin", ".idx", ".json", ".loss.bin", ".loss.idx"}) {
    const TemporaryFolder folder;
    write_text(folder / "one.txt", "one");
    write_text(folder / ("c" + suffix), "precious");
    const ProgramResult result = run_program("data prepare --output c --input one.txt", folder.path());
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(read_file(folder / ("c-1" + suffix)), "precious");
  }
}

using PrepareFaults = Faults;

// A process is killed while it sets a corpus aside, or while it gives the new one its name.
TEST_F(PrepareFaults, AKillBetweenTheLastRenamesLosesNoCorpus) {
  for (const std::string rename : {"c-1.bin", "c-1.idx", "c-1.json", "c.json", "c.bin", "c.idx"}) {
    const TinyRun run;
    write_text(run / "old.txt", "old");
    write_text(run / "new.txt", "new");
    ASSERT_EQ(run.run("data prepare --input old.txt --output c").code, 0);
    const auto before = files_in(run.path());
    const std::string command = "data prepare --input new.txt --output c";
    ASSERT_EQ(run.run(command, failing(concat("rename */", rename, " 1 kill"))).code, 128 + SIGKILL) << rename;
    const ProgramResult result = run.run(command);
    ASSERT_EQ(result.code, 0) << result.err;
    for (const char* suffix : {".bin", ".idx", ".json"})
      EXPECT_EQ(read_file(run / concat("c-1", suffix)), before.at(concat("c", suffix))) << rename;
    EXPECT_EQ(read_file(run / "c.bin"), std::string("n\0e\0w\0", 6)) << rename;
    EXPECT_FALSE(std::filesystem::exists(run / "c-2.bin")) << rename;
  }
}

// A disk or a file server that fails costs no work: neither while the rest is read and written nor when the parts are looked at.
TEST_F(PrepareFaults, GoesOnAfterADiskThatFailed) {
  const TinyRun run;
  std::string lines;
  for (int i = 0; i < 500'000; ++i) lines += concat("{\"text\": \"line ", i, "\"}\n");
  write_text(run / "lines.jsonl", lines);
  const std::string prepare = "data prepare --input lines.jsonl --output c --workers 1 ";
  const std::string some = prepare + "--max-output 8MB";  // less than half of the whole corpus
  ASSERT_EQ(run.run(some).code, 3);
  for (const auto& [rule, code, file] : {std::tuple("open */c.json.part 1 EIO", 76, "c.json.part"),
                                         std::tuple("stat */c.json.part 1+ EIO", 76, "c.json.part"),
                                         std::tuple("open */c.bin.part 1 EIO", 76, "c.bin.part"),
                                         std::tuple("open */c.idx.part 1 ESTALE", 76, "c.idx.part"),
                                         std::tuple("read */lines.jsonl 2 EIO", 76, "lines.jsonl"),
                                         std::tuple("write */c.bin.part 1 EIO", 1, "c.bin.part")}) {
    const ProgramResult failed = run.run(prepare, failing(rule));
    EXPECT_EQ(failed.code, code) << rule << failed.err;
    EXPECT_NE(failed.err.find(concat("octet: ", file)), std::string::npos) << rule << failed.err;
    EXPECT_TRUE(std::filesystem::exists(run / "faults.log")) << rule;
    std::filesystem::remove(run / "faults.log");
    const ProgramResult again = run.run(some);
    ASSERT_EQ(again.code, 3) << rule << again.err;
    ASSERT_NE(again.err.find("continuing after "), std::string::npos) << rule << again.err;
  }
  ASSERT_EQ(run.run(prepare).code, 0);
  ASSERT_EQ(run.run("data prepare --input lines.jsonl --output whole").code, 0);
  for (const char* suffix : {".bin", ".idx", ".json"})
    EXPECT_TRUE(read_file(run / (std::string("c") + suffix)) == read_file(run / (std::string("whole") + suffix))) << suffix;
}

TEST(Prepare, AFileThatMayNotGrowIsAnError) {
  const TemporaryFolder folder;
  folder.write("text.txt", std::string(100'000, 'x'));
  EXPECT_TRUE(refused(run_program("data prepare --input text.txt --output corpus", folder.path(), "ulimit -f 8; exec"), 1,
                      "corpus.bin.part: cannot write: File too large"));
}

TEST(Prepare, RemovesWhatAKillHasLeft) {
  const TemporaryFolder folder;
  for (const char* name : {"text.txt", "corpus.json.tmp-1-2", "corpus.json.part.tmp-1-2", "corpus.json.tmp-mine"})
    folder.write(name, "some words");
  EXPECT_EQ(run_program("data prepare --input text.txt --output corpus", folder.path()).code, 0);
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"corpus.bin", "corpus.idx", "corpus.json", "corpus.json.tmp-mine", "text.txt"}));
}

TEST(Prepare, CountsTheLinksToFoldersThatItLeavesOut) {
  const TemporaryFolder folder;
  folder.write("texts/a.txt", "some words");
  for (const char* name : {"texts/b", "texts/c"}) std::filesystem::create_directory_symlink(folder.path(), folder / name);
  const ProgramResult result = run_program("data prepare --input texts --output corpus", folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "warning: texts/")) << result.err;
  EXPECT_TRUE(says(result.err, " and 1 more: links to folders are left out; give a folder with --input to read it"));
}

}  // namespace
}  // namespace octet::testing
