# Flags for Octet's own code, and a function that makes a library of a room (a folder of src/octet).
add_library(octet_flags INTERFACE)
target_include_directories(octet_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
# No FMA contraction: casts, scale laws and ordered sums must give the same bits on every processor.
target_compile_options(octet_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wno-missing-field-initializers
  -ffp-contract=off> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-ffp-contract=off>)
# g++ 12 warns of an overlap in "text" + std::string that does not exist (GCC bug 105651).
target_compile_options(octet_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
if(OCTET_NATIVE)
  target_compile_options(octet_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
elseif(OCTET_MARCH)
  target_compile_options(octet_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${OCTET_MARCH}>)
endif()
if(OCTET_SANITIZE)
  add_compile_options(-fsanitize=${OCTET_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${OCTET_SANITIZE})
endif()
if(OCTET_FUZZ)
  target_compile_options(octet_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_link_libraries(octet_flags INTERFACE Threads::Threads octet_cuda)

# octet_room(name LOWER...): makes a static library of all sources in the folder `name`. It sees only the rooms LOWER... and what these
# link. x_cuda.cpp and x_cuda.cu belong to the CUDA backend; without it, cuda/absent.cpp replaces them. x_plugin.cpp is built elsewhere,
# as a library of its own.
function(octet_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cu)
  list(FILTER sources EXCLUDE REGEX "_plugin\\.cpp$")
  if(OCTET_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "/cuda/absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda\\.(cpp|cu)$")
  endif()
  if(sources)
    add_library(octet_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()  # a room of headers only
    add_library(octet_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_link_libraries(octet_${name} ${scope} octet_flags)
  foreach(lower IN LISTS ARGN)
    target_link_libraries(octet_${name} ${scope} octet_${lower})
  endforeach()
endfunction()
