// Objects in S3 or in a service that speaks its protocol, through a plugin that is loaded when the first store is made
// (plugin.h).
//
// The usual environment variables of Amazon's programs give the address and the credentials: AWS_ENDPOINT_URL_S3 or
// AWS_ENDPOINT_URL; AWS_REGION or AWS_DEFAULT_REGION; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the
// profile of AWS_PROFILE, or the machine's role. No message contains credentials.
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
  // Returns the object `name` in the folder that this URL denotes.
  ObjectUrl below(std::string_view name) const;
};

// Whether text begins with s3://.
bool is_object_url(std::string_view text);
// Parses s3://BUCKET or s3://BUCKET/KEY. Removes a "/" at the end. Throws Error{config} for other text, or if the key could not
// be the path of a file.
ObjectUrl parse_object_url(std::string_view text);

// The service refused, or gave no answer. Error{data} "URL: REASON". A missing object is not an error.
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

// Any number of threads may use a store. All functions throw StoreError.
class ObjectStore {
 public:
  // Failures that may pass are retried for `retry_s` seconds, and the first failure of a call prints a warning. A service that
  // sends nothing for 10 s has failed. Throws Error{config} if there is no plugin. Sends nothing.
  explicit ObjectStore(double retry_s = kRetryS);

  // Returns nothing if the service says that there is no such object.
  std::optional<FoundObject> find(const ObjectUrl& url);
  // Returns all objects below the folder, also in subfolders, sorted by name. The list is empty if the service says that there
  // are none. Throws if there is no such bucket.
  std::vector<ListedObject> list(const ObjectUrl& folder);
  // Fills `out` with the bytes of an object of `size` bytes from `offset` on. Also throws if there is no such object.
  void get(const ObjectUrl& url, std::uint64_t size, std::uint64_t offset, std::span<std::byte> out);
  // Returns all bytes of an object. Also throws if there is no such object.
  std::string get_all(const ObjectUrl& url);

  // Writes an object. If an object with this name exists, returns false instead. Others see the object only when it is
  // complete. If two callers put the same object at the same moment, both may succeed, and the last one counts. `sent` receives
  // the number of bytes that are under way. The file may throw the errors of FileReader.
  bool put_file(const ObjectUrl& url, const std::filesystem::path& path, const std::function<void(std::int64_t sent)>& sent = {});
  bool put_text(const ObjectUrl& url, std::string_view text);

 private:
  // Writes the next bytes of an object, up to `bytes`, to `out`, and returns their number, which is 0 at the end.
  using Source = std::function<std::int64_t(void* out, std::int64_t bytes)>;
  bool put(const ObjectUrl& url, const Source& source);
  [[noreturn]] void fail_with(std::int32_t outcome, const std::string& url, std::string_view reason) const;

  std::string endpoint_;
  std::unique_ptr<OctetStore, void (*)(OctetStore*)> store_;
};

}  // namespace octet::storage
