/* What the kernel says of this process: how much memory it uses, how much it could still get, its command line and its
 * processors. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H
#include <stddef.h>
#include <stdint.h>
#include "base/internal.h"

/* The process's proportional set size in bytes: of a page that n processes map, it counts an n-th. 0 where the kernel
 * does not say. The kernel walks all mapped pages for it, which takes some milliseconds for a GB. */
AD_INTERNAL size_t ad_process_pss(void);

/* What memory this process and those that it starts may have. */
enum { AD_LIMIT_PATH = 4096 };
typedef struct ad_memory_room {
  /* Bytes that can still be had before the kernel ends processes: what the machine has available, or less if the
   * process's control group, or one above it, has a limit (containers, batch systems). UINT64_MAX where nothing says.
   */
  uint64_t left;
  uint64_t swap;                  /* the machine's that is free, in bytes */
  uint64_t limit;                 /* the smallest limit of those groups in bytes; UINT64_MAX: there is none */
  char limited_by[AD_LIMIT_PATH]; /* the file that says so; "": there is none */
} ad_memory_room;
/* `root` stands before /proc and /sys: "" but in tests. */
AD_INTERNAL void ad_process_memory_room(const char *root, ad_memory_room *out);

/* The words of the command line, each with its 0, as far as there is room for them; returns their bytes. */
AD_INTERNAL size_t ad_process_command(char *buffer, size_t size);
/* "MODEL NAME (N cores seen)": those that the process may run on. Returns buffer. */
AD_INTERNAL const char *ad_processor_print(char *buffer, size_t size);

#endif
