#include "octet/storage/local_copy.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <optional>
#include <set>
#include <system_error>
#include <thread>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/start_thread.h"
#include "octet/base/system_call.h"

namespace octet::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kRequestBytes = 16 << 20, kRequests = 4;  // at a time
constexpr std::uint64_t kBlockBytes = kRequests * kRequestBytes;  // is on the disk before the next block is asked for

std::uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (!error) return size;
  throw SystemError(ExitCode::data, concat(path.string(), ": ", error.message()), error.value());
}

void get_block(ObjectStore& store, const ObjectUrl& url, std::uint64_t size, std::uint64_t offset, std::span<std::byte> out) {
  std::vector<std::future<void>> requests;
  for (std::uint64_t begin = 0; begin < out.size(); begin += kRequestBytes) {
    const auto piece = out.subspan(begin, std::min(kRequestBytes, out.size() - begin));
    requests.push_back(start_task("a request for an object", [&, begin, piece] { store.get(url, size, offset + begin, piece); }));
  }
  for (std::future<void>& request : requests) request.get();
}

// Waits for whoever else is making the copy, and returns nothing if it is complete then.
std::optional<FileLock> lock_copy(const fs::path& lock, const fs::path& copy, const std::function<void()>& while_waiting) {
  for (bool said = false;; said = true) {
    try {
      return FileLock(lock, copy.string());
    } catch (const Error& error) {
      if (error.code() != ExitCode::config) throw;
    }
    if (path_exists(copy)) return std::nullopt;
    if (!said) log_info(concat("waiting for another process that copies ", copy.string()));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    while_waiting();
  }
}

// The bytes of the files in a folder, which another process may be changing.
std::int64_t bytes_in(const fs::path& folder) {
  std::error_code gone;
  std::int64_t bytes = 0;
  for (fs::recursive_directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
    std::error_code unknown;  // of a folder
    const std::uintmax_t size = entry->file_size(unknown);
    if (!unknown) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

struct NamedObject {
  std::string name;
  FoundObject found;
};

std::vector<NamedObject> find_all(ObjectStore& store, const CopySet& set) {
  std::vector<NamedObject> objects;
  for (const std::string& name : set.names) {
    const std::optional<FoundObject> found = store.find(set.url.below(name));
    demand(found.has_value(), ExitCode::data, set.url.below(name).text(), ": no such object");
    objects.push_back({name, *found});
  }
  return objects;
}

void check_copy(const fs::path& folder, const CopySet& set, const std::vector<NamedObject>& objects) {
  for (const auto& [name, found] : objects) {
    const fs::path file = folder / name;
    const bool there = path_exists(file);
    demand(there && size_of(file) == found.bytes, ExitCode::data, file.string(),
           there ? ": not as long as " : ": missing; it is a copy of ", set.url.below(name).text(), ". Remove ", folder.string(),
           ", and it is copied again");
  }
}

}  // namespace

fs::path copies_folder() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "octet";
  demand(home != nullptr && *home != '\0', ExitCode::config, "copies of s3:// objects need a folder: set XDG_CACHE_HOME");
  return fs::path(home) / ".cache" / "octet";
}

void copy_to_file(ObjectStore& store, const ObjectUrl& url, const FoundObject& found, const fs::path& file,
                  const std::function<void(std::int64_t)>& progress) {
  const fs::path part = fs::path(file).concat(".part");
  // A power cut may have taken the bytes of the last block, but not the size of the file.
  const std::uint64_t blocks = path_exists(part) ? std::min(size_of(part), found.bytes) / kBlockBytes : 0;
  std::uint64_t done = blocks > 0 ? (blocks - 1) * kBlockBytes : 0;
  if (done == 0) FileWriter(part).finish();
  if (done > 0 && progress) progress(static_cast<std::int64_t>(done));
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(kBlockBytes, found.bytes)));
  while (done < found.bytes) {
    const auto bytes = std::span(block).first(static_cast<std::size_t>(std::min(kBlockBytes, found.bytes - done)));
    get_block(store, url, found.bytes, done, bytes);
    FileWriter writer(part, static_cast<std::size_t>(done));
    writer.write(bytes);
    writer.finish();
    done += bytes.size();
    if (progress) progress(static_cast<std::int64_t>(done));
  }
  if (std::rename(part.c_str(), file.c_str()) != 0) fail_errno(ExitCode::internal, file, "cannot rename");
}

fs::path local_copy(ObjectStore& store, const CopySet& set, const fs::path& folder, const CopyProgress& progress) {
  const std::vector<NamedObject> objects = find_all(store, set);
  RunningChecksum sum;
  std::int64_t total = 0, done = 0;
  for (const auto& [name, found] : objects) {
    sum.update(concat(name, '\n', found.bytes, '\n', found.tag, '\n'));
    total += static_cast<std::int64_t>(found.bytes);
  }
  const fs::path key = set.folder.empty() ? set.url.key : set.folder;
  const fs::path parent = (folder / "s3" / set.url.bucket / key).parent_path();
  const std::string name = concat(key.filename().string(), "@", sum.hex());
  const fs::path copy = parent / name, unfinished = parent / (name + ".part");
  if (!path_exists(copy)) {
    make_folders(parent);
    const auto tell = [&] {
      if (progress) progress(bytes_in(unfinished), total);
    };
    if (const std::optional<FileLock> lock = lock_copy(parent / (name + ".lock"), copy, tell); lock && !path_exists(copy)) {
      log_info(concat("copying ", ObjectUrl{set.url.bucket, key.string()}.text(), " to ", copy.string()));
      make_folders(unfinished);
      std::set<fs::path> folders = {unfinished};
      for (const auto& [object, found] : objects) {
        const fs::path file = unfinished / object;
        const bool there = path_exists(file) && size_of(file) == found.bytes;
        if (!there) {
          make_folders(file.parent_path());
          copy_to_file(store, set.url.below(object), found, file, [&](std::int64_t bytes) {
            if (progress) progress(done + bytes, total);
          });
        }
        for (fs::path above = file.parent_path(); above != unfinished; above = above.parent_path()) folders.insert(above);
        done += static_cast<std::int64_t>(found.bytes);
      }
      for (const auto& [object, before] : objects) {
        const std::optional<FoundObject> now = store.find(set.url.below(object));
        demand(now && now->bytes == before.bytes && now->tag == before.tag, ExitCode::data, set.url.below(object).text(),
               ": was changed while it was copied; run the command again");
      }
      check_copy(unfinished, set, objects);
      for (const fs::path& written : folders) sync_directory(written);
      if (std::rename(unfinished.c_str(), copy.c_str()) != 0) fail_errno(ExitCode::internal, copy, "cannot rename");
      sync_directory(parent);
    }
  }
  check_copy(copy, set, objects);
  return copy;
}

}  // namespace octet::storage
