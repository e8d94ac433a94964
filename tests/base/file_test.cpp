#include "octet/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "octet/base/require.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / concat("octet-file-test-", ::getpid(), "-",
                                                 ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

template <class F>
std::pair<ExitCode, std::string> caught(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ExitCode::done, ""};
}

TEST_F(FileTest, PiecesAreReadFromAnyPlace) {
  const fs::path path = folder_ / "x";
  const std::string text = "0123456789";
  write_file_atomically(path, text);
  FileReader first(path);
  const FileReader reader = std::move(first);
  EXPECT_EQ(reader.size(), 10u);
  EXPECT_EQ(reader.path(), path);
  std::string piece(4, ' ');
  for (const std::size_t offset : {6u, 0u, 3u}) {
    reader.read_at(offset, std::as_writable_bytes(std::span(piece)));
    EXPECT_EQ(piece, text.substr(offset, 4));
  }
  reader.read_at(10, {});
  EXPECT_EQ(caught([&] { reader.read_at(8, std::as_writable_bytes(std::span(piece))); }),
            std::pair(ExitCode::data, path.string() + ": ends at byte 10 of 10"));
  fs::resize_file(path, 9);
  EXPECT_EQ(caught([&] { reader.read_at(6, std::as_writable_bytes(std::span(piece))); }),
            std::pair(ExitCode::data, path.string() + ": ends at byte 9 of 10; it has become shorter since it was opened"));
  EXPECT_EQ(reader.read_up_to(6, std::as_writable_bytes(std::span(piece))), 3u);
  EXPECT_EQ(reader.read_up_to(9, std::as_writable_bytes(std::span(piece))), 0u);
  EXPECT_EQ(caught([&] { FileReader{folder_}; }), std::pair(ExitCode::data, folder_.string() + ": not a regular file but a folder"));
  EXPECT_EQ(caught([&] { FileReader{folder_ / "y"}; }).first, ExitCode::data);
}

TEST_F(FileTest, ReadsWhatWasWritten) {
  const fs::path path = folder_ / "x";
  std::string expected;
  {
    FileWriter writer(path);
    // The sizes lie below, at and above the writer's buffer of 1 MiB, so that every path of the writer is taken.
    for (const std::size_t size : {std::size_t{3}, std::size_t{1} << 20, std::size_t{5}, (std::size_t{1} << 20) + 7, std::size_t{0}, std::size_t{1000}}) {
      const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
      writer.write(piece);
      expected += piece;
      EXPECT_EQ(writer.position(), expected.size());
    }
    writer.write_at(2, std::as_bytes(std::span("XYZ", 3)));
    expected.replace(2, 3, "XYZ");
    writer.write("end");
    expected += "end";
    writer.finish();
  }
  EXPECT_TRUE(read_file(path) == expected);
  const MappedFile map(path);
  EXPECT_EQ(map.bytes().size(), expected.size());
  EXPECT_EQ(static_cast<char>(map.bytes().back()), 'd');
}

TEST_F(FileTest, GoesOnAndTakesBack) {
  const fs::path path = folder_ / "x";
  const std::string large(3 << 20, 'l');
  { FileWriter(path).write("lost: the buffer was not flushed"); }
  EXPECT_EQ(read_file(path), "");
  {
    FileWriter writer(path);
    writer.write("kept, cut");
    writer.flush();
    EXPECT_EQ(read_file(path), "kept, cut");
  }
  FileWriter writer(path, 4);
  EXPECT_EQ(writer.position(), 4u);
  writer.write(" and more");
  writer.truncate(8);  // cuts within the buffer
  writer.write(large);
  writer.truncate(9);  // cuts within the file
  EXPECT_EQ(writer.position(), 9u);
  writer.write(large);
  writer.write("!");
  writer.truncate(9 + large.size());
  writer.write("?");
  writer.finish();
  EXPECT_TRUE(read_file(path) == "kept andl" + large + "?");
  EXPECT_EQ(caught([&] { FileWriter missing(folder_ / "none", 0); }).first, ExitCode::internal);
}

TEST_F(FileTest, ALockIsHeldByOne) {
  const fs::path path = folder_ / "x";
  {
    FileLock lock(path, "the corpus");
    const FileLock moved(std::move(lock));
    EXPECT_EQ(caught([&] { FileLock second(path, "the corpus"); }),
              std::pair(ExitCode::config, std::string("the corpus: another process is writing this")));
    const FileLock other(folder_ / "y", "another");
  }
  EXPECT_FALSE(fs::exists(path));
  std::ofstream(path).close();  // a lock file that a killed process left behind
  const FileLock again(path, "the corpus");
}

