#include "support/paths.h"

namespace octet::testing {

std::string golden_dir() { return OCTET_TEST_DATA; }
std::string source_dir() { return OCTET_SOURCE_DIR; }
std::string program_path() { return OCTET_PROGRAM; }
std::string python_path() { return OCTET_PYTHON_PROGRAM; }
std::string parquet_plugin() { return OCTET_TEST_PARQUET_PLUGIN; }
std::string s3_plugin() { return OCTET_TEST_S3_PLUGIN; }
std::string faults_library() { return OCTET_TEST_FAULTS; }

}  // namespace octet::testing
