/* The page without its data, as cmake/page.cmake puts it together: what stands before them, and what after. */
#ifndef REPORT_PAGE_H
#define REPORT_PAGE_H
#include <stddef.h>

extern const unsigned char ad_page_head[], ad_page_tail[];
extern const size_t ad_page_head_size, ad_page_tail_size;

#endif