TEST_F(FileTest, MapsMoveAndEmptyFilesAreEmpty) {
  std::ofstream(folder_ / "empty").close();
  EXPECT_EQ(read_file(folder_ / "empty"), "");
  write_file_atomically(folder_ / "x", "abc");
  MappedFile a(folder_ / "x");
  MappedFile b(std::move(a));
  EXPECT_EQ(a.bytes().size(), 0u);
  a = std::move(b);
  EXPECT_EQ(a.bytes().size(), 3u);
}

// A pipe without a writer would be waited for, for ever.
TEST_F(FileTest, OpensRegularFilesOnly) {
  const fs::path pipe = folder_ / "pipe", socket_file = folder_ / "socket";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(socket_file.string().size(), sizeof address.sun_path);
  std::strcpy(address.sun_path, socket_file.c_str());
  ASSERT_EQ(::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  for (const auto& [path, kind] : std::vector<std::pair<fs::path, std::string>>{
           {pipe, "a pipe"}, {"/dev/zero", "a device"}, {socket_file, "a socket or device"}, {folder_, "a folder"}}) {
    const auto expected = std::pair(ExitCode::data, path.string() + ": not a regular file but " + kind);
    EXPECT_EQ(caught([&] { read_file(path); }), expected);
    EXPECT_EQ(caught([&] { FileReader{path}; }), expected);
    EXPECT_EQ(caught([&] { open_regular(path); }), expected);
  }
  ::close(descriptor);
}

TEST_F(FileTest, SaysWhatIsWrong) {
  EXPECT_EQ(caught([&] { read_file(folder_ / "none"); }),
            std::pair(ExitCode::data, (folder_ / "none").string() + ": No such file or directory"));
  EXPECT_EQ(caught([&] { read_file(folder_); }), std::pair(ExitCode::data, folder_.string() + ": not a regular file but a folder"));
  EXPECT_EQ(caught([&] { FileWriter writer(folder_ / "none" / "x"); }),
            std::pair(ExitCode::internal, (folder_ / "none" / "x").string() + ": cannot create: No such file or directory"));
  EXPECT_EQ(caught([&] { FileWriter writer(folder_ / "none.tmp-0af-7-8" / "x.tmp-7659"); }),
            std::pair(ExitCode::internal, (folder_ / "none" / "x").string() + ": cannot create: No such file or directory"))
      << "the names that the user knows";
  EXPECT_EQ(caught([&] { FileWriter writer(folder_ / "none.tmp-mine" / "x"); }).second,
            (folder_ / "none.tmp-mine" / "x").string() + ": cannot create: No such file or directory");
}

TEST_F(FileTest, AtomicWritesReplaceAndLeaveNothingBehind) {
  const fs::path path = folder_ / "x";
  write_file_atomically(path, "one");
  write_file_atomically(path, "two");
  EXPECT_EQ(read_file(path), "two");
  EXPECT_EQ(entries(), 1u);
}

// A killed process leaves its temporary file. Files of other names may be the user's.
TEST_F(FileTest, RemovesWhatInterruptedWritesHaveLeft) {
  const fs::path path = folder_ / "run.json";
  write_file_atomically(path, "{}");
  for (const char* name : {"run.json.tmp-12-3456", "run.json.tmp-1-2", "run.json.tmp-mine", "other.json.tmp-1-2"})
    testing::write_text(folder_ / name, "half");
  remove_interrupted_writes(path);
  EXPECT_EQ(testing::names_in(folder_), (std::vector<std::string>{"other.json.tmp-1-2", "run.json", "run.json.tmp-mine"}));
  remove_interrupted_writes(folder_ / "nowhere" / "run.json");

  fs::create_directory(folder_ / "there");
  fs::create_symlink(path, folder_ / "there" / "link");
  testing::write_text(folder_ / "run.json.tmp-3-4", "half");
  remove_interrupted_writes(folder_ / "there" / "link");
  EXPECT_FALSE(fs::exists(folder_ / "run.json.tmp-3-4"));
  remove_interrupted_writes("/dev/null");

  fs::create_directory(folder_ / "model");
  for (const char* name : {"model.safetensors.tmp-12", "config.json.tmp-1-2", "config.json.tmp-mine", "config.json"})
    testing::write_text(folder_ / "model" / name, "half");
  remove_interrupted_writes_in(folder_ / "model");
  remove_interrupted_writes_in(folder_ / "nowhere");
  EXPECT_EQ(testing::names_in(folder_ / "model"), (std::vector<std::string>{"config.json", "config.json.tmp-mine"}));
}

TEST_F(FileTest, CreatesAFileOnceAndLeavesNothingBehind) {
  const fs::path path = folder_ / "x";
  EXPECT_TRUE(create_file_atomically(path, "one"));
  EXPECT_FALSE(create_file_atomically(path, "two"));
  EXPECT_EQ(read_file(path), "one");
  EXPECT_EQ(entries(), 1u);
  EXPECT_EQ(caught([&] { create_file_atomically(folder_ / "none/x", "text"); }).first, ExitCode::internal);
}

TEST_F(FileTest, AtomicWritesDestroyNeitherPipesNorLinks) {
  const fs::path pipe = folder_ / "pipe", link = folder_ / "link", dangling = folder_ / "dangling";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_directories(folder_ / "far");
  fs::create_symlink("pipe", folder_ / "to-pipe");
  for (const fs::path& path : {pipe, folder_ / "to-pipe"}) {
    EXPECT_EQ(caught([&] { write_file_atomically(path, "text"); }),
              std::pair(ExitCode::config, path.string() + ": not a regular file but a pipe"));
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_symlink(folder_ / "to-pipe"));

  write_file_atomically(folder_ / "far/file", "old");
  fs::create_symlink("far/file", link);
  fs::create_symlink("far/new", dangling);
  write_file_atomically(link, "one");
  write_file_atomically(dangling, "two");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_file(folder_ / "far/file"), "one");
  EXPECT_EQ(read_file(folder_ / "far/new"), "two");
  EXPECT_EQ(entries(), 5u);
}

