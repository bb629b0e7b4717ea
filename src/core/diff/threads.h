/* Work on numbered things by several threads at a time, with the outcome of one thread. */
#ifndef DIFF_THREADS_H
#define DIFF_THREADS_H
#include <stddef.h>
#include "addend/status.h"

typedef struct ad_work {
  size_t count;
  /* Of thing `index`, on any thread. Things are begun in order: all before it have begun, and each of them ends. */
  ad_status (*each)(void *context, size_t index);
  /* On the caller's thread, in order, each after it and all before it are done. NULL: nobody is told. */
  void (*told)(void *context, size_t index);
  void *context;
} ad_work;

/* Does it on `threads` threads at most, the caller's among them; as many as the system gives. Where things fail, none
 * is begun any more, and the first of them in order is what is returned, with its message. */
ad_status ad_work_do(const ad_work *work, int threads) AD_CHECKED;

#endif
