/* What the kernel counts of this process. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H
#include <stddef.h>

/* Proportional set size in bytes: of a page that n processes map, an n-th. 0 where the kernel does not say. It walks
 * all mapped pages: some milliseconds for a GB. */
size_t ad_process_pss(void);

#endif
