#include "octet/data/byte_source.h"

#include "data/files.h"
#include "data/packed.h"

namespace octet::data {
namespace {

// Returns all bytes of the file, reading at most `size` at a time.
std::string read_all(const std::filesystem::path& path, std::size_t size, std::int64_t* consumed = nullptr) {
  const auto source = open_source(path);
  std::string all, some(size, '\0');
  for (;;) {
    const std::size_t got = source->read(some.data(), size);
    all.append(some, 0, got);
    if (got < size) break;
  }
  if (consumed) *consumed = source->consumed();
  return all;
}

std::string text_of_lines(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += "line " + std::to_string(i * 7919 % 100003) + "\n";
  return text;
}

TEST(ByteSource, MembersAndFramesFollowEachOther) {
  const TemporaryFolder folder;
  const std::string a = text_of_lines(60000), b = text_of_lines(10);
  for (const std::string& name : {std::string("x.GZ"), std::string("x.zst")}) {
    const auto pack = name == "x.zst" ? zstandard : gzipped;
    const std::string packed = pack(a) + pack("") + pack(b);
    const auto file = folder.write(name, packed);
    for (const std::size_t size : std::vector<std::size_t>{997, 1 << 20, 1 << 24}) {
      std::int64_t consumed = 0;
      EXPECT_TRUE(read_all(file, size, &consumed) == a + b) << name << " by " << size;
      EXPECT_EQ(consumed, static_cast<std::int64_t>(packed.size()));
    }
  }
}

TEST(ByteSource, ReadsWhatThePackersWrite) {
  const TemporaryFolder folder;
  // The outputs of printf 'hello\n' | gzip -n and printf 'hello\n' | zstd.
  const std::string gz("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48\xcd\xc9\xc9\xe7\x02\x00\x20\x30\x3a\x36\x06\x00\x00\x00",
                       26);
  const std::string zst("\x28\xb5\x2f\xfd\x04\x58\x31\x00\x00\x68\x65\x6c\x6c\x6f\x0a\x53\x88\xbd\x91", 19);
  EXPECT_EQ(read_all(folder.write("a.gz", gz), 100), "hello\n");
  EXPECT_EQ(read_all(folder.write("a.zst", zst), 100), "hello\n");
  EXPECT_EQ(read_all(folder.write("a.txt", gz), 100), gz);  // the name decides, not the content
}

// `zstd --long=28` and above keep a window of 2^28 bytes and more, which libzstd refuses unless it is told not to.
TEST(ByteSource, WindowsMayBeLong) {
  const TemporaryFolder folder;
  const std::string begin("\x28\xb5\x2f\xfd\x00", 5), end("\x31\x00\x00hello\n", 9);  // frame with one raw block
  const auto window = [](int log) { return static_cast<char>((log - 10) << 3); };
  EXPECT_EQ(read_all(folder.write("a.zst", begin + window(28) + end), 100), "hello\n");
}

TEST(ByteSource, ZerosMayFollowAGzipMember) {
  const TemporaryFolder folder;
  const std::string zeros(300'000, '\0'), a = text_of_lines(10), b = text_of_lines(20);  // longer than a block of the reader
  for (const std::size_t size : std::vector<std::size_t>{7, 1 << 20}) {
    EXPECT_TRUE(read_all(folder.write("a.gz", gzipped(a) + zeros), size) == a);
    EXPECT_TRUE(read_all(folder.write("a.gz", gzipped(a) + zeros + gzipped(b)), size) == a + b);
  }
  const auto file = folder.write("b.gz", zeros);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { read_all(file, 4096); }), "damaged gzip data"));
}

TEST(ByteSource, DamageIsFound) {
  const TemporaryFolder folder;
  const std::string text = text_of_lines(5000);
  for (const std::string& name : {std::string("x.gz"), std::string("x.zst")}) {
    const std::string kind = name == "x.zst" ? "zstd" : "gzip";
    const std::string packed = name == "x.zst" ? zstandard(text) : gzipped(text);
    const auto message = [&](const std::string& bytes) {
      const auto file = folder.write(name, bytes);
      return error_of(ExitCode::data, [&] { read_all(file, 4096); });
    };
    for (const std::size_t length : {std::size_t{0}, std::size_t{5}, packed.size() / 2, packed.size() - 1})
      EXPECT_EQ(message(packed.substr(0, length)), "truncated " + kind + " data") << length;
    EXPECT_EQ(message(packed + packed.substr(0, packed.size() / 2)), "truncated " + kind + " data");
    EXPECT_TRUE(contains(message("this is no packed file"), "damaged " + kind + " data"));
    EXPECT_TRUE(contains(message(packed + "behind it"), "damaged " + kind + " data"));
  }
  std::string wrong = gzipped(text);
  wrong[wrong.size() - 5] = static_cast<char>(wrong[wrong.size() - 5] ^ 1);  // a byte of the checksum
  const auto file = folder.write("y.gz", wrong);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { read_all(file, 4096); }), "damaged gzip data (incorrect data check)"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { read_all(folder / "none", 1); }), "cannot open: "));
}

TEST(ByteSource, NamesAndExtensions) {
  EXPECT_EQ(lower_extension("d/a.JsonL"), ".jsonl");
  EXPECT_EQ(lower_extension("d.x/a"), "");
  EXPECT_EQ(unpacked_name("d/a.txt.GZ"), "d/a.txt");
  EXPECT_EQ(unpacked_name("d/a.txt"), "d/a.txt");
}

}  // namespace
}  // namespace octet::data
