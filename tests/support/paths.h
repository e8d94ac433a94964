// The folders and programs of this build that tests use. Only paths.cpp is compiled with their values. The other object files do not
// depend on the location of the source tree, so a compiler cache serves all copies of the tree.
#pragma once

#include <string>

namespace octet::testing {

std::string golden_dir();      // tests/golden
std::string source_dir();      // the repository
std::string program_path();    // the `octet` of this build
std::string python_path();     // a Python with the packages of tests/requirements.txt
std::string parquet_plugin();  // empty if the plugin is not built
std::string s3_plugin();         // likewise
std::string faults_library();  // the library of support/faults; empty if it is not built

}  // namespace octet::testing
