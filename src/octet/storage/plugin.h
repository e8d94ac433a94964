// The interface between the program and its S3 plugin. It is in C because the two may be built by different compilers. Only the
// plugin is linked with Arrow.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// A connection to one S3 service. Any number of threads may use it.
struct OctetStore;

// The outcome of a call. "Not there" is an answer of the service; a failure to get an answer is never "not there".
enum OctetStoreOutcome : std::int32_t {
  kOctetStoreDone = 0,
  kOctetStoreNotThere = 1,  // the service says that there is no such object, or none with this prefix
  kOctetStoreRefused = 2,   // it answered and refused: credentials, rights, no such bucket, ...
  kOctetStoreNoAnswer = 3,  // no answer, or a temporary refusal, even after retrying for `retry_s`
  kOctetStoreSource = 4,    // put() only: `read` failed
};

struct OctetStoreOptions {
  double retry_s;                     // how long a request is retried after its first failure, in seconds
  const char* endpoint;               // "http://host:port"; "": Amazon's
  const char* region;                 // "": what the SDK finds
  void (*warn)(const char* message);  // called, by any thread, before a request is retried for the first time
};

// Called by list() for each object: its key without the bucket, its size, and when it was written, in ns since 1970.
typedef void (*OctetStoreFound)(void* context, const char* key, std::int64_t bytes, std::int64_t written_ns);
// Called by put() for the next bytes of the object: returns how many were written to `out`, 0 at the end, or -1 to give up.
typedef std::int64_t (*OctetStoreRead)(void* context, void* out, std::int64_t bytes);

// A `path` is "bucket/key". A function that does not end with kOctetStoreDone writes the reason to `error`: at most `error_size`
// bytes, including the NUL at the end.
struct OctetStorePlugin {
  std::int32_t version;  // kOctetStoreVersion of the header that the plugin was built with
  // Sends nothing. Returns nullptr on failure.
  OctetStore* (*open)(const OctetStoreOptions* options, char* error, std::size_t error_size);
  // The size and the ETag of an object. `tag` has room for `tag_size` bytes, including the NUL.
  std::int32_t (*find)(OctetStore* store, const char* path, std::int64_t* bytes, char* tag, std::size_t tag_size, char* error,
                       std::size_t error_size);
  // All objects below the folder "bucket/prefix", in no order.
  std::int32_t (*list)(OctetStore* store, const char* path, OctetStoreFound found, void* context, char* error,
                       std::size_t error_size);
  // Fills `out` with exactly `bytes` bytes from `offset` on of an object that has `size` bytes.
  std::int32_t (*get)(OctetStore* store, const char* path, std::int64_t size, std::int64_t offset, void* out, std::int64_t bytes,
                      char* error, std::size_t error_size);
  // Writes an object. Others see it only when it is complete; after a failure there is no object, or the previous one.
  std::int32_t (*put)(OctetStore* store, const char* path, OctetStoreRead read, void* context, char* error,
                      std::size_t error_size);
  void (*close)(OctetStore* store);
};

// The only symbol that a plugin exports.
const OctetStorePlugin* octet_store_plugin();
}

// Increase this with every change of the interface.
constexpr std::int32_t kOctetStoreVersion = 1;
