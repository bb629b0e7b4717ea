# cmake --install: headers, libraries, the program, pkg-config files, CMake package, man page, shell completions. Component `core` is
# libaddend and its headers, `train` libaddend_train and its own.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# What a release build installs has no debug information (strip); other builds keep theirs.
foreach(component core train Unspecified)
  install(CODE "if(CMAKE_INSTALL_CONFIG_NAME STREQUAL \"Release\")\n  set(CMAKE_INSTALL_DO_STRIP TRUE)\nendif()" COMPONENT ${component})
endforeach()

foreach(library core trainer)
  list(TRANSFORM AD_HEADERS_OF_${library} APPEND /addend/*.h OUTPUT_VARIABLE headers)
  file(GLOB AD_INSTALLED_OF_${library} CONFIGURE_DEPENDS ${headers})
endforeach()

# ad_install_library COMPONENT EXPORT HEADERS...
function(ad_install_library component target export)
  install(FILES ${ARGN} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/addend COMPONENT ${component})
  install(TARGETS ${target} ${target}_static EXPORT ${export}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component})
  install(EXPORT ${export} NAMESPACE addend:: DESTINATION ${AD_PACKAGE_FOLDER} COMPONENT ${component})
endfunction()

set(AD_PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/addend)
set_target_properties(addend_static PROPERTIES EXPORT_NAME static)
ad_install_library(core addend addendTargets ${AD_INSTALLED_OF_core})
if(AD_TRAINER)
  set_target_properties(addend_train PROPERTIES EXPORT_NAME train)
  set_target_properties(addend_train_static PROPERTIES EXPORT_NAME train_static)
  ad_install_library(train addend_train addendTrainTargets ${AD_INSTALLED_OF_trainer})
endif()
if(TARGET addend_cli)
  install(TARGETS addend_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(AD_MPI_MODULES)
  install(FILES ${AD_MPI_MODULES} DESTINATION ${CMAKE_INSTALL_LIBDIR}/addend COMPONENT core)
endif()

# The pkg-config and CMake packages find the installed tree relative to themselves, so any `--prefix` works.
configure_package_config_file(cmake/addendConfig.cmake.in addendConfig.cmake INSTALL_DESTINATION ${AD_PACKAGE_FOLDER})
write_basic_package_version_file(addendConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/addendConfig.cmake ${CMAKE_BINARY_DIR}/addendConfigVersion.cmake
  DESTINATION ${AD_PACKAGE_FOLDER} COMPONENT core)

file(RELATIVE_PATH AD_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" AD_PREFIX_FROM_PC ${AD_PREFIX_FROM_PC})
configure_file(cmake/addend.pc.in addend.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/addend.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT core)
if(AD_TRAINER)
  configure_file(cmake/addend-train.pc.in addend-train.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/addend-train.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT train)
endif()

install(FILES docs/addend.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

# The program itself prints its shell completions, so these have all its commands, options and keys.
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
