/* Does numbered items of work on several threads, with the same outcome as on one thread. */
#ifndef DIFF_THREADS_H
#define DIFF_THREADS_H
#include <stddef.h>
#include "addend/status.h"

/* What to do for the items 0 .. count-1. */
typedef struct ad_work {
  size_t count;
  /* Does item `index`, on any thread. Items are begun in order, so that an item may wait for an earlier one. */
  ad_status (*each)(void *context, size_t index);
  /* Called on the caller's thread, in order of items, when an item and all before it are done. NULL: not called. */
  void (*reported)(void *context, size_t index);
  void *context;
} ad_work;

/* Does all items on at most `threads` threads, the caller's included. After a failure no further item is begun; returns
 * the status and message of the failed item with the smallest index. */
ad_status ad_work_do(const ad_work *work, int threads) AD_CHECKED;

#endif
