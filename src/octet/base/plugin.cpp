#include "octet/base/plugin.h"

#include <dlfcn.h>

#include <cstdlib>

#include "octet/base/directory.h"
#include "octet/base/require.h"

namespace octet {

namespace fs = std::filesystem;

fs::path find_plugin(const PluginKind& kind, const std::string& named, const fs::path& program) {
  if (!named.empty()) {
    demand(path_exists(named), ExitCode::config, kind.variable, "=", named, ": no such file");
    return fs::absolute(named);
  }
  for (const fs::path& path : {program / kind.file, program / OCTET_INSTALLED_PLUGINS / kind.file}) {
    if (path_exists(path)) return path;
  }
  fail(ExitCode::config, kind.purpose, ", and there is no ", kind.file, " next to the program in ", program.string(),
       "; install pyarrow or Apache Arrow and build Octet with -DOCTET_ARROW=its folder (", kind.page, "), or ", kind.remedy);
}

void* load_plugin(const PluginKind& kind, const fs::path& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
  demand(library != nullptr, ExitCode::config, "the ", kind.name, " plugin ", path.string(),
         " cannot be loaded: ", library ? "" : ::dlerror(), " (Arrow must lie where it was when Octet was built: ", kind.page,
         ")");
  void* const entry = ::dlsym(library, kind.symbol.c_str());
  demand(entry != nullptr, ExitCode::config, path.string(), ": not Octet's plugin for ", kind.name);
  return entry;
}

fs::path plugin_of_program(const PluginKind& kind) {
  const char* const named = std::getenv(kind.variable.c_str());
  return find_plugin(kind, named ? named : "", fs::read_symlink("/proc/self/exe").parent_path());
}

void fail_other_version(const PluginKind& kind, const fs::path& path, std::int32_t found, std::int32_t wanted) {
  fail(ExitCode::config, path.string(), ": a plugin for ", kind.name, " of version ", found, ", this program needs version ",
       wanted);
}

}  // namespace octet
