#include "octet/storage/object_store.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/plugin.h"
#include "octet/base/visible.h"
#include "octet/storage/plugin.h"

namespace octet::storage {
namespace {

constexpr std::string_view kScheme = "s3://";

using Message = std::array<char, 1024>;

const OctetStorePlugin& plugin() {
  static const OctetStorePlugin* const plugin =
      open_plugin<OctetStorePlugin>({.name = "S3",
                                     .file = "octet_s3.so",
                                     .variable = "OCTET_S3",
                                     .symbol = "octet_store_plugin",
                                     .purpose = "s3:// is read and written by a plugin",
                                     .remedy = "copy the files to a file system that is mounted here",
                                     .page = "docs/guides/object-storage.md"},
                                    kOctetStoreVersion);
  return *plugin;
}

// The value of the first variable that is set, or "".
std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return "";
}

std::string path_of(const ObjectUrl& url) { return url.key.empty() ? url.bucket : url.bucket + "/" + url.key; }

// What in a reason tells that the service did not accept who asked.
bool is_about_credentials(std::string_view reason) {
  constexpr std::string_view kSigns[] = {"ACCESS", "SIGNATURE", "CREDENTIAL", "TOKEN", "AccessKey", "Signature", "Token"};
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](std::string_view s) { return reason.find(s) != std::string_view::npos; });
}

}  // namespace

std::string ObjectUrl::text() const { return std::string(kScheme) + path_of(*this); }

ObjectUrl ObjectUrl::below(std::string_view name) const {
  return {.bucket = bucket, .key = key.empty() ? std::string(name) : key + "/" + std::string(name)};
}

bool is_object_url(std::string_view text) { return text.starts_with(kScheme); }

ObjectUrl parse_object_url(std::string_view text) {
  demand(text.find('@') == std::string_view::npos, ExitCode::config,
         "an s3:// URL with `@`: credentials do not belong in a URL, which is written to logs and run folders; see "
         "docs/guides/object-storage.md");
  const auto check = [&](bool holds, const auto&... why) { demand(holds, ExitCode::config, in_quotes(text), ": ", why...); };
  check(is_object_url(text), "must be s3://BUCKET/PREFIX");
  std::string_view rest = text.substr(kScheme.size());
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  ObjectUrl url = {.bucket = std::string(rest.substr(0, slash)),
                   .key = std::string(rest.substr(std::min(slash + 1, rest.size())))};
  const auto of_bucket = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.'; };
  check(url.bucket.size() >= 3 && std::all_of(url.bucket.begin(), url.bucket.end(), of_bucket) && url.bucket.front() != '.',
        "the name of a bucket has at least three of the characters a-z, 0-9, `-` and `.`");
  check(url.key.find_first_of("?#\\") == std::string::npos && printable(url.key) == url.key,
        "a key with `?`, `#`, `\\` or control characters is not supported");
  for (std::size_t begin = 0; begin < url.key.size();) {
    const std::size_t end = std::min(url.key.find('/', begin), url.key.size());
    const std::string_view part = std::string_view(url.key).substr(begin, end - begin);
    check(!part.empty() && part != "." && part != "..", "an empty part, `.` or `..` in a key is not supported");
    begin = end + 1;
  }
  return url;
}

