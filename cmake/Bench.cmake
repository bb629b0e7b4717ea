# `addend bench`: bench/*.c is part of the program. The peers with which it compares addend are in the folder `peers`
# beside the program; those that are installed are built, and nothing else needs them.
if(TARGET addend_cli)
  file(GLOB bench CONFIGURE_DEPENDS bench/*.c)
  list(REMOVE_ITEM bench ${CMAKE_SOURCE_DIR}/bench/rank.c)
  if(AD_TRAINER)
    file(GLOB bench_trainer CONFIGURE_DEPENDS bench/trainer/*.c)
    list(REMOVE_ITEM bench ${CMAKE_SOURCE_DIR}/bench/without_trainer.c)
    list(REMOVE_ITEM bench_trainer ${CMAKE_SOURCE_DIR}/bench/trainer/attend.c ${CMAKE_SOURCE_DIR}/bench/trainer/gemm.c)
    set(bench_includes ${CMAKE_SOURCE_DIR} train ${AD_TRAINER_INCLUDES})
    set(bench_libraries ${AD_TRAINER_LIBRARIES} ${AD_CORE_LIBRARIES})
  else()
    set(bench_trainer "")
    set(bench_includes ${CMAKE_SOURCE_DIR})
    set(bench_libraries ${AD_CORE_LIBRARIES})
  endif()
  add_library(bench_parts OBJECT ${bench} ${bench_trainer})
  target_include_directories(bench_parts PRIVATE ${bench_includes})
  target_sources(addend_cli PRIVATE $<TARGET_OBJECTS:bench_parts>)
  target_link_libraries(addend_cli PRIVATE ${bench_libraries})

  set(AD_PEERS ${CMAKE_BINARY_DIR}/peers)
  file(MAKE_DIRECTORY ${AD_PEERS})
  # ad_add_bench_program NAME SOURCE FUNCTION...: a program of its own, with all parts, in which calls of the functions can be taken
  function(ad_add_bench_program name source)
    add_executable(${name} ${source} $<TARGET_OBJECTS:bench_parts>)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${AD_PEERS})
    target_include_directories(${name} PRIVATE ${bench_includes})
    foreach(function ${ARGN})
      target_link_options(${name} PRIVATE -Wl,--wrap=${function})
    endforeach()
    target_link_libraries(${name} PRIVATE ${AD_STATIC} ${bench_libraries})
  endfunction()
  if(AD_TRAINER)
    ad_add_bench_program(bench_gemm bench/trainer/gemm.c ad_gemm)
    ad_add_bench_program(bench_attention bench/trainer/attend.c ad_attention_add ad_attention_back ad_comm_run_at ad_comm_wait)
  endif()
  ad_add_bench_program(bench_rank bench/rank.c)
  add_dependencies(bench_rank addend_mpi)
  foreach(module ${AD_MPI_MODULES}) # put beside the program, where it looks for them
    get_filename_component(name ${module} NAME)
    add_custom_command(TARGET bench_rank POST_BUILD
      COMMAND ${CMAKE_COMMAND} -E create_symlink ${module} ${AD_PEERS}/${name} VERBATIM)
  endforeach()

  set(mpi_sources bench/peers/mpi_collectives.c bench/peers/mpi_bridge.c bench/peers/mpi_exchange.c bench/routes.c
    bench/sides.c bench/worker.c)
  list(TRANSFORM mpi_sources PREPEND ${CMAKE_SOURCE_DIR}/)
  foreach(mpi openmpi mpich)
    find_program(AD_MPICC_${mpi} mpicc.${mpi})
    if(AD_MPICC_${mpi})
      set(peer ${AD_PEERS}/mpi_${mpi})
      add_custom_command(OUTPUT ${peer}
        COMMAND ${AD_MPICC_${mpi}} -std=gnu11 -O3 -D_GNU_SOURCE -I${CMAKE_SOURCE_DIR}/bench ${mpi_sources} -o ${peer}
        DEPENDS ${mpi_sources} bench/peers/mpi_bridge.h bench/peers/mpi_exchange.h bench/routes.h bench/sides.h
          bench/worker.h VERBATIM)
      add_custom_target(peer_${mpi} ALL DEPENDS ${peer})
    endif()
  endforeach()

  # deepspeed_shm.cpp is compiled when it is measured. The peers' scripts find the Python package beside them.
  file(GLOB scripts CONFIGURE_DEPENDS bench/peers/*.py bench/peers/*.cpp)
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/python/addend ${AD_PEERS}/addend SYMBOLIC)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME)
    add_custom_command(OUTPUT ${AD_PEERS}/${name}
      COMMAND ${CMAKE_COMMAND} -E copy ${script} ${AD_PEERS}/${name} DEPENDS ${script} VERBATIM)
    list(APPEND peer_scripts ${AD_PEERS}/${name})
  endforeach()
  add_custom_target(peer_scripts ALL DEPENDS ${peer_scripts})
endif()
