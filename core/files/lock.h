/* A lock, so that a folder has only one writer. It ends when the process that has it ends, for any reason. */
#ifndef FILES_LOCK_H
#define FILES_LOCK_H
#include "addend/status.h"
#include "base/internal.h"

enum { AD_LOCK_NONE = -1 };

/* Locks the folder through its file .lock, which stays there; *out is for ad_lock_give. If another process holds the
 * lock, waits a moment, long enough for a killed process to vanish. AD_IO names the holder. On a file system without
 * locks there is a warning, and *out is AD_LOCK_NONE. */
AD_INTERNAL AD_CHECKED ad_status ad_lock_take(const char *folder, int *out);
AD_INTERNAL void ad_lock_give(int lock); /* AD_LOCK_NONE allowed */

#endif
