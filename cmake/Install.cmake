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
install(FILES completions/addend.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME addend)
install(FILES completions/addend.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _addend)
install(FILES completions/addend.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
