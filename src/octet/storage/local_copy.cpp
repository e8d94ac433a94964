#include "octet/storage/local_copy.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/start_thread.h"
#include "octet/base/system_call.h"

namespace octet::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUnfinished = ".part";
constexpr std::uint64_t kRequestBytes = 16 << 20, kRequests = 4;  // at a time
constexpr std::size_t kThreads = 8;                               // for small objects
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

// Calls body(i) for i in [0, count) in a few threads, because small requests mostly wait. Throws what a call has thrown when all
// threads have ended.
void in_turns(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::future<void>> threads;
  for (std::size_t thread = 0; thread < std::min(kThreads, count); ++thread) {
    threads.push_back(start_task("requests for objects", [&] {
      try {
        for (std::size_t i; (i = next++) < count;) body(i);
      } catch (...) {
        next = count;  // the others need not begin any more
        throw;
      }
    }));
  }
  for (std::future<void>& thread : threads) thread.wait();  // all use what is on this stack
  for (std::future<void>& thread : threads) thread.get();
}

std::vector<NamedObject> find_all(ObjectStore& store, const CopySet& set) {
  std::vector<NamedObject> objects(set.names.size());
  in_turns(objects.size(), [&](std::size_t i) {
    const ObjectUrl url = set.url.below(set.names[i]);
    const std::optional<FoundObject> found = store.find(url);
    demand(found.has_value(), ExitCode::data, url.text(), ": no such object");
    objects[i] = {set.names[i], *found};
  });
  return objects;
}

// The folder, and those in it that the objects need.
std::set<fs::path> folders_of(const fs::path& folder, const CopySet& set) {
  std::set<fs::path> folders = {folder};
  for (const std::string& name : set.names) {
    for (fs::path above = (folder / name).parent_path(); above != folder; above = above.parent_path()) folders.insert(above);
  }
  for (const std::string& name : set.names) {
    demand(!folders.contains(folder / name), ExitCode::data, set.url.below(name).text(),
           ": is an object and a folder, which a disk cannot hold together");
  }
  return folders;
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
  const fs::path part = fs::path(file).concat(kUnfinished);
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
  const std::set<fs::path> folders = folders_of(unfinished, set);
  if (!path_exists(copy)) {
    make_folders(parent);
    const auto tell = [&] {
      if (progress) progress(bytes_in(unfinished), total);
    };
    if (const std::optional<FileLock> lock = lock_copy(parent / (name + ".lock"), copy, tell); lock && !path_exists(copy)) {
      log_info(concat("copying ", ObjectUrl{set.url.bucket, key.string()}.text(), " to ", copy.string()));
      for (const fs::path& needed : folders) make_folders(needed);
      std::mutex mutex;
      const auto copy_object = [&](const NamedObject& object) {
        const fs::path file = unfinished / object.name;
        std::int64_t before = 0;
        const auto tell_done = [&](std::int64_t bytes) {
          const std::lock_guard lock(mutex);
          done += bytes - std::exchange(before, bytes);
          if (progress) progress(done, total);
        };
        const bool there = path_exists(file) && size_of(file) == object.found.bytes;
        if (!there) copy_to_file(store, set.url.below(object.name), object.found, file, tell_done);
        tell_done(static_cast<std::int64_t>(object.found.bytes));
      };
      // Large objects follow one another, because each is copied with several requests at a time. So do those whose names end as
      // that of an unfinished copy does: `x.part` must not be written while `x` is.
      const auto is_small = [](const NamedObject& object) {
        return object.found.bytes <= kRequestBytes && !object.name.ends_with(kUnfinished);
      };
      std::vector<NamedObject> in_order = objects;
      const auto large = std::stable_partition(in_order.begin(), in_order.end(), is_small);
      in_turns(static_cast<std::size_t>(large - in_order.begin()), [&](std::size_t i) { copy_object(in_order[i]); });
      std::for_each(large, in_order.end(), copy_object);
      const std::vector<NamedObject> now = find_all(store, set);
      for (std::size_t i = 0; i < objects.size(); ++i) {
        demand(now[i].found.bytes == objects[i].found.bytes && now[i].found.tag == objects[i].found.tag, ExitCode::data,
               set.url.below(objects[i].name).text(), ": was changed while it was copied; run the command again");
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
