/* What the kernel reports about this process: how much memory it uses, how much more it could get, its command line and
 * its processors. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H
#include <stddef.h>
#include <stdint.h>
#include "base/internal.h"

/* The process's proportional set size in bytes: a page that n processes map counts as an n-th. 0 if the kernel does not
 * report it. The kernel walks all mapped pages for it, which takes some milliseconds for each GB. */
AD_INTERNAL size_t ad_process_pss(void);

/* How much memory this process and its children can get. */
enum { AD_LIMIT_PATH = 4096 };
typedef struct ad_memory_room {
  /* Bytes that can still be allocated before the kernel kills processes: what the machine has available, or less if a
   * limit of this process's control group, or of one above it, is lower (containers, batch systems). UINT64_MAX: not
   * known. */
  uint64_t left;
  uint64_t swap;                  /* free swap of the machine, in bytes */
  uint64_t limit;                 /* the lowest limit of these control groups, in bytes; UINT64_MAX: there is none */
  char limited_by[AD_LIMIT_PATH]; /* the file with that limit; "": there is none */
} ad_memory_room;
/* Fills *out. `root` is a prefix of /proc and /sys: "" except in tests. */
AD_INTERNAL void ad_process_memory_room(const char *root, ad_memory_room *out);

/* Copies the words of the command line, each with its final 0, as far as they fit; returns the number of bytes. */
AD_INTERNAL size_t ad_process_command(char *buffer, size_t size);
/* Prints "MODEL NAME (N cores seen)", counting the cores available to the process. Returns buffer. */
AD_INTERNAL const char *ad_processor_print(char *buffer, size_t size);

#endif
