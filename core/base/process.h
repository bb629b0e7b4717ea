/* What the kernel reports about this process: how much memory it uses, how much more it could get, its command line and
 * its processors. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H
#include <stddef.h>
#include <stdint.h>
#include "base/internal.h"

/* Returns the process's proportional set size in bytes: each page counts as 1/n of a page if n processes map it.
 * Returns 0 if the kernel does not report it. The kernel walks all mapped pages for it, which takes some milliseconds
 * for each GB. */
AD_INTERNAL size_t ad_process_pss(void);

/* An estimate of how much more memory this process and its children can get. */
enum { AD_LIMIT_PATH = 4096 };
typedef struct ad_memory_room {
  /* Bytes that can still be allocated before the kernel kills processes: what the machine has available, or what is
   * left below the limit of this process's control group or of a group above it, if that is less (containers, batch
   * systems). UINT64_MAX: not known. */
  uint64_t left;
  uint64_t swap;                  /* free swap of the machine, in bytes */
  uint64_t limit;                 /* the lowest limit of these control groups, in bytes; UINT64_MAX: none has a limit */
  char limited_by[AD_LIMIT_PATH]; /* the file that has this limit; "": none has a limit */
} ad_memory_room;
/* Fills *out. `root` is a prefix of /proc and /sys: "" except in tests. */
AD_INTERNAL void ad_process_memory_room(const char *root, ad_memory_room *out);

/* Copies the words of the command line, each with its final 0, as far as they fit. Returns the number of bytes. */
AD_INTERNAL size_t ad_process_command(char *buffer, size_t size);
/* Prints "MODEL NAME (N cores seen)"; N is the number of cores that the process may use. Returns buffer. */
AD_INTERNAL const char *ad_processor_print(char *buffer, size_t size);

#endif
