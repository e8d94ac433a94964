# The layers as a library for other models (docs/library.md): an archive of the rooms up to `nn` and `optim`, their public headers, and a
# package for find_package(octet). Private headers (x_cpu.h, x_cuda.h) and headers that need the JSON library are not installed.
set(rooms base numerics telemetry device tensor kernels comm recipes parallel nn optim)
add_library(octet_library STATIC)
foreach(room IN LISTS rooms)
  get_target_property(type octet_${room} TYPE)
  if(type STREQUAL STATIC_LIBRARY)
    target_sources(octet_library PRIVATE $<TARGET_OBJECTS:octet_${room}>)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/octet/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/octet FILES_MATCHING PATTERN "*.h"
    PATTERN "*_cpu.h" EXCLUDE PATTERN "*_cuda.h" EXCLUDE PATTERN "*/cuda/*" EXCLUDE PATTERN "json.h" EXCLUDE)
endforeach()
set_target_properties(octet_library PROPERTIES OUTPUT_NAME octet_layers LINKER_LANGUAGE CXX)
install(TARGETS octet_library ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})

set(OCTET_LIBRARY_LINKS ${OCTET_OPENBLAS} ${OCTET_GLOO} ${OCTET_SODIUM})
if(OCTET_HAS_CUDA)
  list(APPEND OCTET_LIBRARY_LINKS ${OCTET_CUBLASLT} ${OCTET_CUDNN} ${OCTET_NVRTC} ${OCTET_NCCL} CUDA::cudart_static)
endif()
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/octet)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/octet-config.cmake.in ${PROJECT_BINARY_DIR}/octet-config.cmake
  INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/octet-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/octet-config.cmake ${PROJECT_BINARY_DIR}/octet-config-version.cmake DESTINATION ${package})
