# Backend mpi: libaddend itself does not link MPI. For each MPI that is installed, a small module is compiled with that
# MPI's compiler wrapper, and loaded at run time by ranks under its launcher. Without MPI, addend works on one machine.
include(GNUInstallDirs)
find_program(AD_MPICC_OPENMPI NAMES mpicc.openmpi HINTS /usr/lib64/openmpi/bin DOC "Open MPI's compiler wrapper")
find_program(AD_MPICC_MPICH NAMES mpicc.mpich HINTS /usr/lib64/mpich/bin DOC "MPICH's compiler wrapper")
set_source_files_properties(core/comm/mpi/launcher.c PROPERTIES COMPILE_DEFINITIONS AD_LIBRARY_FOLDER="${CMAKE_INSTALL_LIBDIR}")
set_source_files_properties(core/comm/node.c core/comm/shm/file.c train/step/provenance.c core/binding/binding.c PROPERTIES COMPILE_DEFINITIONS AD_VERSION="${PROJECT_VERSION}")

set(AD_MPI_MODULES "")
set(AD_MPI_WERROR "")
if(CMAKE_COMPILE_WARNING_AS_ERROR) # the wrapper is called without CMake's own options
  set(AD_MPI_WERROR -Werror)
endif()
foreach(implementation openmpi mpich)
  string(TOUPPER ${implementation} upper)
  set(wrapper ${AD_MPICC_${upper}})
  if(wrapper)
    set(module ${CMAKE_BINARY_DIR}/libaddend-mpi-${implementation}.so)
    add_custom_command(OUTPUT ${module}
      COMMAND ${CMAKE_COMMAND} -E env OMPI_CC=${CMAKE_C_COMPILER} MPICH_CC=${CMAKE_C_COMPILER}
        ${wrapper} -std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Wshadow ${AD_MPI_WERROR}
        -I${CMAKE_SOURCE_DIR}/core ${CMAKE_SOURCE_DIR}/core/comm/mpi/module/transport.c -o ${module}
      DEPENDS ${CMAKE_SOURCE_DIR}/core/comm/mpi/module/transport.c ${CMAKE_SOURCE_DIR}/core/comm/mpi/transport.h
      COMMENT "Building the MPI module for ${implementation}" VERBATIM)
    list(APPEND AD_MPI_MODULES ${module})
  else()
    message(STATUS "Backend mpi: mpicc.${implementation} is not installed, so ranks cannot be started by its launcher")
  endif()
endforeach()
add_custom_target(addend_mpi ALL DEPENDS ${AD_MPI_MODULES})
