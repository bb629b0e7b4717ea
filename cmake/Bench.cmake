# `addend bench`: bench/*.c is part of the program; what it measures beside addend lies in the folder `peers` next to it. Peers are
# built where they are installed and needed for nothing else.
if(TARGET addend_cli)
  file(GLOB bench CONFIGURE_DEPENDS bench/*.c)
  set(bench_own_programs ${CMAKE_SOURCE_DIR}/bench/attend.c ${CMAKE_SOURCE_DIR}/bench/gemm.c ${CMAKE_SOURCE_DIR}/bench/rank.c)
  list(REMOVE_ITEM bench ${bench_own_programs})
  target_sources(addend_cli PRIVATE ${bench})
  target_include_directories(addend_cli PRIVATE ${CMAKE_SOURCE_DIR} src/trainer)
  target_link_libraries(addend_cli PRIVATE PkgConfig::OPENBLAS PkgConfig::JANSSON Threads::Threads)

  set(AD_PEERS ${CMAKE_BINARY_DIR}/peers)
  file(MAKE_DIRECTORY ${AD_PEERS})
  add_executable(bench_gemm bench/gemm.c bench/library_train.c bench/ways.c bench/worker.c)
  target_include_directories(bench_gemm PRIVATE src/trainer)
  set_target_properties(bench_gemm PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${AD_PEERS})
  target_link_options(bench_gemm PRIVATE -Wl,--wrap=ad_gemm)
  target_link_libraries(bench_gemm PRIVATE ${AD_STATIC} PkgConfig::OPENBLAS PkgConfig::JANSSON)

  add_executable(bench_attention bench/attend.c bench/worker.c)
  target_include_directories(bench_attention PRIVATE src/trainer)
  set_target_properties(bench_attention PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${AD_PEERS})
  foreach(function ad_attention_add ad_attention_back ad_comm_run ad_comm_wait)
    target_link_options(bench_attention PRIVATE -Wl,--wrap=${function})
  endforeach()
  target_link_libraries(bench_attention PRIVATE ${AD_STATIC})

  file(GLOB bench_library CONFIGURE_DEPENDS bench/library*.c)
  add_executable(bench_rank bench/rank.c ${bench_library} bench/pools.c bench/routes.c bench/sides.c bench/worker.c)
  target_include_directories(bench_rank PRIVATE src/trainer)
  set_target_properties(bench_rank PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${AD_PEERS})
  target_link_libraries(bench_rank PRIVATE ${AD_STATIC})
  add_dependencies(bench_rank addend_mpi)
  foreach(module ${AD_MPI_MODULES}) # found beside the program
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

  file(GLOB scripts CONFIGURE_DEPENDS bench/peers/*.py)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME)
    add_custom_command(OUTPUT ${AD_PEERS}/${name}
      COMMAND ${CMAKE_COMMAND} -E copy ${script} ${AD_PEERS}/${name} DEPENDS ${script} VERBATIM)
    list(APPEND peer_scripts ${AD_PEERS}/${name})
  endforeach()
  add_custom_target(peer_scripts ALL DEPENDS ${peer_scripts})
endif()
