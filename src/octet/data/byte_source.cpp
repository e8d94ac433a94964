#include "octet/data/byte_source.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <vector>

#include "octet/base/system_call.h"

namespace octet::data {
namespace fs = std::filesystem;
namespace {

class File final : public ByteSource {
 public:
  explicit File(const fs::path& path, const std::atomic<bool>* stop = nullptr) : stop_(stop) {
    fd_ = path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) fail_errno(ExitCode::data, "cannot open");
  }
  ~File() override { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::size_t read(char* to, std::size_t size) override {
    std::size_t got = 0;
    while (got < size) {
      wait();
      const ssize_t n = ::read(fd_, to + got, size - got);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_errno(ExitCode::data, "cannot read");
      if (n == 0) break;
      got += static_cast<std::size_t>(n);
    }
    consumed_ += static_cast<std::int64_t>(got);
    return got;
  }
  std::int64_t consumed() const override { return consumed_; }

 private:
  // Waits until there is something to read or the input ends. It polls `stop_` because a signal may be handled on another thread,
  // which would not interrupt a blocking read on this one.
  void wait() const {
    if (stop_ == nullptr) return;
    constexpr int kLookAgainMs = 50;
    pollfd waited{.fd = fd_, .events = POLLIN, .revents = 0};
    do {
      demand(!stop_->load(), ExitCode::interrupted, "interrupted");
    } while (::poll(&waited, 1, kLookAgainMs) <= 0);
  }

  int fd_ = -1;
  const std::atomic<bool>* stop_;
  std::int64_t consumed_ = 0;
};

// The common part of gzip and zstd: reads compressed bytes in blocks and demands that the file does not end inside a member.
class Unpacker : public ByteSource {
 public:
  explicit Unpacker(const fs::path& path) : file_(path), block_(std::size_t{1} << 18) {}

  std::size_t read(char* to, std::size_t size) override {
    std::size_t got = 0;
    while (got < size) {
      if (next_ == end_) {
        end_ = file_.read(block_.data(), block_.size());
        next_ = 0;
        if (end_ == 0) {
          demand(between_members_, ExitCode::data, "truncated ", kind(), " data");
          break;
        }
      }
      const Step step = unpack({block_.data() + next_, end_ - next_, to + got, size - got});
      next_ += step.used;
      got += step.made;
      between_members_ = step.member_ended;
    }
    return got;
  }
  std::int64_t consumed() const override { return file_.consumed(); }

 protected:
  struct Room {
    const char* from;
    std::size_t available;
    char* to;
    std::size_t wanted;
  };
  struct Step {
    std::size_t used, made;
    bool member_ended;
  };
  virtual Step unpack(const Room& room) = 0;
  virtual const char* kind() const = 0;

 private:
  File file_;
  std::vector<char> block_;
  std::size_t next_ = 0, end_ = 0;
  bool between_members_ = false;  // an empty file is truncated
};

class Gzip final : public Unpacker {
 public:
  explicit Gzip(const fs::path& path) : Unpacker(path) {
    constexpr int kGzipAlone = 16;
    require(inflateInit2(&stream_, MAX_WBITS + kGzipAlone) == Z_OK, "zlib: no memory");
  }
  ~Gzip() override { inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

 private:
  Step unpack(const Room& room) override {
    if (after_member_) {  // gzip(1) accepts zeros there, with which tapes and disks fill their last block
      const std::size_t zeros = std::min(std::string_view(room.from, room.available).find_first_not_of('\0'), room.available);
      if (zeros > 0) return {zeros, 0, true};
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(room.from));
    stream_.avail_in = static_cast<uInt>(room.available);
    stream_.next_out = reinterpret_cast<Bytef*>(room.to);
    const auto wanted = static_cast<uInt>(std::min<std::size_t>(room.wanted, std::size_t{1} << 30));
    stream_.avail_out = wanted;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    demand(result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR, ExitCode::data, "damaged gzip data",
           stream_.msg ? concat(" (", stream_.msg, ")") : "");
    after_member_ = result == Z_STREAM_END;
    if (after_member_) inflateReset(&stream_);
    return {room.available - stream_.avail_in, wanted - stream_.avail_out, after_member_};
  }
  const char* kind() const override { return "gzip"; }

  z_stream stream_{};
  bool after_member_ = false;
};

class Zstd final : public Unpacker {
 public:
  explicit Zstd(const fs::path& path) : Unpacker(path), stream_(ZSTD_createDStream()) {
    require(stream_ != nullptr, "zstd: no memory");
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  }
  ~Zstd() override { ZSTD_freeDStream(stream_); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

 private:
  Step unpack(const Room& room) override {
    ZSTD_inBuffer in{room.from, room.available, 0};
    ZSTD_outBuffer out{room.to, room.wanted, 0};
    const std::size_t result = ZSTD_decompressStream(stream_, &out, &in);
    demand(ZSTD_getErrorCode(result) != ZSTD_error_memory_allocation, ExitCode::internal,
           "no memory for the window of this zstd data (pack it without --long)");
    demand(ZSTD_isError(result) == 0, ExitCode::data, "damaged zstd data (", ZSTD_getErrorName(result), ")");
    return {in.pos, out.pos, result == 0};
  }
  const char* kind() const override { return "zstd"; }

  ZSTD_DStream* stream_;
};

}  // namespace

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return extension;
}

fs::path unpacked_name(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".gz" || extension == ".zst" ? path.parent_path() / path.stem() : path;
}

std::unique_ptr<ByteSource> open_source(const fs::path& path, const std::atomic<bool>* stop) {
  const std::string extension = lower_extension(path);
  if (extension == ".gz") return std::make_unique<Gzip>(path);
  if (extension == ".zst") return std::make_unique<Zstd>(path);
  return std::make_unique<File>(path, path == "-" ? stop : nullptr);
}

}  // namespace octet::data
