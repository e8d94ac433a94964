# Flags for Octet's own code, and a function that makes a library of a room (a folder of src/octet).
add_library(octet_flags INTERFACE)
target_include_directories(octet_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
# No FMA contraction: casts, scale laws and ordered sums must give the same bits on every processor.
target_compile_options(octet_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wno-missing-field-initializers
  -ffp-contract=off> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-ffp-contract=off>)
# g++ 12 warns of an overlap in "text" + std::string that does not exist (GCC bug 105651).
# It compiles large files a tenth faster if it collects no garbage below half a gigabyte.
target_compile_options(octet_flags INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict;--param=ggc-min-heapsize=500000>")
if(OCTET_NATIVE)
  target_compile_options(octet_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
elseif(OCTET_MARCH)
  target_compile_options(octet_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${OCTET_MARCH}>)
endif()
if(OCTET_SANITIZE)
  add_compile_options(-fsanitize=${OCTET_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${OCTET_SANITIZE})
  add_compile_definitions(_GLIBCXX_ASSERTIONS)  # an empty optional, an index beyond a vector: no sanitizer sees them
endif()
if(OCTET_FUZZ)
  target_compile_options(octet_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_link_libraries(octet_flags INTERFACE Threads::Threads octet_cuda)

# octet_room(name LOWER...): makes a static library of all sources in the folder `name`. It sees only the rooms LOWER... and what these
# link. x_cuda.cpp and x_cuda.cu belong to the CUDA backend; without it, cuda/absent.cpp replaces them. x_plugin.cpp is built elsewhere,
# as a library of its own. x_hopper_cuda.cu has instructions that Hopper alone has, and is compiled for sm_90a.
# The folder x86 needs a compiler that knows AVX-512 and an assembler that knows AMX; otherwise tiles/absent.cpp replaces it.
# OCTET_QUICK_CUDA leaves GPU code unoptimised, but not x_hopper_cuda.cu: ptxas 13.0 crashes on unoptimised wgmma.
function(octet_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cu)
  list(FILTER sources EXCLUDE REGEX "_plugin\\.cpp$")
  if(OCTET_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "/cuda/absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda\\.(cpp|cu)$")
  endif()
  if(OCTET_HAS_TILES)
    list(FILTER sources EXCLUDE REGEX "/tiles/absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/tiles/x86/")
  endif()
  set(hopper ${sources})
  list(FILTER hopper INCLUDE REGEX "_hopper_cuda\\.cu$")
  if(hopper)
    list(REMOVE_ITEM sources ${hopper})
    add_library(octet_${name}_hopper OBJECT ${hopper})
    set_target_properties(octet_${name}_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
    target_link_libraries(octet_${name}_hopper PRIVATE octet_flags)
    list(APPEND sources $<TARGET_OBJECTS:octet_${name}_hopper>)
  endif()
  if(sources)
    add_library(octet_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()  # a room of headers only
    add_library(octet_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_link_libraries(octet_${name} ${scope} octet_flags)
  if(sources AND OCTET_QUICK_CUDA)
    target_compile_options(octet_${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcicc=-O0 -Xptxas=-O0>)
  endif()
  foreach(lower IN LISTS ARGN)
    target_link_libraries(octet_${name} ${scope} octet_${lower})
  endforeach()
endfunction()
