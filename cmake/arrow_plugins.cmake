# The plugins that are linked with Apache Arrow, beside the program: octet_parquet.so, which reads Parquet, and octet_s3.so, which reads and
# writes objects in S3. They are built only if OCTET_ARROW is set. The program itself never links Arrow.
set(OCTET_ARROW "" CACHE PATH "Folder of Apache Arrow (with include/ and lib/) or of Python's pyarrow, for the plugins for Parquet and S3; empty: none")
if(NOT OCTET_ARROW)
  return()
endif()

# arrow_library(NAME RESULT): the path of libNAME.so in OCTET_ARROW, or "". pyarrow has libarrow.so.2600 and no libarrow.so.
function(arrow_library name result)
  set(found "")
  foreach(folder . lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE})
    file(GLOB here ${OCTET_ARROW}/${folder}/lib${name}.so*)
    list(APPEND found ${here})
  endforeach()
  set(first "")
  if(found)
    list(GET found 0 first)
  endif()
  set(${result} "${first}" PARENT_SCOPE)
endfunction()

# arrow_plugin(NAME SOURCE LIBRARY...): builds NAME.so beside the program and installs it.
function(arrow_plugin name source)
  set(folders "")
  foreach(library IN LISTS ARGN)
    get_filename_component(folder ${library} REALPATH)
    get_filename_component(folder ${folder} DIRECTORY)
    list(APPEND folders ${folder})
  endforeach()
  if(CMAKE_INSTALL_RPATH)  # a package that is moved about says itself where Arrow will be
    set(folders "${CMAKE_INSTALL_RPATH}")
  endif()
  add_library(${name} MODULE ${source})
  # Takes the compile and link options of octet_flags, but not its libraries.
  target_compile_options(${name} PRIVATE $<TARGET_PROPERTY:octet_flags,INTERFACE_COMPILE_OPTIONS>)
  # --no-undefined makes the build fail if this Arrow lacks a symbol, because of its age or its ABI; otherwise loading would fail.
  target_link_options(${name} PRIVATE $<TARGET_PROPERTY:octet_flags,INTERFACE_LINK_OPTIONS> -Wl,--no-undefined)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(${name} SYSTEM PRIVATE ${arrow_include})
  target_link_libraries(${name} PRIVATE ${ARGN})
  set_target_properties(${name} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
    INSTALL_RPATH "${folders}")  # set explicitly, because CMake leaves out folders inside the project, such as .venv
  add_dependencies(octet ${name})
  install(TARGETS ${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/octet)
endfunction()

find_path(arrow_include NAMES parquet/file_reader.h PATHS ${OCTET_ARROW}/include NO_DEFAULT_PATH NO_CACHE)
arrow_library(arrow arrow)
arrow_library(parquet parquet)
if(NOT arrow_include OR NOT arrow OR NOT parquet)
  message(FATAL_ERROR "OCTET_ARROW=${OCTET_ARROW}: no include/parquet, libarrow.so and libparquet.so here; -DOCTET_ARROW= builds without plugins")
endif()
arrow_plugin(octet_parquet data/parquet/arrow_plugin.cpp ${arrow} ${parquet})

# pyarrow has S3 in a library of its own since its release 26. Other builds have it in libarrow.so, or not at all.
arrow_library(arrow_s3 arrow_s3)
set(s3_symbol "")
foreach(library ${arrow_s3} ${arrow})
  if(NOT s3_symbol)
    file(STRINGS ${library} s3_symbol REGEX "^_ZN5arrow2fs12InitializeS3" LIMIT_COUNT 1)
  endif()
endforeach()
if(s3_symbol AND EXISTS ${arrow_include}/arrow/filesystem/s3fs.h)
  arrow_plugin(octet_s3 storage/arrow_s3_plugin.cpp ${arrow_s3} ${arrow})
else()
  message(STATUS "OCTET_ARROW=${OCTET_ARROW}: built without S3, so Octet will not know s3://")
endif()
