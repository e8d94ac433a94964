#include "octet/data/tokenizer/utf8.h"

#include <array>
#include <random>

#include "data/files.h"
#include "octet/base/file.h"
#include "support/paths.h"

namespace octet::data {
namespace {

std::string replaced(std::string_view text) {
  std::string result;
  append_replacing_invalid(text, result);
  return result;
}

constexpr const char* kMark = "\xEF\xBF\xBD";

std::string marks(int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += kMark;
  return result;
}

TEST(Utf8, TheExampleOfTheStandard) {  // table 3-11 of The Unicode Standard 15
  EXPECT_EQ(replaced("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + marks(3) + "b" + marks(1) + "c" + marks(2) + "d");
}

TEST(Utf8, WrongPartsAreReplacedOneByOne) {
  EXPECT_EQ(replaced("\xC0\x80"), marks(2));             // overlong
  EXPECT_EQ(replaced("\xED\xA0\x80"), marks(3));         // a surrogate
  EXPECT_EQ(replaced("\xF4\x90\x80\x80"), marks(4));     // beyond U+10FFFF
  EXPECT_EQ(replaced("\xE0\x80\xAF"), marks(3));         // overlong
  EXPECT_EQ(replaced("x\xF0\x9F\x98"), "x" + marks(1));  // the end is missing
  EXPECT_EQ(replaced("\xFF"
                     "abcdefghij\xFE"),
            marks(1) + "abcdefghij" + marks(1));
}

TEST(Utf8, RandomBytesBecomeWhatPythonMakesOfThem) {
  constexpr std::array<unsigned char, 28> kEdges = {'\0', 'a',  ' ',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBB,
                                                    0xBD, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED,
                                                    0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  std::mt19937 random(11);
  std::string bytes;
  for (int i = 0; i < 2'000'000; ++i) {
    const auto any = random();
    bytes += static_cast<char>((any & 256) != 0 ? any & 255 : kEdges[any / 512 % kEdges.size()]);
  }
  const TemporaryFolder folder;
  folder.write("bytes", bytes);
  folder.write("replace.py", "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read().decode(errors='replace').encode())\n");
  const std::string at = "cd '" + folder.path().string() + "' && '" + testing::python_path() + "' replace.py < bytes > replaced";
  ASSERT_EQ(std::system(at.c_str()), 0);
  EXPECT_TRUE(replaced(bytes) == read_file(folder / "replaced"));
}

TEST(Utf8, EveryCharacterIsValidAndHasItsLength) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    if (c < 0x80) {
      text = {static_cast<char>(c)};
    } else if (c < 0x800) {
      text = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      text = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    } else {
      text = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
              static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const Utf8Char found = utf8_char(text, 0);
    ASSERT_TRUE(found.valid && found.bytes == text.size()) << std::hex << c;
    ASSERT_EQ(valid_utf8("12345678" + text + "x"), 9 + text.size()) << std::hex << c;
    for (std::size_t cut = 1; cut < text.size(); ++cut) ASSERT_EQ(valid_utf8(text.substr(0, cut)), 0u) << std::hex << c;
  }
}

}  // namespace
}  // namespace octet::data
