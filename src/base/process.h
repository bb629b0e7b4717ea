/* What the kernel says of this process: how much memory it uses, how much it could still get, its command line and its
 * processors. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H
#include <stddef.h>
#include <stdint.h>

/* The process's proportional set size in bytes: of a page that n processes map, it counts an n-th. 0 where the kernel
 * does not say. The kernel walks all mapped pages for it, which takes some milliseconds for a GB. */
size_t ad_process_pss(void);

/* Bytes that can still be had before the kernel ends processes: what the machine has available, or less if the
 * process's control group, or one above it, has a limit (containers, batch systems). UINT64_MAX where nothing says.
 * `root` stands before /proc and /sys: "" but in tests. */
uint64_t ad_process_memory_left(const char *root);

/* The words of the command line, each with its 0, as far as there is room for them; returns their bytes. */
size_t ad_process_command(char *buffer, size_t size);
/* "MODEL NAME (N cores seen)": those that the process may run on. Returns buffer. */
const char *ad_processor_print(char *buffer, size_t size);

#endif
