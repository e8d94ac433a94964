# The CUDA backend: OCTET_CUDA=AUTO builds it where nvcc and a GPU are, ON demands it, OFF leaves it out.
# Libraries are looked for in the toolkit's folders and in Python's nvidia/*/lib, and stand in the program's RPATH.
set(OCTET_CUDA AUTO CACHE STRING "CUDA backend: AUTO (where nvcc and a GPU are), ON or OFF")
set_property(CACHE OCTET_CUDA PROPERTY STRINGS AUTO ON OFF)
set(OCTET_CUDA_ARCHITECTURES 90a-real CACHE STRING "GPU architectures, as for CMAKE_CUDA_ARCHITECTURES")

set(OCTET_HAS_CUDA 0)
if(NOT OCTET_CUDA STREQUAL OFF)
  find_program(OCTET_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda)
  if(OCTET_CUDA STREQUAL ON)
    if(NOT OCTET_NVCC)
      message(FATAL_ERROR "OCTET_CUDA=ON, but there is no nvcc: install the CUDA toolkit or set CUDA_HOME")
    endif()
    set(OCTET_HAS_CUDA 1)
  elseif(OCTET_NVCC AND EXISTS /dev/nvidia0)
    set(OCTET_HAS_CUDA 1)
  endif()
endif()

add_library(octet_cuda INTERFACE)
if(OCTET_HAS_CUDA)
  # CMake 3.25 does not know nvcc's C++20 flag.
  set(CMAKE_CUDA_COMPILER ${OCTET_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${OCTET_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit REQUIRED)

  file(GLOB OCTET_NVIDIA_FOLDERS /usr/lib/python3*/*-packages/nvidia/* /usr/local/lib/python3*/*-packages/nvidia/*
    $ENV{VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/* ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*)
  foreach(library cublasLt cudnn nvrtc)  # cuDNN's frontend calls nvrtc
    string(TOUPPER ${library} variable)
    find_library(OCTET_${variable} NAMES ${library} lib${library}.so.13 lib${library}.so.9
      HINTS ${CUDAToolkit_LIBRARY_DIR} ${OCTET_NVIDIA_FOLDERS} PATH_SUFFIXES lib REQUIRED)
    target_link_libraries(octet_cuda INTERFACE ${OCTET_${variable}})
  endforeach()
  find_path(OCTET_CUDNN_INCLUDE NAMES cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${OCTET_NVIDIA_FOLDERS} PATH_SUFFIXES include REQUIRED)
  # Headers only, from PyPI (nvidia-cudnn-frontend): tools/cudnn_frontend.sh puts them there.
  find_path(OCTET_CUDNN_FRONTEND_INCLUDE NAMES cudnn_frontend.h
    HINTS ${PROJECT_SOURCE_DIR}/build/cudnn-frontend/include REQUIRED)
  target_include_directories(octet_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${OCTET_CUDNN_INCLUDE})
  target_link_libraries(octet_cuda INTERFACE CUDA::cudart_static)
  # No FMA contraction: a fused kernel must round as the unfused one does. Where an FMA is meant it is written.
  target_compile_options(octet_cuda INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda -fmad=false -lineinfo>)
endif()
target_compile_definitions(octet_cuda INTERFACE OCTET_HAS_CUDA=${OCTET_HAS_CUDA})
message(STATUS "CUDA backend: ${OCTET_HAS_CUDA}")
