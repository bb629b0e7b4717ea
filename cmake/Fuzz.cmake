# */tests/fuzz/fuzz_NAME.c becomes the fuzzer fuzz_NAME; its first inputs are in corpus/NAME beside it. Target `fuzzers`
# builds all.
add_custom_target(fuzzers)
file(GLOB fuzzers CONFIGURE_DEPENDS */tests/fuzz/fuzz_*.c)
foreach(source ${fuzzers})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} EXCLUDE_FROM_ALL ${source} ${AD_OBJECTS})
  target_include_directories(${name} PRIVATE train)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE ${AD_TRAINER_LIBRARIES} ${AD_CORE_LIBRARIES})
  add_dependencies(fuzzers ${name})
endforeach()
