/* What the kernel counts of this process, and what it would still give it. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H
#include <stddef.h>
#include <stdint.h>

/* Proportional set size in bytes: of a page that n processes map, an n-th. 0 where the kernel does not say. It walks
 * all mapped pages: some milliseconds for a GB. */
size_t ad_process_pss(void);

/* Bytes that can still be had before the kernel ends processes: what the machine has available, or less if the
 * process's control group, or one above it, has a limit (containers, batch systems). UINT64_MAX where nothing says.
 * `root` stands before /proc and /sys: "" but in tests. */
uint64_t ad_process_memory_left(const char *root);

#endif
