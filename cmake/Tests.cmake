# tests/LAYER/test_NAME.c, in the project's folder or in the one that LAYER is in, becomes the test LAYER/NAME and links
# only that layer and those before it; from train/program on also the programs, which recipes name.
# tests/system has tests of the whole library; programs/tests/oracle compares it with numbers that PyTorch computed, which are
# committed there; train/tests/cli has scripts that run the built program; tests/install builds a user's program against an
# installed tree. Label unit: test programs of one layer, of system or of oracle; labels core, audit, train and programs: those of
# that folder; label tsan: tests that also run with the thread sanitizer.
# Sanitizers end a program with exit status 99, which no tested program uses.
set(AD_TEST_ENVIRONMENT
  "ASAN_OPTIONS=exitcode=99:detect_stack_use_after_return=1:strict_string_checks=1"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=exitcode=99:second_deadlock_stack=1:suppressions=${CMAKE_SOURCE_DIR}/tests/support/tsan.supp"
  "OPENBLAS_NUM_THREADS=1")
if(AD_SANITIZE MATCHES "thread") # leaves less than 2 TiB of addresses; 32 ranks reserve 32 times the memory
  list(APPEND AD_TEST_ENVIRONMENT "ADDEND_ADDRESSES=512")
endif()
# `seconds`: the timeout, only to end tests that hang: several times what a test takes with a sanitizer on a machine
# with ten times the load.
function(ad_describe_test name folder seconds)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds} ENVIRONMENT "${AD_TEST_ENVIRONMENT}")
  set_property(TEST ${name} APPEND PROPERTY LABELS ${folder})
  if(folder STREQUAL mpi) # MPI ranks poll while they wait, so they need two cores
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
endfunction()

