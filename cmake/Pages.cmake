# Builds the HTML pages into the libraries: an HTML file with styles and scripts inserted. Files that all pages share
# are in core/files/.
function(ad_add_page layer name page)
  set(source ${CMAKE_BINARY_DIR}/${name}.c)
  set(parts ${CMAKE_SOURCE_DIR}/core/files/common.css ${CMAKE_SOURCE_DIR}/core/files/elements.js ${ARGN})
  string(REPLACE ";" "|" listed "${parts}")
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DNAME=${name} -DPAGE=${page} -DPARTS=${listed} -DOUT=${source} -P ${CMAKE_SOURCE_DIR}/cmake/page.cmake
    DEPENDS ${page} ${parts} cmake/page.cmake
    COMMENT "Putting a page together: ${name}" VERBATIM)
  target_sources(ad_${layer} PRIVATE ${source})
endfunction()

set(say ${CMAKE_SOURCE_DIR}/audit/say)
set(causes ${CMAKE_SOURCE_DIR}/audit/docs/explain)
file(GLOB explained CONFIGURE_DEPENDS ${causes}/*.md)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/causes.js ${CMAKE_BINARY_DIR}/ad_guide_pages.c
  COMMAND ${CMAKE_COMMAND} -DTABLE=${say}/causes.h -DPAGES=${causes} -DWORDS=${CMAKE_BINARY_DIR}/causes.js
    -DGUIDE=${CMAKE_BINARY_DIR}/ad_guide_pages.c -P ${CMAKE_SOURCE_DIR}/cmake/causes.cmake
  DEPENDS ${say}/causes.h ${explained} cmake/causes.cmake
  COMMENT "Putting the words and pages of causes together" VERBATIM)
target_sources(ad_say PRIVATE ${CMAKE_BINARY_DIR}/ad_guide_pages.c)
ad_add_page(say ad_map_page ${say}/map.html ${say}/map.css ${CMAKE_BINARY_DIR}/causes.js ${say}/map.js)
if(AD_TRAINER)
  set(report ${CMAKE_SOURCE_DIR}/train/report)
  ad_add_page(report ad_report_page ${report}/page.html ${report}/page.css ${report}/shapes.js ${report}/page.js
    ${DYGRAPHS_FOLDER}/dygraph.min.js ${DYGRAPHS_FOLDER}/dygraph.css)
endif()
