#include "octet/app/job_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet::app {
namespace {

void write_all(const Descriptor& file, std::string_view text, const char* name) {
  const bool written = file.open() && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!written) fail_errno(ExitCode::internal, name, "cannot write this memory of the job");
}

}  // namespace

JobMemory::JobMemory(const char* name, std::string_view text) : name_(name), file_(::memfd_create("octet job", 0)) {
  write_all(file_, text, name);
}

std::string JobMemory::variable() const { return concat(name_, "=/proc/self/fd/", file_.get()); }

std::optional<std::string> text_of_job(const char* name) {
  const char* const path = std::getenv(name);
  return path ? std::optional(read_file(path)) : std::nullopt;
}

void set_text_of_job(const char* name, std::string_view text) {
  const char* const path = std::getenv(name);
  if (path) write_all(Descriptor(::open(path, O_WRONLY | O_TRUNC | O_CLOEXEC)), text, name);
}

}  // namespace octet::app
