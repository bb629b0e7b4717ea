# The native parts of the Python wheels. The wheel of python/ (AD_TRAINER=OFF) has the core library and the program
# without the trainer's commands. The wheel of train/python/ has the program with all commands and the trainer library,
# which finds the core in the folder `addend` beside its own. A wheel cannot have links, so libraries are named by
# soname.
if(AD_TRAINER)
  set(AD_NATIVE addend_train/_native)
  set(AD_WHEEL_LIBRARY addend_train)
else()
  set(AD_NATIVE addend/_native)
  set(AD_WHEEL_LIBRARY addend)
endif()
add_custom_target(addend_python DEPENDS ${AD_WHEEL_LIBRARY} addend_cli addend_mpi)
if(SKBUILD)
  foreach(target ${AD_WHEEL_LIBRARY} addend_cli)
    target_link_options(${target} PRIVATE -s) # strip: wheels are not debugged
  endforeach()
  if(AD_TRAINER)
    set_target_properties(addend_train PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../../addend/_native")
  endif()
  install(FILES $<TARGET_FILE:${AD_WHEEL_LIBRARY}> DESTINATION ${AD_NATIVE} RENAME $<TARGET_SONAME_FILE_NAME:${AD_WHEEL_LIBRARY}>
    COMPONENT python EXCLUDE_FROM_ALL)
  install(PROGRAMS $<TARGET_FILE:addend_cli> DESTINATION ${AD_NATIVE} COMPONENT python EXCLUDE_FROM_ALL)
  install(FILES ${AD_MPI_MODULES} DESTINATION ${AD_NATIVE} COMPONENT python EXCLUDE_FROM_ALL)
  install(FILES THIRD-PARTY.md DESTINATION ${SKBUILD_METADATA_DIR}/licenses COMPONENT python EXCLUDE_FROM_ALL)
endif()