# A static library, so that a test links only the helpers that it calls, and no layer after its own.
file(GLOB support CONFIGURE_DEPENDS tests/support/*.c)
set(AD_TEST_SUPPORT "")
if(support)
  add_library(ad_test_support STATIC ${support})
  target_include_directories(ad_test_support PRIVATE train)
  target_compile_definitions(ad_test_support PRIVATE AD_TEST_SOURCE="${CMAKE_SOURCE_DIR}")
  set(AD_TEST_SUPPORT ad_test_support)
endif()

set(available "")
set(AD_UNIT_TESTS "") # targets to build for label unit
set(AD_THREAD_TESTS "") # targets to build for label tsan
set(layers_of_tests ${AD_LAYERS})
if(AD_TRAINER)
  list(APPEND layers_of_tests tests/system programs/tests/oracle)
endif()
foreach(path ${layers_of_tests})
  get_filename_component(layer ${path} NAME)
  get_filename_component(folder ${path} DIRECTORY)
  string(REGEX REPLACE "/tests$" "" folder ${folder})
  if(DEFINED AD_OBJECTS_UP_TO_${layer})
    set(available ${AD_OBJECTS_UP_TO_${layer}})
  endif()
  file(GLOB tests CONFIGURE_DEPENDS tests/${layer}/test_*.c ${folder}/tests/${layer}/test_*.c)
  foreach(source ${tests})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE "test_" "" name ${name})
    set(target test_${layer}_${name})
    add_executable(${target} ${source} ${available})
    target_include_directories(${target} PRIVATE tests/support train programs ${AD_TRAINER_INCLUDES})
    target_compile_definitions(${target} PRIVATE AD_TEST_SOURCE="${CMAKE_SOURCE_DIR}") # for files of the source tree
    target_link_libraries(${target} PRIVATE ${AD_TEST_SUPPORT} ${CMOCKA_LIBRARY} ${AD_TRAINER_LIBRARIES} ${AD_CORE_LIBRARIES})
    file(STRINGS ${source} wrapped REGEX "^[a-z].*__wrap_[a-z_]+\\(.*{") # functions that the test puts itself before; found when cmake runs
    foreach(line ${wrapped})
      string(REGEX REPLACE ".*__wrap_([a-z_]+).*" "\\1" function "${line}")
      target_link_options(${target} PRIVATE "LINKER:--wrap=${function}")
    endforeach()
    add_test(NAME ${layer}/${name} COMMAND ${target})
    ad_describe_test(${layer}/${name} ${layer} 900)
    set_property(TEST ${layer}/${name} APPEND PROPERTY LABELS unit ${folder})
    list(APPEND AD_UNIT_TESTS ${target})
    list(APPEND AD_TESTS_OF_${folder} ${target})
    file(STRINGS ${source} threads REGEX "pthread_create|thrd_create|ad_checkpointer_create|ad_work_do" LIMIT_COUNT 1)
    if(threads) # ranks are processes, so the thread sanitizer is of use only in tests that start threads
      set_property(TEST ${layer}/${name} APPEND PROPERTY LABELS tsan)
      list(APPEND AD_THREAD_TESTS ${target})
    endif()
  endforeach()
endforeach()

# dtypes/added adds dtypes by their rows alone: what is made of the list of dtypes is compiled again with these rows, and
# comes before the objects of libaddend.
file(GLOB listed CONFIGURE_DEPENDS core/kernels/kernels_*.c)
add_executable(test_dtypes_added core/tests/dtypes/test_added.c core/base/dtype.c core/array/array.c core/binding/binding.c ${listed})
target_compile_options(test_dtypes_added PRIVATE -include ${CMAKE_SOURCE_DIR}/core/tests/dtypes/rows.h)
target_compile_definitions(test_dtypes_added PRIVATE AD_TEST_SOURCE="${CMAKE_SOURCE_DIR}")
target_include_directories(test_dtypes_added PRIVATE tests/support)
target_link_libraries(test_dtypes_added PRIVATE ${AD_TEST_SUPPORT} addend_static ${CMOCKA_LIBRARY} ${AD_CORE_LIBRARIES})
add_test(NAME dtypes/added COMMAND test_dtypes_added)
ad_describe_test(dtypes/added dtypes 900)
set_property(TEST dtypes/added APPEND PROPERTY LABELS unit core)
list(APPEND AD_UNIT_TESTS test_dtypes_added)
list(APPEND AD_TESTS_OF_core test_dtypes_added)

add_custom_target(unit_tests DEPENDS ${AD_UNIT_TESTS})
add_custom_target(thread_tests DEPENDS ${AD_THREAD_TESTS})
foreach(folder core audit python train programs lab cli) # builds this folder, those before it, and its tests
  add_custom_target(${folder}_tests DEPENDS ${AD_TESTS_OF_${folder}})
endforeach()
if(TARGET addend_cli)
  add_dependencies(python_tests addend_cli addend)
endif()
if(AD_TRAINER AND TARGET addend_cli) # the trainer's tests in Python run the program and load the libraries
  add_dependencies(train_tests addend_cli addend addend_train)
endif()

if(TARGET addend_cli)
  file(GLOB scripts CONFIGURE_DEPENDS core/tests/cli/*.sh audit/tests/cli/*.sh)
  if(AD_TRAINER)
    file(GLOB recipe_scripts CONFIGURE_DEPENDS */tests/cli/*.sh)
    list(APPEND scripts ${recipe_scripts})
    list(REMOVE_DUPLICATES scripts)
  endif()
  foreach(source ${scripts})
    get_filename_component(name ${source} NAME_WE)
    file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${source})
    string(REGEX REPLACE "/.*" "" folder ${folder})
    add_test(NAME cli/${name} COMMAND bash ${source} $<TARGET_FILE:addend_cli> ${CMAKE_SOURCE_DIR})
    ad_describe_test(cli/${name} ${folder} 600)
    if(TARGET ${folder}_tests)
      add_dependencies(${folder}_tests addend_cli)
    endif()
  endforeach()
  foreach(name own_operation report map)
    if(TEST cli/${name})
      set_tests_properties(cli/${name} PROPERTIES SKIP_RETURN_CODE 77)
    endif()
  endforeach()
  # Some scripts run examples, so these must be built before, even if only the program was asked for.
  add_test(NAME examples/built COMMAND ${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR} --target examples)
  ad_describe_test(examples/built examples 600)
  set_tests_properties(examples/built PROPERTIES FIXTURES_SETUP examples)
  foreach(name bridge_example classifier core core_examples dump faults mixer pipeline_example router train_examples two_pools_example)
    if(TEST cli/${name})
      set_tests_properties(cli/${name} PROPERTIES FIXTURES_REQUIRED examples)
    endif()
  endforeach()
endif()

# A user's program has no sanitizer's run time, so it cannot link a library with sanitizers.
if(NOT AD_SANITIZE AND NOT AD_FUZZ AND AD_TRAINER)
  add_test(NAME install/outside_program
    COMMAND bash ${CMAKE_SOURCE_DIR}/tests/install/test_install.sh ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR} ${CMAKE_C_COMPILER})
  ad_describe_test(install/outside_program install 600)
  add_test(NAME install/own_program
    COMMAND bash ${CMAKE_SOURCE_DIR}/tests/install/test_own_program.sh ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR} ${CMAKE_C_COMPILER})
  ad_describe_test(install/own_program install 600)
  add_test(NAME install/core_alone COMMAND bash ${CMAKE_SOURCE_DIR}/tests/install/test_core_alone.sh ${CMAKE_SOURCE_DIR} ${CMAKE_C_COMPILER})
  ad_describe_test(install/core_alone install 600)
  add_test(NAME script/symbols COMMAND python3 ${CMAKE_SOURCE_DIR}/script/check-layers --symbols ${CMAKE_BINARY_DIR})
  ad_describe_test(script/symbols script 120)
  add_test(NAME script/surface COMMAND bash ${CMAKE_SOURCE_DIR}/tests/script/surface.sh ${CMAKE_SOURCE_DIR})
  ad_describe_test(script/surface script 60)
  add_test(NAME script/abi COMMAND python3 ${CMAKE_SOURCE_DIR}/script/abi ${CMAKE_BINARY_DIR})
  ad_describe_test(script/abi script 120)
  set_tests_properties(script/abi PROPERTIES SKIP_RETURN_CODE 77)
  add_test(NAME script/freeze COMMAND bash ${CMAKE_SOURCE_DIR}/tests/script/freeze.sh ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  ad_describe_test(script/freeze script 300)
  add_test(NAME script/torch COMMAND bash ${CMAKE_SOURCE_DIR}/tests/script/torch.sh ${CMAKE_SOURCE_DIR})
  ad_describe_test(script/torch script 120)
  add_test(NAME install/without_tests
    COMMAND bash ${CMAKE_SOURCE_DIR}/tests/install/test_without_tests.sh ${CMAKE_SOURCE_DIR} ${CMAKE_C_COMPILER})
  ad_describe_test(install/without_tests install 600)
  foreach(name wheel trainer_wheel release aarch64 setup)
    add_test(NAME install/${name} COMMAND bash ${CMAKE_SOURCE_DIR}/tests/install/test_${name}.sh ${CMAKE_SOURCE_DIR} ${CMAKE_C_COMPILER})
    ad_describe_test(install/${name} install 1200)
    set_tests_properties(install/${name} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
endif()

# Python: tests/python needs NumPy; tests/torch needs PyTorch and starts ranks; each in the folder python/, of the trainer
# in train/, of what all share in the project's. The python3 that has them is searched when a test runs. Not with
# sanitizers: Python cannot load such a library.
function(ad_add_python_tests group need seconds)
  foreach(folder ${ARGN})
    string(REPLACE "." system label ${folder})
    file(GLOB scripts CONFIGURE_DEPENDS ${folder}/tests/${group}/test_*.py)
    foreach(source ${scripts})
      get_filename_component(name ${source} NAME_WE)
      string(REPLACE "test_" "" name ${group}/${name})
      add_test(NAME ${name} COMMAND bash ${CMAKE_SOURCE_DIR}/tests/support/python.sh ${need} $<TARGET_FILE:addend> ${source})
      ad_describe_test(${name} ${label} ${seconds})
      set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
      if(need STREQUAL torch) # these tests start ranks of gloo
        set_tests_properties(${name} PROPERTIES PROCESSORS 2)
      endif()
    endforeach()
  endforeach()
endfunction()
if(NOT AD_SANITIZE AND NOT AD_FUZZ)
  set(folders python)
  if(AD_TRAINER)
    list(APPEND folders train .)
  endif()
  ad_add_python_tests(python numpy 600 ${folders})
  ad_add_python_tests(torch torch 900 ${folders})
endif()

if(NOT AD_TRAINER)
  return()
endif()

# Backend mpi: each installed implementation's launcher starts programs of tests/mpi and the command line.
file(GLOB programs CONFIGURE_DEPENDS tests/mpi/*.c)
foreach(source ${programs})
  get_filename_component(name ${source} NAME_WE)
  add_executable(mpi_${name} ${source})
  target_link_libraries(mpi_${name} PRIVATE ${AD_STATIC})
  add_dependencies(mpi_${name} addend_mpi)
endforeach()
if(TARGET mpi_sums)
  # The same program as if built with another version of the library: joining ranks of mpi_sums must be refused.
  add_executable(mpi_sums_of_another_version tests/mpi/sums.c core/comm/node.c core/comm/shm/file.c)
  target_compile_definitions(mpi_sums_of_another_version PRIVATE AD_BUILDING AD_NODE_VERSION="0.0.0" AD_SHM_VERSION="0.0.0")
  target_link_libraries(mpi_sums_of_another_version PRIVATE ${AD_STATIC})
endif()
foreach(implementation openmpi mpich)
  add_test(NAME mpi/${implementation}
    COMMAND bash ${CMAKE_SOURCE_DIR}/tests/mpi/launcher.sh ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR} ${implementation})
  ad_describe_test(mpi/${implementation} mpi 900)
  set_tests_properties(mpi/${implementation} PROPERTIES FIXTURES_REQUIRED examples)
endforeach()
add_test(NAME mpi/two_hosts COMMAND bash ${CMAKE_SOURCE_DIR}/tests/mpi/two_hosts.sh ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
ad_describe_test(mpi/two_hosts mpi 900)
if(TARGET bench_rank)
  add_test(NAME mpi/bench_hosts COMMAND bash ${CMAKE_SOURCE_DIR}/lab/tests/mpi/bench_hosts.sh ${CMAKE_BINARY_DIR})
  ad_describe_test(mpi/bench_hosts mpi 900)
  set_tests_properties(mpi/bench_hosts PROPERTIES SKIP_RETURN_CODE 77)
endif()
add_test(NAME mpi/srun COMMAND bash ${CMAKE_SOURCE_DIR}/tests/mpi/srun.sh ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
ad_describe_test(mpi/srun mpi 900)
set_tests_properties(mpi/openmpi mpi/mpich mpi/two_hosts mpi/srun PROPERTIES SKIP_RETURN_CODE 77)

# The test of lab/mutate, which makes its own builds, here of a project with two source files.
if(NOT AD_SANITIZE AND NOT AD_FUZZ)
  add_test(NAME script/mutate COMMAND bash ${CMAKE_SOURCE_DIR}/lab/tests/script/mutate.sh ${CMAKE_SOURCE_DIR})
  ad_describe_test(script/mutate script 600)
  set_tests_properties(script/mutate PROPERTIES SKIP_RETURN_CODE 77)
  add_test(NAME script/environment COMMAND bash ${CMAKE_SOURCE_DIR}/tests/script/environment.sh ${CMAKE_SOURCE_DIR})
  ad_describe_test(script/environment script 600)
  add_test(NAME script/draw COMMAND bash ${CMAKE_SOURCE_DIR}/tests/script/draw.sh ${CMAKE_SOURCE_DIR})
  ad_describe_test(script/draw script 60)
  add_test(NAME script/turns COMMAND bash ${CMAKE_SOURCE_DIR}/tests/script/turns.sh ${CMAKE_SOURCE_DIR})
  ad_describe_test(script/turns script 120)
endif()

# Costs of the longest tests, so that ctest starts them first and none runs alone at the end. ctest learns costs itself,
# but only with the first run in a build folder.
set(cost 100)
foreach(name examples/built torch/watch mpi/openmpi mpi/mpich comm/launch cli/pools cli/bridge cli/hsdp cli/report check/pool_known_bugs
    cli/check cli/faults check/mutants cli/router tensor/gemm check/result cli/overflow torch/bugs cli/bench cli/decompose_gpt
    cli/parallel cli/moe cli/pools_sources report/document check/derived system/memory comm/conformance)
  if(TEST ${name})
    set_tests_properties(${name} PROPERTIES COST ${cost})
    math(EXPR cost "${cost} - 1")
  endif()
endforeach()
