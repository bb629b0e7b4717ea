/* Arenas: memory for the activations of one step, taken piece by piece and released all together. */
#ifndef TENSOR_ARENA_H
#define TENSOR_ARENA_H
#include <stddef.h>
#include "addend/status.h"

typedef struct ad_arena ad_arena;
ad_status ad_arena_create(size_t first_bytes, ad_arena **out) AD_CHECKED;
void ad_arena_destroy(ad_arena *arena);
/* Takes `bytes` of memory, aligned to 64 bytes, not zeroed, owned by the arena; even for 0 bytes the pointer is valid.
 * Returns NULL if there is no memory: the error message is then set and the arena unchanged. */
void *ad_arena_take(ad_arena *arena, size_t bytes);
void *ad_arena_take_zeroed(ad_arena *arena, size_t bytes);
/* Takes all pieces back. If this step took more memory than every earlier one, allocates one chunk as large as its
 * peak, so that another step of the same size allocates nothing. */
void ad_arena_reset(ad_arena *arena);
/* ad_arena_mark returns the present position; ad_arena_rewind takes back all pieces that were taken after that
 * position. */
size_t ad_arena_mark(const ad_arena *arena);
void ad_arena_rewind(ad_arena *arena, size_t mark);
size_t ad_arena_peak(const ad_arena *arena); /* the most bytes that were ever in use at the same time */

#endif
