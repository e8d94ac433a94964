# The CUDA backend. OCTET_CUDA=AUTO builds it if this machine has a GPU and the libraries are found; ON fails if they are not found; OFF
# leaves it out. Libraries are searched in the toolkit's folders and in Python's nvidia/*/lib. The program finds them through its RPATH.
set(OCTET_CUDA AUTO CACHE STRING "CUDA backend: AUTO (if this machine has a GPU and the libraries are found), ON or OFF")
set_property(CACHE OCTET_CUDA PROPERTY STRINGS AUTO ON OFF)
set(OCTET_CUDA_ARCHITECTURES "" CACHE STRING "GPU architectures, as for CMAKE_CUDA_ARCHITECTURES. Empty: those of this machine's GPUs; \
without a GPU all from 90 on that nvcc knows, and PTX for later ones")
option(OCTET_QUICK_CUDA "Leave GPU code unoptimised: it compiles sooner, for machines that will not run it" OFF)

set(OCTET_HAS_CUDA 0)
if(OCTET_CUDA STREQUAL ON OR (OCTET_CUDA STREQUAL AUTO AND EXISTS /dev/nvidia0))
  execute_process(COMMAND python3 -c "import glob, sys; print(';'.join(f for p in sys.path if p for f in glob.glob(p + '/nvidia/*')), end='')"
    OUTPUT_VARIABLE nvidia_folders ERROR_QUIET)
  find_program(OCTET_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda)
  cmake_path(GET OCTET_NVCC PARENT_PATH toolkit)
  cmake_path(GET toolkit PARENT_PATH toolkit)
  foreach(library cublasLt cudnn nvrtc nccl)  # cuDNN's frontend calls nvrtc
    string(TOUPPER ${library} variable)
    find_library(OCTET_${variable} NAMES ${library} lib${library}.so.13 lib${library}.so.9 lib${library}.so.2
      HINTS ${toolkit} ${nvidia_folders} PATH_SUFFIXES lib64 lib)
  endforeach()
  find_path(OCTET_CUDNN_INCLUDE NAMES cudnn.h HINTS ${toolkit} ${nvidia_folders} PATH_SUFFIXES include)
  find_path(OCTET_NCCL_INCLUDE NAMES nccl.h HINTS ${toolkit} ${nvidia_folders} PATH_SUFFIXES include)
  # A header-only library from PyPI (nvidia-cudnn-frontend).
  find_path(OCTET_CUDNN_FRONTEND_INCLUDE NAMES cudnn_frontend.h HINTS ${PROJECT_SOURCE_DIR}/build/cudnn-frontend/include)

  set(missing "")
  foreach(part "OCTET_NVCC:nvcc of the CUDA toolkit" "OCTET_CUBLASLT:cuBLASLt" "OCTET_CUDNN:cuDNN" "OCTET_NVRTC:NVRTC"
      "OCTET_NCCL:NCCL" "OCTET_CUDNN_INCLUDE:cudnn.h" "OCTET_NCCL_INCLUDE:nccl.h"
      "OCTET_CUDNN_FRONTEND_INCLUDE:cudnn_frontend.h (tools/cudnn_frontend.sh fetches it)")
    string(REGEX MATCH "^([^:]*):(.*)$" part "${part}")
    if(NOT ${CMAKE_MATCH_1})
      list(APPEND missing "${CMAKE_MATCH_2}")
    endif()
  endforeach()
  list(JOIN missing ", " missing)
  if(missing STREQUAL "")
    set(OCTET_HAS_CUDA 1)
  elseif(OCTET_CUDA STREQUAL ON)
    message(FATAL_ERROR "OCTET_CUDA=ON, but not found: ${missing}")
  else()
    message(STATUS "This machine has a GPU, but not found for the CUDA backend: ${missing}")
  endif()
endif()

add_library(octet_cuda INTERFACE)
if(OCTET_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER ${OCTET_NVCC})
  set(architectures "${OCTET_CUDA_ARCHITECTURES}")
  if(architectures STREQUAL "" AND EXISTS /dev/nvidia0)
    set(architectures native)
  elseif(architectures STREQUAL "")
    # Kernels use clusters of blocks, which came with 9.0.
    execute_process(COMMAND ${OCTET_NVCC} --list-gpu-code OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "sm_[0-9]+" known "${known}")
    list(TRANSFORM known REPLACE "sm_" "")
    list(FILTER known EXCLUDE REGEX "^[5-8][0-9]$")
    list(SORT known COMPARE NATURAL)
    list(GET known -1 newest)
    list(TRANSFORM known APPEND "-real" OUTPUT_VARIABLE architectures)
    list(APPEND architectures ${newest}-virtual)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${architectures})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # CMake 3.25 does not know nvcc's C++20 flag.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit REQUIRED)
  target_include_directories(octet_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${OCTET_CUDNN_INCLUDE})
  target_link_libraries(octet_cuda INTERFACE ${OCTET_CUBLASLT} ${OCTET_CUDNN} ${OCTET_NVRTC} CUDA::cudart_static)
  # No FMA contraction, so that a fused kernel rounds like the unfused one. Code that wants an FMA calls it explicitly.
  target_compile_options(octet_cuda INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda -fmad=false -lineinfo>)
endif()
target_compile_definitions(octet_cuda INTERFACE OCTET_HAS_CUDA=${OCTET_HAS_CUDA})
message(STATUS "CUDA backend: ${OCTET_HAS_CUDA}")
