// The S3 plugin, built on Arrow's filesystem library, which holds Amazon's SDK.
#include <arrow/buffer.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>
#include <arrow/util/io_util.h>
#include <arrow/util/key_value_metadata.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "octet/storage/plugin.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kConnectS = 5;               // for a connection
constexpr double kSilenceS = 10;              // in which a byte must come
constexpr std::int64_t kPartBytes = 8 << 20;  // read and handed to Arrow at a time, which makes parts of them

// What the requests of a call have come to.
struct Requests {
  const char* path = "";          // of the call
  Clock::time_point failed = {};  // when the present request failed for the first time
  bool may_pass = false;          // the last failure was one that may pass
  bool warned = false;
};
// Arrow makes the requests of a call on the thread of its caller, but those of list() on threads of its own, one after another.
// So only one list() runs at a time.
thread_local Requests* requests_of_thread = nullptr;
Requests requests_of_list;
std::mutex list_mutex;

Requests& requests() { return requests_of_thread != nullptr ? *requests_of_thread : requests_of_list; }

// Tries again for retry_s after the first failure of a request: after 50 ms at first, each time twice as long, at most 5 s.
class Retries : public arrow::fs::S3RetryStrategy {
 public:
  Retries(double retry_s, void (*warn)(const char*)) : retry_s_(retry_s), warn_(warn) {}

  bool ShouldRetry(const AWSErrorDetail& error, std::int64_t attempted) override {
    if (attempted == 0) requests().failed = Clock::now();
    requests().may_pass = error.should_retry;
    if (!error.should_retry || left_s() <= 0) return false;
    if (!std::exchange(requests().warned, true)) {
      char text[1024];
      std::snprintf(text, sizeof text, "s3://%s: no answer: %s%s%s; trying again for %g s", requests().path,
                    error.exception_name.c_str(), error.exception_name.empty() ? "" : ": ", error.message.c_str(), retry_s_);
      warn_(text);
    }
    return true;
  }

  std::int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail&, std::int64_t attempted) override {
    const double wanted_s = std::min(5.0, 0.05 * static_cast<double>(std::int64_t{1} << std::min<std::int64_t>(attempted, 10)));
    return static_cast<std::int64_t>(1000 * std::max(0.001, std::min(wanted_s, left_s())));
  }

 private:
  double left_s() const { return retry_s_ - std::chrono::duration<double>(Clock::now() - requests().failed).count(); }
  double retry_s_;
  void (*warn_)(const char*);
};

arrow::Status initialize() {
  static const arrow::Status status = [] {
    arrow::fs::S3GlobalOptions options = arrow::fs::S3GlobalOptions::Defaults();
    options.log_level = arrow::fs::S3LogLevel::Off;  // it would log requests with their headers
    arrow::Status result = arrow::fs::InitializeS3(options);
    return result;
  }();
  return status;
}

void copy_text(const std::string& text, char* out, std::size_t size) {
  if (size > 0) std::snprintf(out, size, "%s", text.c_str());
}

// Runs a call, whose requests are counted in `counted`, and says how it ended.
template <class Call>
std::int32_t run(const Requests& counted, char* error, std::size_t error_size, Call&& call) {
  arrow::Status status;
  try {
    status = call();
  } catch (const std::exception& failure) {
    status = arrow::Status::UnknownError(failure.what());
  }
  if (status.ok()) return kOctetStoreDone;
  copy_text(status.message(), error, error_size);
  if (arrow::internal::ErrnoFromStatus(status) == ENOENT) return kOctetStoreNotThere;
  if (status.IsCancelled()) return kOctetStoreSource;
  return counted.may_pass ? kOctetStoreNoAnswer : kOctetStoreRefused;
}

// Runs the call on the thread of the caller, and returns its outcome in the same way.
template <class Call>
std::int32_t run_here(const char* path, char* error, std::size_t error_size, Call&& call) {
  Requests counted{.path = path};
  requests_of_thread = &counted;
  const std::int32_t outcome = run(counted, error, error_size, call);
  requests_of_thread = nullptr;
  return outcome;
}

}  // namespace

struct OctetStore {
  std::shared_ptr<arrow::fs::S3FileSystem> files;
};