ObjectStore::ObjectStore(double retry_s)
    : endpoint_(variable({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"})), store_(nullptr, plugin().close) {
  std::string region = variable({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (region.empty() && !endpoint_.empty()) region = "us-east-1";  // which other services ignore; the SDK would ask the machine
  const OctetStoreOptions options = {
      .retry_s = retry_s, .endpoint = endpoint_.c_str(), .region = region.c_str(), .warn = [](const char* message) {
        log_warning(printable(message));
      }};
  Message message{};
  store_.reset(plugin().open(&options, message.data(), message.size()));
  demand(store_ != nullptr, ExitCode::config, "s3:// cannot be used: ", printable(message.data()));
}

void ObjectStore::fail_with(std::int32_t outcome, const std::string& url, std::string_view reason) const {
  const bool none = outcome == kOctetStoreNoAnswer;
  const bool hides = endpoint_.empty() || endpoint_.find('@') != std::string::npos;
  const std::string where = hides ? "" : concat(" (AWS_ENDPOINT_URL=", printable(endpoint_), ")");
  throw StoreError(
      none ? StoreError::Fault::no_answer : StoreError::Fault::refused,
      concat(url, none ? ": no answer" : ": refused", where, ": ", printable(reason),
             !none && is_about_credentials(reason)
                 ? "; credentials are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of the profile AWS_PROFILE, or of "
                   "the machine's role"
                 : ""));
}

std::optional<FoundObject> ObjectStore::find(const ObjectUrl& url) {
  Message message{};
  std::array<char, 256> tag{};
  std::int64_t bytes = 0;
  const std::int32_t outcome =
      plugin().find(store_.get(), path_of(url).c_str(), &bytes, tag.data(), tag.size(), message.data(), message.size());
  if (outcome == kOctetStoreNotThere) return std::nullopt;
  if (outcome != kOctetStoreDone) fail_with(outcome, url.text(), message.data());
  return FoundObject{.bytes = static_cast<std::uint64_t>(bytes), .tag = tag.data()};
}

std::vector<ListedObject> ObjectStore::list(const ObjectUrl& folder) {
  struct Context {
    std::vector<ListedObject> objects;
    std::size_t cut;
  } context{.objects = {}, .cut = folder.key.empty() ? 0 : folder.key.size() + 1};
  Message message{};
  const auto found = [](void* to, const char* key, std::int64_t bytes, std::int64_t written_ns) {
    auto& [objects, cut] = *static_cast<Context*>(to);
    if (std::strlen(key) <= cut) return;
    objects.push_back({.name = key + cut, .bytes = static_cast<std::uint64_t>(bytes), .written_ns = written_ns});
  };
  const std::int32_t outcome =
      plugin().list(store_.get(), path_of(folder).c_str(), found, &context, message.data(), message.size());
  if (outcome == kOctetStoreNotThere) return {};
  if (outcome != kOctetStoreDone) fail_with(outcome, folder.text(), message.data());
  std::sort(context.objects.begin(), context.objects.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return std::move(context.objects);
}

void ObjectStore::get(const ObjectUrl& url, std::uint64_t size, std::uint64_t offset, std::span<std::byte> out) {
  if (out.empty()) return;
  Message message{};
  const std::int32_t outcome =
      plugin().get(store_.get(), path_of(url).c_str(), static_cast<std::int64_t>(size), static_cast<std::int64_t>(offset),
                   out.data(), static_cast<std::int64_t>(out.size()), message.data(), message.size());
  if (outcome == kOctetStoreNotThere) throw StoreError(StoreError::Fault::refused, url.text() + ": no such object");
  if (outcome != kOctetStoreDone) fail_with(outcome, url.text(), message.data());
}

std::string ObjectStore::get_all(const ObjectUrl& url) {
  const std::optional<FoundObject> found = find(url);
  if (!found) throw StoreError(StoreError::Fault::refused, url.text() + ": no such object");
  std::string text(found->bytes, '\0');
  get(url, found->bytes, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

bool ObjectStore::put_file(const ObjectUrl& url, const std::filesystem::path& path,
                           const std::function<void(std::int64_t)>& sent) {
  const FileReader file(path);
  std::size_t offset = 0;
  return put(url, [&](void* out, std::int64_t bytes) {
    const std::size_t now = std::min(file.size() - offset, static_cast<std::size_t>(bytes));
    file.read_at(offset, {static_cast<std::byte*>(out), now});
    offset += now;
    if (sent) sent(static_cast<std::int64_t>(offset));
    return static_cast<std::int64_t>(now);
  });
}

bool ObjectStore::put_text(const ObjectUrl& url, std::string_view text) {
  return put(url, [&](void* out, std::int64_t bytes) {
    const std::size_t now = std::min(text.size(), static_cast<std::size_t>(bytes));
    std::memcpy(out, text.data(), now);
    text.remove_prefix(now);
    return static_cast<std::int64_t>(now);
  });
}

bool ObjectStore::put(const ObjectUrl& url, const Source& source) {
  if (find(url)) return false;
  struct Context {
    const Source& source;
    std::exception_ptr failure;
  } context{.source = source, .failure = nullptr};
  const auto read = [](void* of, void* out, std::int64_t bytes) -> std::int64_t {
    auto& [from, failure] = *static_cast<Context*>(of);
    try {
      return from(out, bytes);
    } catch (...) {  // no exception may cross the plugin
      failure = std::current_exception();
      return -1;
    }
  };
  Message message{};
  const std::int32_t outcome = plugin().put(store_.get(), path_of(url).c_str(), read, &context, message.data(), message.size());
  if (context.failure) std::rethrow_exception(context.failure);
  if (outcome == kOctetStoreNotThere) throw StoreError(StoreError::Fault::refused, url.text() + ": refused: no such bucket");
  if (outcome != kOctetStoreDone) fail_with(outcome, url.text(), message.data());
  return true;
}

}  // namespace octet::storage
