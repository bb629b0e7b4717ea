# Builds libaddend from the folders of core/ and audit/, and libaddend_train from those of train/ and programs/, each shared and
# static.
# The trainer links the shared core, so a process that loads both has one core; no object is in both.
# Each folder is an object library ad_FOLDER, with the files of its direct subfolders; deeper ones (comm/mpi/module) are
# in no library. A test of a folder links AD_OBJECTS_UP_TO_FOLDER: the objects of this folder and of all folders before
# it.
set(AD_OBJECTS "")
function(ad_add_layers library)
  foreach(path ${ARGN})
    get_filename_component(layer ${path} NAME)
    file(GLOB sources CONFIGURE_DEPENDS ${path}/*.c ${path}/*/*.c)
    if(AD_LEFT_OUT) # of sources for which a library is missing, or which replace these
      list(FILTER sources EXCLUDE REGEX ${AD_LEFT_OUT})
    endif()
    add_library(ad_${layer} OBJECT ${sources})
    target_compile_definitions(ad_${layer} PRIVATE AD_BUILDING)
    if(library STREQUAL trainer)
      target_include_directories(ad_${layer} PRIVATE train ${AD_TRAINER_INCLUDES})
    elseif(library STREQUAL programs) # no private header of train
      target_include_directories(ad_${layer} PRIVATE programs)
    endif()
    list(APPEND own $<TARGET_OBJECTS:ad_${layer}>)
    list(APPEND AD_OBJECTS $<TARGET_OBJECTS:ad_${layer}>)
    if(layer STREQUAL program) # what links its list of programs links them
      list(APPEND AD_OBJECTS ${AD_OBJECTS_OF_programs})
    endif()
    set(AD_OBJECTS_UP_TO_${layer} ${AD_OBJECTS} PARENT_SCOPE)
  endforeach()
  set(AD_OBJECTS ${AD_OBJECTS} PARENT_SCOPE)
  set(AD_OBJECTS_OF_${library} ${own} PARENT_SCOPE)
endfunction()

# The numbers in the libraries' sonames and in the versions of their exports.map: raised by incompatible changes
# (docs/versioning.md).
set(AD_ABI_core 0)
set(AD_ABI_trainer 0)
# ad_add_library TARGET LIBRARY MAP LIBRARIES...: adds TARGET and TARGET_static. MAP lists the exported symbols.
function(ad_add_library target library map)
  set(map ${CMAKE_SOURCE_DIR}/${map})
  add_library(${target} SHARED ${AD_OBJECTS_OF_${library}})
  add_library(${target}_static STATIC ${AD_OBJECTS_OF_${library}})
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${AD_ABI_${library}} LINK_DEPENDS ${map})
  target_link_options(${target} PRIVATE "-Wl,--version-script=${map}")
  if(NOT AD_SANITIZE AND NOT AD_FUZZ) # with sanitizers, their run time is in the program, so symbols stay undefined
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
  set_target_properties(${target}_static PROPERTIES OUTPUT_NAME ${target})
  foreach(each ${target} ${target}_static)
    target_link_libraries(${each} PRIVATE ${ARGN})
    foreach(folder ${AD_HEADERS_OF_${library}})
      target_include_directories(${each} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/${folder}>)
    endforeach()
    target_include_directories(${each} PUBLIC $<INSTALL_INTERFACE:include>)
  endforeach()
endfunction()

ad_add_layers(core ${AD_CORE_LAYERS})
if(AD_TRAINER)
  set(core_objects ${AD_OBJECTS})
  ad_add_layers(programs ${AD_PROGRAM_LAYERS})
  add_library(ad_programs OBJECT programs/programs.c) # their list
  target_include_directories(ad_programs PRIVATE programs)
  list(APPEND AD_OBJECTS_OF_programs $<TARGET_OBJECTS:ad_programs>)
  set(AD_OBJECTS ${core_objects})
  ad_add_layers(trainer ${AD_TRAINER_LAYERS})
  list(APPEND AD_OBJECTS_OF_trainer ${AD_OBJECTS_OF_programs})
  foreach(path ${AD_PROGRAM_LAYERS})
    get_filename_component(layer ${path} NAME)
    set(AD_OBJECTS_UP_TO_${layer} ${AD_OBJECTS_UP_TO_program})
  endforeach()
  # The commands are in the trainer library too, for users' own programs: ad_main (main.h).
  file(GLOB sources CONFIGURE_DEPENDS cli/frame/*.c train/commands/*.c)
  add_library(ad_cli OBJECT ${sources})
  target_compile_definitions(ad_cli PRIVATE AD_VERSION="${PROJECT_VERSION}")
  target_include_directories(ad_cli PRIVATE ${CMAKE_SOURCE_DIR} ${AD_TRAINER_INCLUDES})
  list(APPEND AD_OBJECTS_OF_trainer $<TARGET_OBJECTS:ad_cli>)
  list(APPEND AD_OBJECTS $<TARGET_OBJECTS:ad_cli>)
  set(AD_OBJECTS_UP_TO_system ${AD_OBJECTS}) # tests/system needs the whole library
endif()
include(cmake/Kernels.cmake)
include(cmake/Pages.cmake)

ad_add_library(addend core core/exports.map ${AD_CORE_LIBRARIES})
set(AD_STATIC addend_static) # the program and the examples link this
if(AD_TRAINER)
  ad_add_library(addend_train trainer train/exports.map ${AD_TRAINER_LIBRARIES} ${AD_CORE_LIBRARIES})
  target_link_libraries(addend_train PUBLIC addend)
  target_link_libraries(addend_train_static PUBLIC addend_static)
  set(AD_STATIC addend_train_static)
  set_target_properties(addend_train PROPERTIES BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
endif()
