/* Arenas: memory for the activations of one step, taken piece by piece and released all together. */
#ifndef TENSOR_ARENA_H
#define TENSOR_ARENA_H
#include <stddef.h>
#include "addend/status.h"

typedef struct ad_arena ad_arena;
ad_status ad_arena_create(size_t first_bytes, ad_arena **out) AD_CHECKED;
void ad_arena_destroy(ad_arena *arena);
/* Takes `bytes` of memory, aligned to 64 bytes, not zeroed, owned by the arena. Returns NULL without memory; the error
 * message is then set and the arena unchanged. For 0 bytes the pointer is valid, too. */
void *ad_arena_take(ad_arena *arena, size_t bytes);
void *ad_arena_take_zeroed(ad_arena *arena, size_t bytes);
/* Gives back everything that was taken. After a step that needed more memory, the next step of the
 * same size allocates nothing. */
void ad_arena_reset(ad_arena *arena);
/* ad_arena_mark returns the present point; ad_arena_rewind gives back everything that was taken after a point. */
size_t ad_arena_mark(const ad_arena *arena);
void ad_arena_rewind(ad_arena *arena, size_t mark);
size_t ad_arena_peak(const ad_arena *arena); /* the most bytes that were ever in use at the same time */

#endif
