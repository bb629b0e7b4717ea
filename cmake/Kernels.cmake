# Kernel variants: a file named X_plain.c, X_avx2.c, X_avx512.c or X_avx512fp16.c includes one body and is compiled for that
# instruction set; the choice is made at run time.
foreach(variant avx2 avx512 avx512fp16)
  list(TRANSFORM AD_LAYERS APPEND /*_${variant}.c OUTPUT_VARIABLE patterns)
  file(GLOB ${variant} ${patterns})
endforeach()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(${avx2} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mprfchw")
  set(avx512_options -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprfchw -mprefer-vector-width=512)
  set_source_files_properties(${avx512} PROPERTIES COMPILE_OPTIONS "${avx512_options}")
  set_source_files_properties(${avx512fp16} PROPERTIES COMPILE_OPTIONS
    "${avx512_options};-mavx512fp16;-mavx512bf16")
endif()
