// `octet data prepare` when standard input is silent.
#include <fcntl.h>
#include <sys/stat.h>

#include <csignal>
#include <thread>

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
  for (const int signal : {SIGINT, SIGTERM}) {
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

}  // namespace
}  // namespace octet::testing
