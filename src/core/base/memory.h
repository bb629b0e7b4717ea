/* Allocation for addend's own objects, beside addend/memory.h. Every allocation of the library passes here, so that a
 * test can fail the n-th. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H
#include <stddef.h>
#include "addend/memory.h"
#include "base/internal.h"

/* Grows *array (may be NULL) to hold `count` elements of `size` bytes; new bytes are zero; on failure unchanged. */
AD_INTERNAL AD_CHECKED ad_status ad_grow_bytes(void **array, size_t old_count, size_t count, size_t size);
#define ad_grow(array, old_count, count) ad_grow_bytes((void **)(array), (old_count), (count), sizeof **(array))
/* Makes *memory hold at least `bytes`, where it held *held; only new memory is zeroed, and what a smaller one held is
 * lost. On failure both are empty. */
AD_INTERNAL AD_CHECKED ad_status ad_make_room(char **memory, size_t *held, size_t bytes);
AD_INTERNAL AD_CHECKED ad_status ad_copy_string(const char *text, char **out);

/* For libraries that have no error for memory that they cannot have: asks whether the process may have so many more MiB
 * now. AD_MEMORY says that `what` needs them and where the limits are. Nothing is kept. */
AD_INTERNAL AD_CHECKED ad_status ad_memory_try(const char *what, size_t mebibytes);

/* Asks for huge pages where whole ones lie inside this memory: fewer faults, and another process, which reads it page
 * by page, is done sooner. Nothing is touched and nothing can fail. */
AD_INTERNAL void ad_prefer_huge_pages(void *memory, size_t bytes);

/* Tests: the n-th allocation from now on (1 is the next) fails; 0 turns it off. Returns how many were made since the
 * last call. */
long ad_memory_fail_at(long n);

#endif
