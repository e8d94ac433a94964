# octet_commit(target output): adds to `target` the C++ source `output`, which defines octet::train::commit(). Each build asks git for the
# commit and writes the source only if it has changed, so a new commit compiles this one file and links again. "+changes" follows if
# tracked files differ from the commit. Sources without .git have the commit "unknown", unless OCTET_COMMIT names it.
set(OCTET_COMMIT "" CACHE STRING "The commit of these sources, for a build without .git; empty: ask git")

function(octet_commit target output)
  add_custom_target(${target}_commit COMMAND ${CMAKE_COMMAND} -D OUTPUT=${output} -D SOURCE=${PROJECT_SOURCE_DIR}
    -D "OCTET_COMMIT=${OCTET_COMMIT}" -P ${PROJECT_SOURCE_DIR}/cmake/write_commit.cmake BYPRODUCTS ${output} COMMENT "" VERBATIM)
  set_source_files_properties(${output} PROPERTIES GENERATED ON SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE ${output})
  add_dependencies(${target} ${target}_commit)
endfunction()