// A second try does not help, another path does.
TEST_F(FileTest, APathThatCanHaveNoFileIsTheUsersMistake) {
  write_output(folder_ / "x", "text");
  for (const fs::path& path : {folder_ / "none/x", folder_ / "x/y", fs::path("/proc/none/x"), folder_ / std::string(300, 'n')})
    EXPECT_EQ(caught([&] { write_output(path, "text"); }).first, ExitCode::config) << path;
  EXPECT_EQ(caught([&] { write_file_atomically(folder_ / "none/x", "text"); }).first, ExitCode::internal);
}

// A limit on the size of files makes write() fail in the middle, as a full disk does.
TEST_F(FileTest, AFullDiskLeavesTheOldFile) {
  const fs::path path = folder_ / "x";
  write_file_atomically(path, "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100000;
  setrlimit(RLIMIT_FSIZE, &small);
  const auto error = caught([&] { write_file_atomically(path, std::string(3 << 20, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.first, ExitCode::internal);
  EXPECT_NE(error.second.find(": cannot write: File too large"), std::string::npos) << error.second;
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, AFolderThatCannotBeFlushedIsAnError) {
  sync_directory(folder_);
  try {
    sync_directory(folder_ / "none");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    EXPECT_EQ(std::string(error.what()),
              (folder_ / "none").string() + ": cannot open this folder to flush it to disk: No such file or directory");
  }
}

TEST_F(FileTest, ARenameThatFailsLeavesNothing) {
  fs::create_directories(folder_ / "taken/by/folders");
  EXPECT_THROW(write_file_atomically(folder_ / "taken", "text"), Error);
  EXPECT_EQ(entries(), 1u);
}

// Reads a mapped file that has been cut, so that a page is missing.
void read_cut_map(const fs::path& path) {
  std::ofstream(path) << std::string(10000, 'x');
  const MappedFile file(path);
  fs::resize_file(path, 0);
  const volatile std::byte* const bytes = file.bytes().data();
  [[maybe_unused]] const std::byte missing = bytes[5000];
}

TEST_F(FileTest, AMappedFileThatIsCutShortEndsTheProgramInWords) {
  EXPECT_EXIT(read_cut_map(folder_ / "cut"), ::testing::ExitedWithCode(76),
              "octet: .*/cut: cannot be read: it has become shorter since it was opened, or its disk fails");
}

TEST_F(FileTest, OtherBusErrorsStayWhatTheyAre) {
  write_file_atomically(folder_ / "file", "text");
  const auto raise_it = [&] {
    const MappedFile file(folder_ / "file");
    ::raise(SIGBUS);
  };
  const auto read_unwatched = [&] {
    const MappedFile watched(folder_ / "file");
    void* const map = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, ::open((folder_ / "file").c_str(), O_RDONLY), 0);
    fs::resize_file(folder_ / "file", 0);
    [[maybe_unused]] const char missing = *static_cast<const volatile char*>(map);
  };
  // The signal ends the process. Under AddressSanitizer (exit code 1) or ThreadSanitizer (66) their handlers end it.
  const auto ends_otherwise = [](int status) {
    if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGBUS;
    return WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 66;
  };
  EXPECT_EXIT(raise_it(), ends_otherwise, "");
  EXPECT_EXIT(read_unwatched(), ends_otherwise, "");
}

}  // namespace
}  // namespace octet
