# The report's page is a part of the library: src/report/page.html with ours and the charts' style and script in their places.
set(page ${CMAKE_SOURCE_DIR}/src/report/page)
set(page_source ${CMAKE_BINARY_DIR}/report_page.c)
add_custom_command(OUTPUT ${page_source}
  COMMAND ${CMAKE_COMMAND} -DPAGE=${page}.html -DCSS=${page}.css -DJS=${page}.js -DCHARTS=${DYGRAPHS_FOLDER} -DOUT=${page_source}
    -P ${CMAKE_SOURCE_DIR}/cmake/page.cmake
  DEPENDS ${page}.html ${page}.css ${page}.js ${DYGRAPHS_FOLDER}/dygraph.min.js ${DYGRAPHS_FOLDER}/dygraph.css cmake/page.cmake
  COMMENT "Putting the report's page together" VERBATIM)
target_sources(ad_report PRIVATE ${page_source})
