# Says what is wrong with a compiler that is too old, before it fails in a page of errors. Older ones do not know `using enum`. Octet is
# tested with g++ 12 and clang++ 14.
if((CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11) OR
    (CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13))
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, which is too old for Octet. Install \
g++ 12 or newer, delete ${CMAKE_BINARY_DIR}, and run this again with the environment variable CXX=g++-12")
endif()
