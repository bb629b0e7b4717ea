# The Python package's wheel (python/pyproject.toml) has the library and the program beside its modules. Without links, which a wheel
# cannot hold.
add_custom_target(addend_python DEPENDS addend addend_cli addend_mpi)
install(FILES $<TARGET_FILE:addend> DESTINATION addend/_native RENAME libaddend.so COMPONENT python EXCLUDE_FROM_ALL)
install(PROGRAMS $<TARGET_FILE:addend_cli> DESTINATION addend/_native COMPONENT python EXCLUDE_FROM_ALL)
install(FILES ${AD_MPI_MODULES} DESTINATION addend/_native COMPONENT python EXCLUDE_FROM_ALL)
if(SKBUILD)
  foreach(target addend addend_cli)
    target_link_options(${target} PRIVATE -s) # nobody debugs a wheel
  endforeach()
endif()
