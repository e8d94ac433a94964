# Man pages and shell completion, printed by the program at the time it is installed. Building does not run it.
set(share ${PROJECT_BINARY_DIR}/share)
install(CODE "file(REMOVE_RECURSE \"${share}\")
  execute_process(COMMAND \"$<TARGET_FILE:octet>\" manual --output \"${share}\" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)")
install(DIRECTORY ${share}/ DESTINATION ${CMAKE_INSTALL_DATADIR})
