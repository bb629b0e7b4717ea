# The libraries that addend needs; docs/running.md says what each is for. script/setup installs them or names them. All
# missing libraries are reported in one message, not one after another.
set(AD_MISSING "")
find_package(PkgConfig QUIET)
find_package(Threads REQUIRED)

# ad_need NAME MODULE: makes the target PkgConfig::NAME from pkg-config's module MODULE
macro(ad_need name module)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(${name} QUIET IMPORTED_TARGET ${module})
  endif()
  if(NOT ${name}_FOUND)
    list(APPEND AD_MISSING ${module})
  endif()
endmacro()

# ad_need_path VARIABLE FILE WORDS: sets VARIABLE to the folder that has FILE; WORDS name it if it is missing
macro(ad_need_path variable file words)
  find_path(${variable} ${file} ${ARGN})
  if(NOT ${variable})
    list(APPEND AD_MISSING "${words}")
  endif()
endmacro()

# ad_need_all WHAT [WORDS]: stops with an error if anything that the calls before asked for is missing
macro(ad_need_all what)
  if(NOT PKG_CONFIG_FOUND)
    list(PREPEND AD_MISSING pkg-config)
  endif()
  if(AD_MISSING)
    list(REMOVE_DUPLICATES AD_MISSING)
    string(REPLACE ";" ", " missing "${AD_MISSING}")
    message(FATAL_ERROR "${what} needs libraries that are missing: ${missing}; script/setup in addend's folder installs them, or names this system's packages${ARGN}")
  endif()
endmacro()

# libaddend
ad_need(JANSSON jansson)
ad_need(XXHASH libxxhash)
ad_need_path(RANDOM123_INCLUDE Random123/philox.h "Random123 (Random123/philox.h)")
if(NOT AD_TRAINER)
  ad_need_all("addend's core")
endif()
set(AD_CORE_INCLUDES ${JANSSON_INCLUDE_DIRS} ${XXHASH_INCLUDE_DIRS} ${RANDOM123_INCLUDE})
set(AD_CORE_LIBRARIES PkgConfig::JANSSON PkgConfig::XXHASH Threads::Threads ${CMAKE_DL_LIBS} m)
if(NOT AD_TRAINER)
  return()
endif()

# libaddend_train
ad_need(OPENBLAS openblas)
ad_need(YAML yaml-0.1)
ad_need(FREETYPE freetype2)
ad_need_path(DYGRAPHS_FOLDER dygraph.min.js "dygraphs (-DDYGRAPHS_FOLDER=FOLDER names the one that has dygraph.min.js and dygraph.css)"
  PATHS /usr/share/javascript/dygraphs)
ad_need_all("addend with its trainer" "; -DAD_TRAINER=OFF builds the core, which needs less")
# oneDNN computes bf16 matrix products. Without it OpenBLAS computes them in f32.
find_path(ONEDNN_INCLUDE oneapi/dnnl/dnnl.h)
find_library(ONEDNN_LIBRARY dnnl)
if(ONEDNN_INCLUDE AND ONEDNN_LIBRARY)
  file(STRINGS ${ONEDNN_INCLUDE}/oneapi/dnnl/dnnl_config.h ONEDNN_THREADS REGEX "#define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_(OMP|SEQ|THREADPOOL)")
  if(ONEDNN_THREADS)
    set(AD_ONEDNN_INCLUDE ${ONEDNN_INCLUDE})
    set(AD_ONEDNN_LIBRARY ${ONEDNN_LIBRARY})
    set_source_files_properties(train/products/gemm_onednn.c PROPERTIES COMPILE_DEFINITIONS AD_ONEDNN)
  else()
    message(WARNING "matrix products of bf16 are slow: this oneDNN (${ONEDNN_LIBRARY}) cannot be limited to one thread per rank, so it is not used; install one that was built with OpenMP (Debian: libdnnl-dev)")
  endif()
else()
  message(WARNING "matrix products of bf16 are slow: oneDNN is missing; script/setup installs it (Debian: libdnnl-dev)")
endif()
set(AD_TRAINER_INCLUDES ${OPENBLAS_INCLUDE_DIRS} ${YAML_INCLUDE_DIRS} ${FREETYPE_INCLUDE_DIRS} ${AD_ONEDNN_INCLUDE})
set(AD_TRAINER_LIBRARIES PkgConfig::OPENBLAS PkgConfig::YAML PkgConfig::FREETYPE ${AD_ONEDNN_LIBRARY})
