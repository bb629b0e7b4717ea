/* A lock that only one process can hold, so that a folder has only one writer. The lock is released when its process
 * ends, for any reason. */
#ifndef FILES_LOCK_H
#define FILES_LOCK_H
#include "addend/status.h"
#include "base/internal.h"

enum { AD_LOCK_NONE = -1 };

/* Locks the folder through a file .lock in it, which remains there; *out is the lock, for ad_lock_give. If another
 * process holds the lock, waits up to two seconds, long enough for a killed process to vanish; then AD_IO names the
 * process. On a file system without locks, warns and sets *out to AD_LOCK_NONE. */
AD_INTERNAL AD_CHECKED ad_status ad_lock_take(const char *folder, int *out);
AD_INTERNAL void ad_lock_give(int lock); /* releases the lock; AD_LOCK_NONE allowed */

#endif
