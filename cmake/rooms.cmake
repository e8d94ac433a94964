# Flags for our own code, and one function that makes a room (a folder of src/octet) into a library.
add_library(octet_flags INTERFACE)
target_include_directories(octet_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
# No FMA contraction anywhere: casts, scale laws and ordered sums must have the same bits on every processor.
target_compile_options(octet_flags INTERFACE -Wall -Wextra -Wconversion -Wno-missing-field-initializers -ffp-contract=off)
# g++ 12 sees an overlap that is not there in "text" + std::string (its bug 105651).
target_compile_options(octet_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(OCTET_NATIVE)
  target_compile_options(octet_flags INTERFACE -march=native)
endif()
if(OCTET_SANITIZE)
  target_compile_options(octet_flags INTERFACE -fsanitize=${OCTET_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(octet_flags INTERFACE -fsanitize=${OCTET_SANITIZE})
endif()
if(OCTET_FUZZ)
  target_compile_options(octet_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_link_libraries(octet_flags INTERFACE Threads::Threads)

# octet_room(name LOWER...): a static library of every source below the folder `name`, seeing only the rooms named after it.
function(octet_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  if(sources)
    add_library(octet_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()  # headers alone
    add_library(octet_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_link_libraries(octet_${name} ${scope} octet_flags)
  foreach(lower IN LISTS ARGN)
    target_link_libraries(octet_${name} ${scope} octet_${lower})
  endforeach()
endfunction()
