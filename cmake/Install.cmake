# cmake --install: headers, both libraries, the program, pkg-config file, CMake package, man page, shell completions.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(DIRECTORY include/addend DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
set_target_properties(addend_static PROPERTIES EXPORT_NAME static)
install(TARGETS addend addend_static EXPORT addendTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET addend_cli)
  install(TARGETS addend_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

if(AD_MPI_MODULES)
  install(FILES ${AD_MPI_MODULES} DESTINATION ${CMAKE_INSTALL_LIBDIR}/addend)
endif()

# Both packages find the tree from where they lie, so `cmake --install --prefix` may name any place.
set(AD_PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/addend)
configure_package_config_file(cmake/addendConfig.cmake.in addendConfig.cmake INSTALL_DESTINATION ${AD_PACKAGE_FOLDER})
write_basic_package_version_file(addendConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT addendTargets NAMESPACE addend:: DESTINATION ${AD_PACKAGE_FOLDER})
install(FILES ${CMAKE_BINARY_DIR}/addendConfig.cmake ${CMAKE_BINARY_DIR}/addendConfigVersion.cmake DESTINATION ${AD_PACKAGE_FOLDER})

file(RELATIVE_PATH AD_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" AD_PREFIX_FROM_PC ${AD_PREFIX_FROM_PC})
configure_file(cmake/addend.pc.in addend.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/addend.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES docs/addend.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

# The program itself says what completes it, so what is installed has every command, option and key.
if(TARGET addend_cli AND NOT AD_FUZZ)
  set(AD_COMPLETIONS ${CMAKE_BINARY_DIR}/completions)
  file(MAKE_DIRECTORY ${AD_COMPLETIONS})
  foreach(shell bash zsh fish)
    add_custom_command(OUTPUT ${AD_COMPLETIONS}/addend.${shell}
      COMMAND addend_cli --completions ${shell} > ${AD_COMPLETIONS}/addend.${shell}
      DEPENDS addend_cli COMMENT "Asking addend for its completions in ${shell}" VERBATIM)
    list(APPEND AD_COMPLETION_FILES ${AD_COMPLETIONS}/addend.${shell})
  endforeach()
  add_custom_target(addend_completions ALL DEPENDS ${AD_COMPLETION_FILES})
  install(FILES ${AD_COMPLETIONS}/addend.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME addend)
  install(FILES ${AD_COMPLETIONS}/addend.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _addend)
  install(FILES ${AD_COMPLETIONS}/addend.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
