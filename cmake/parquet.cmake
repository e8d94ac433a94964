# The Parquet plugin, octet_parquet.so beside the program. It is built only if OCTET_ARROW is set. The program itself never links Arrow.
set(OCTET_ARROW "" CACHE PATH "Folder of Apache Arrow (with include/ and lib/) or of Python's pyarrow, for the Parquet plugin; empty: none")
if(NOT OCTET_ARROW)
  return()
endif()

find_path(arrow_include NAMES parquet/file_reader.h PATHS ${OCTET_ARROW}/include NO_DEFAULT_PATH NO_CACHE)
set(arrow_links "")
set(arrow_folders "")
foreach(library arrow parquet)
  set(found "")
  foreach(folder . lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE})
    file(GLOB here ${OCTET_ARROW}/${folder}/lib${library}.so*)  # pyarrow has libarrow.so.2600 and no libarrow.so
    list(APPEND found ${here})
  endforeach()
  if(NOT arrow_include OR NOT found)
    message(FATAL_ERROR "OCTET_ARROW=${OCTET_ARROW}: no include/parquet and lib${library}.so here; -DOCTET_ARROW= builds without Parquet")
  endif()
  list(GET found 0 first)
  list(APPEND arrow_links ${first})
  get_filename_component(folder ${first} REALPATH)
  get_filename_component(folder ${folder} DIRECTORY)
  list(APPEND arrow_folders ${folder})
endforeach()

if(CMAKE_INSTALL_RPATH)  # a package that is moved about says itself where Arrow will be
  set(arrow_folders "${CMAKE_INSTALL_RPATH}")
endif()

add_library(octet_parquet MODULE data/parquet/arrow_plugin.cpp)
# Takes the compile and link options of octet_flags, but not its libraries.
target_compile_options(octet_parquet PRIVATE $<TARGET_PROPERTY:octet_flags,INTERFACE_COMPILE_OPTIONS>)
# --no-undefined makes the build fail if this Arrow lacks a symbol, because of its age or its ABI; otherwise loading would fail.
target_link_options(octet_parquet PRIVATE $<TARGET_PROPERTY:octet_flags,INTERFACE_LINK_OPTIONS> -Wl,--no-undefined)
target_include_directories(octet_parquet PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_include_directories(octet_parquet SYSTEM PRIVATE ${arrow_include})
target_link_libraries(octet_parquet PRIVATE ${arrow_links})
set_target_properties(octet_parquet PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
  INSTALL_RPATH "${arrow_folders}")  # set explicitly, because CMake leaves out folders inside the project, such as .venv
add_dependencies(octet octet_parquet)
install(TARGETS octet_parquet LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/octet)
