/* Does numbered items of work on several threads, with the same outcome as on one thread. */
#ifndef DIFF_THREADS_H
#define DIFF_THREADS_H
#include <stddef.h>
#include "addend/status.h"

/* Items of work, numbered 0 .. count-1, and the function that does each item. */
typedef struct ad_work {
  size_t count;
  /* Does item `index`; may run on any thread. Items are begun in order, so an item may wait for an earlier one. */
  ad_status (*each)(void *context, size_t index);
  /* Called on the caller's thread for each item, in order of items, when this item and all earlier items are done.
   * NULL: not called. */
  void (*reported)(void *context, size_t index);
  void *context;
} ad_work;

/* Does all items on at most `threads` threads, including the caller's thread. After a failure no further item is begun.
 * Returns the status and message of the failed item with the smallest index. */
ad_status ad_work_do(const ad_work *work, int threads) AD_CHECKED;

#endif
