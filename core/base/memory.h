/* Allocation for addend's own objects, in addition to addend/helpers.h. Every allocation of the library uses these
 * functions, so that a test can make the n-th allocation fail. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H
#include <stddef.h>
#include "addend/helpers.h"
#include "base/internal.h"

/* Grows *array, which may be NULL, to `count` elements of `size` bytes; the new bytes are zero. On failure *array is
 * unchanged. */
AD_INTERNAL AD_CHECKED ad_status ad_grow_bytes(void **array, size_t old_count, size_t count, size_t size);
#define ad_grow(array, old_count, count) ad_grow_bytes((void **)(array), (old_count), (count), sizeof **(array))
/* Like ad_new, but the elements' values are not set: for memory that is written before it is read. */
AD_CHECKED ad_status ad_new_unset_bytes(size_t count, size_t size, void **out);
#define ad_new_unset(count, out) ad_new_unset_bytes((count), sizeof **(out), (void **)(out))
/* Makes sure that *memory, which has *held bytes, has at least `bytes` bytes. If it has fewer, replaces it by new,
 * zeroed memory; the old contents are lost. On failure *memory is NULL and *held is 0. */
AD_CHECKED ad_status ad_make_room(char **memory, size_t *held, size_t bytes);
AD_INTERNAL AD_CHECKED ad_status ad_copy_string(const char *text, char **out);

/* Tests whether the process can allocate this many MiB now, by allocating and freeing them. For calls of libraries
 * that cannot report a failed allocation. If not, returns AD_MEMORY; the message says that `what` needs the memory, and
 * where the limits are set. */
AD_INTERNAL AD_CHECKED ad_status ad_memory_try(const char *what, size_t mebibytes);

/* Asks the kernel for huge pages in this memory: there are fewer page faults, and other processes, which read the
 * memory page by page, are faster. Does not access the memory and cannot fail. */
AD_INTERNAL void ad_prefer_huge_pages(void *memory, size_t bytes);

/* For tests: makes the n-th of the following allocations fail (1 is the next); 0 makes none fail. Returns how many
 * allocations there were since the last call. */
long ad_memory_fail_at(long n);
/* Counts an allocation that another library makes for addend. Returns 0 if a test wants this allocation to fail, else
 * 1. */
int ad_memory_may(void);

#endif
