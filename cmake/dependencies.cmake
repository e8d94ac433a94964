# Libraries from Debian. All but Gloo are header-only or linked statically, so the program needs only Gloo and libstdc++ at run time.
find_package(Threads REQUIRED)

find_library(OCTET_OPENBLAS NAMES libopenblas.a
  PATH_SUFFIXES openblas-pthread REQUIRED
  DOC "libopenblas-pthread-dev")
find_path(OCTET_OPENBLAS_INCLUDE NAMES cblas.h
  PATH_SUFFIXES openblas-pthread x86_64-linux-gnu/openblas-pthread aarch64-linux-gnu/openblas-pthread REQUIRED)

# Collectives between processes without GPUs. Linked dynamically, because Debian has no static library.
find_library(OCTET_GLOO NAMES gloo REQUIRED DOC "libgloo-dev")
find_path(OCTET_GLOO_INCLUDE NAMES gloo/context.h REQUIRED)

find_path(OCTET_FMT_INCLUDE NAMES fmt/format-inl.h REQUIRED)
find_path(OCTET_TOMLPP_INCLUDE NAMES toml++/toml.h REQUIRED)
find_path(OCTET_CLI11_INCLUDE NAMES CLI/CLI.hpp REQUIRED)
find_path(OCTET_JSON_INCLUDE NAMES nlohmann/json.hpp REQUIRED)
find_path(OCTET_HIGHWAY_INCLUDE NAMES hwy/highway.h REQUIRED)
find_path(OCTET_XXHASH_INCLUDE NAMES xxhash.h REQUIRED)
find_library(OCTET_PCRE2 NAMES libpcre2-8.a REQUIRED DOC "libpcre2-dev")
find_path(OCTET_PCRE2_INCLUDE NAMES pcre2.h REQUIRED)
find_library(OCTET_UTF8PROC NAMES libutf8proc.a REQUIRED DOC "libutf8proc-dev")
find_path(OCTET_UTF8PROC_INCLUDE NAMES utf8proc.h REQUIRED)

# The token of a job: HMAC-SHA-256, comparison in constant time, random bytes.
find_library(OCTET_SODIUM NAMES libsodium.a REQUIRED DOC "libsodium-dev")
find_path(OCTET_SODIUM_INCLUDE NAMES sodium.h REQUIRED)

# For compressed texts.
find_library(OCTET_ZLIB NAMES libz.a REQUIRED DOC "zlib1g-dev")
find_path(OCTET_ZLIB_INCLUDE NAMES zlib.h REQUIRED)
find_library(OCTET_ZSTD NAMES libzstd.a REQUIRED DOC "libzstd-dev")
find_path(OCTET_ZSTD_INCLUDE NAMES zstd.h REQUIRED)
