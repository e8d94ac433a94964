// Objects in S3 or in a service that speaks its protocol, through a plugin that is loaded when the first store is made
// (plugin.h).
//
// The usual environment variables of Amazon's programs say where and as whom: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; AWS_REGION
// or AWS_DEFAULT_REGION; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile of AWS_PROFILE, or the
// machine's role. No message holds credentials.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/require.h"
#include "octet/base/retry.h"

struct OctetStore;

namespace octet::storage {

// s3://BUCKET/KEY
struct ObjectUrl {
  std::string bucket, key;
  std::string text() const;
  // The object `name` in the folder that this one stands for.
  ObjectUrl below(std::string_view name) const;
};

// Whether text begins with s3://.
bool is_object_url(std::string_view text);
// Throws Error{config} for text that is no s3://BUCKET or s3://BUCKET/KEY, or whose key could not be the path of a file. A "/" at
// the end is left out.
ObjectUrl parse_object_url(std::string_view text);

// The service refused, or gave no answer. Error{data} "URL: REASON". An object that is not there is no error.
class StoreError : public Error {
 public:
  enum class Fault : std::uint8_t {
    refused,    // credentials, rights, no such bucket: it will not pass by itself
    no_answer,  // the network or the service failed, for as long as the store tries again
  };
  StoreError(Fault fault, const std::string& message) : Error(ExitCode::data, message), fault_(fault) {}
  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

struct FoundObject {
  std::uint64_t bytes = 0;
  std::string tag;  // its ETag, which changes with its content
};

struct ListedObject {
  std::string name;  // its key below the folder that was listed
  std::uint64_t bytes = 0;
  std::int64_t written_ns = 0;  // since 1970, by the clock of the service
};

// Any number of threads may use it. All functions throw StoreError.
class ObjectStore {
 public:
  // Failures that may pass are tried again for `retry_s` seconds, and the first one of a call prints a warning. A service that
  // says nothing for 10 s has failed. Throws Error{config} if there is no plugin. Sends nothing.
  explicit ObjectStore(double retry_s = kRetryS);

  // Returns nothing if the service says that there is no such object.
  std::optional<FoundObject> find(const ObjectUrl& url);
  // All objects below the folder, in subfolders too, sorted by name. The list is empty if the service
  // says that there are none. Throws if there is no such bucket.
  std::vector<ListedObject> list(const ObjectUrl& folder);
  // Fills `out` with the bytes of an object of `size` bytes from `offset` on. Also throws if there is no such object.
  void get(const ObjectUrl& url, std::uint64_t size, std::uint64_t offset, std::span<std::byte> out);
  // All bytes of an object. Also throws if there is no such object.
  std::string get_all(const ObjectUrl& url);

  // Writes an object, unless there is one of this name: then it returns false. Others see the object when all of it is there. Two
  // callers who put the same object at the same moment may both succeed; the last one counts. `sent` is told how many bytes are
  // under way. The file may throw the errors of FileReader.
  bool put_file(const ObjectUrl& url, const std::filesystem::path& path, const std::function<void(std::int64_t sent)>& sent = {});
  bool put_text(const ObjectUrl& url, std::string_view text);

 private:
  // Gives the next bytes of an object, up to `bytes`: returns how many, 0 at the end.
  using Source = std::function<std::int64_t(void* out, std::int64_t bytes)>;
  bool put(const ObjectUrl& url, const Source& source);
  [[noreturn]] void fail_with(std::int32_t outcome, const std::string& url, std::string_view reason) const;

  std::string endpoint_;
  std::unique_ptr<OctetStore, void (*)(OctetStore*)> store_;
};

}  // namespace octet::storage