namespace {

arrow::Result<std::unique_ptr<OctetStore>> connect(const OctetStoreOptions& given) {
  ARROW_RETURN_NOT_OK(initialize());
  arrow::fs::S3Options options = arrow::fs::S3Options::Defaults();
  const std::string endpoint = given.endpoint;
  if (const std::size_t colon = endpoint.find("://"); colon != std::string::npos) {
    options.scheme = endpoint.substr(0, colon);
    options.endpoint_override = endpoint.substr(colon + 3);
    while (options.endpoint_override.ends_with('/')) options.endpoint_override.pop_back();
  } else {
    options.endpoint_override = endpoint;
  }
  options.region = given.region;
  options.connect_timeout = kConnectS;
  options.request_timeout = kSilenceS;
  options.background_writes = false;  // in the background Arrow keeps any number of parts in memory
  options.retry_strategy = std::make_shared<Retries>(given.retry_s, given.warn);
  ARROW_ASSIGN_OR_RAISE(auto files, arrow::fs::S3FileSystem::Make(options));
  return std::make_unique<OctetStore>(OctetStore{std::move(files)});
}

OctetStore* open_store(const OctetStoreOptions* options, char* error, std::size_t error_size) {
  std::unique_ptr<OctetStore> store;
  run_here("", error, error_size, [&] { return connect(*options).Value(&store); });
  return store.release();
}

std::int32_t find(OctetStore* store, const char* path, std::int64_t* bytes, char* tag, std::size_t tag_size, char* error,
                  std::size_t error_size) {
  return run_here(path, error, error_size, [&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(const auto file, store->files->OpenInputFile(std::string(path)));
    ARROW_ASSIGN_OR_RAISE(*bytes, file->GetSize());
    ARROW_ASSIGN_OR_RAISE(const auto metadata, file->ReadMetadata());
    copy_text(metadata ? metadata->Get("ETag").ValueOr("") : "", tag, tag_size);
    return arrow::Status::OK();
  });
}

std::int32_t list(OctetStore* store, const char* path, OctetStoreFound found, void* context, char* error,
                  std::size_t error_size) {
  const std::lock_guard lock(list_mutex);
  requests_of_list = {.path = path};
  return run(requests_of_list, error, error_size, [&]() -> arrow::Status {
    arrow::fs::FileSelector all;
    all.base_dir = path;
    all.recursive = true;
    all.allow_not_found = false;  // otherwise a bucket that does not exist would be empty
    ARROW_ASSIGN_OR_RAISE(const auto infos, store->files->GetFileInfo(all));
    for (const arrow::fs::FileInfo& info : infos) {
      if (!info.IsFile()) continue;
      const std::string key = info.path().substr(info.path().find('/') + 1);
      found(context, key.c_str(), info.size(), info.mtime().time_since_epoch().count());
    }
    return arrow::Status::OK();
  });
}

std::int32_t get(OctetStore* store, const char* path, std::int64_t size, std::int64_t offset, void* out, std::int64_t bytes,
                 char* error, std::size_t error_size) {
  return run_here(path, error, error_size, [&]() -> arrow::Status {
    arrow::fs::FileInfo info(path, arrow::fs::FileType::File);  // with the size, Arrow does not ask for it again
    info.set_size(size);
    ARROW_ASSIGN_OR_RAISE(const auto file, store->files->OpenInputFile(info));
    for (std::int64_t done = 0; done < bytes;) {
      ARROW_ASSIGN_OR_RAISE(const std::int64_t now,
                            file->ReadAt(offset + done, bytes - done, static_cast<std::uint8_t*>(out) + done));
      if (now == 0) return arrow::Status::IOError("the object ends after ", offset + done, " bytes");
      done += now;
    }
    return arrow::Status::OK();
  });
}

std::int32_t put(OctetStore* store, const char* path, OctetStoreRead read, void* context, char* error, std::size_t error_size) {
  return run_here(path, error, error_size, [&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(const auto stream, store->files->OpenOutputStream(path));
    std::vector<std::uint8_t> part(static_cast<std::size_t>(kPartBytes));
    const auto write = [&]() -> arrow::Status {
      for (;;) {
        const std::int64_t bytes = read(context, part.data(), kPartBytes);
        if (bytes < 0) return arrow::Status::Cancelled("the bytes to send cannot be read");
        if (bytes == 0) return stream->Close();
        ARROW_RETURN_NOT_OK(stream->Write(part.data(), bytes));
      }
    };
    const arrow::Status status = write();
    if (!status.ok()) {
      const bool may_pass = requests().may_pass;
      (void)stream->Abort();  // so that the parts do not stay
      requests().may_pass = may_pass;
    }
    return status;
  });
}

// Arrow must be finalized before the static objects that the calls of this store have made are destroyed, so the handler is
// registered after them.
void close_store(OctetStore* store) {
  delete store;
  std::atexit([] { (void)arrow::fs::EnsureS3Finalized(); });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const OctetStorePlugin* octet_store_plugin() {
  static const OctetStorePlugin plugin = {.version = kOctetStoreVersion,
                                          .open = open_store,
                                          .find = find,
                                          .list = list,
                                          .get = get,
                                          .put = put,
                                          .close = close_store};
  return &plugin;
}
