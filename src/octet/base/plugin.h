// Plugins: libraries that the program loads when it first needs them. The program therefore starts and runs without the
// libraries on which its plugins depend.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace octet {

struct PluginKind {
  std::string name;      // what messages call it: "Parquet"
  std::string file;      // "octet_parquet.so"
  std::string variable;  // the environment variable that may name another file
  std::string symbol;    // the function that it exports
  std::string purpose;   // "Parquet is read by a plugin"
  std::string remedy;    // what to do without one
  std::string page;      // of the documentation
};

// Finds the plugin. Returns `named` (the value of the variable) if it is not empty; otherwise looks in `program`, the program's
// folder, and in the folder of an installed plugin. Throws Error{config} with instructions if there is none.
std::filesystem::path find_plugin(const PluginKind& kind, const std::string& named, const std::filesystem::path& program);

// Loads a plugin and returns the address of its symbol. Throws Error{config} if it cannot be loaded or has no such symbol.
void* load_plugin(const PluginKind& kind, const std::filesystem::path& path);

// Finds and loads the plugin of this program. `Plugin` is the structure that the symbol, a function without arguments, returns;
// its first member is its version. Throws Error{config} as above, and for another version.
template <class Plugin>
const Plugin* open_plugin(const PluginKind& kind, std::int32_t version);

// The file that open_plugin() loads.
std::filesystem::path plugin_of_program(const PluginKind& kind);
[[noreturn]] void fail_other_version(const PluginKind& kind, const std::filesystem::path& path, std::int32_t found,
                                     std::int32_t wanted);

template <class Plugin>
const Plugin* open_plugin(const PluginKind& kind, std::int32_t version) {
  const std::filesystem::path path = plugin_of_program(kind);
  const Plugin* const plugin = reinterpret_cast<const Plugin* (*)()>(load_plugin(kind, path))();
  if (plugin->version != version) fail_other_version(kind, path, plugin->version, version);
  return plugin;
}

}  // namespace octet
