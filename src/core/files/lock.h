/* One writer to a folder: a lock that ends with the process that holds it, however that ends. */
#ifndef FILES_LOCK_H
#define FILES_LOCK_H
#include "addend/status.h"
#include "base/internal.h"

enum { AD_LOCK_NONE = -1 };

/* Locks the folder by its file .lock, which stays there; *out is for ad_lock_give. One that is held is waited for for a
 * moment, in which a process that was killed is gone. AD_IO names the holder. A file system without locks gets a
 * warning, and *out is AD_LOCK_NONE. */
AD_INTERNAL AD_CHECKED ad_status ad_lock_take(const char *folder, int *out);
AD_INTERNAL void ad_lock_give(int lock); /* AD_LOCK_NONE allowed */

#endif
