// Copies of objects on this machine, for programs that need files. A copy is made once, and is complete or absent.
//
// Layout: FOLDER/s3/BUCKET/KEY@SUM/, where FOLDER is octet/ in XDG_CACHE_HOME, or in ~/.cache if that is not set. SUM is the
// hash of the names, sizes and ETags of the objects, so changed objects get another copy. Nothing is ever deleted there; a
// person may remove the folder whenever no program reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "octet/storage/object_store.h"

namespace octet::storage {

using CopyProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// The objects of a copy.
struct CopySet {
  ObjectUrl url;                   // their folder
  std::vector<std::string> names;  // below it, as relative paths
  std::string folder = {};         // KEY in the path of the copy; "": the key of `url`
};

// The folder above. Throws Error{config} if neither variable is set.
std::filesystem::path copies_folder();

// Copies the objects into a folder below `folder` and returns it. If the copy exists already, only asks for the objects' sizes
// and ETags. Continues an interrupted copy. Other processes of this machine that want the same copy wait for the first one.
// Throws StoreError, Error{data} if an object is missing or changes during the copy, or if a file of the copy has another size,
// and the errors of files.
std::filesystem::path local_copy(ObjectStore& store, const CopySet& set, const std::filesystem::path& folder,
                                 const CopyProgress& progress = {});

// Copies one object to a file, through FILE.part, from which a later call continues. Several requests run at a time. The object
// must match `found`.
void copy_to_file(ObjectStore& store, const ObjectUrl& url, const FoundObject& found, const std::filesystem::path& file,
                  const std::function<void(std::int64_t bytes)>& progress = {});

}  // namespace octet::storage
