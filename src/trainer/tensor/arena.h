/* Arenas: memory for one step's activations, taken piece by piece and given back all at once. */
#ifndef TENSOR_ARENA_H
#define TENSOR_ARENA_H
#include <stddef.h>
#include "addend/status.h"

typedef struct ad_arena ad_arena;
ad_status ad_arena_create(size_t first_bytes, ad_arena **out) AD_CHECKED;
void ad_arena_destroy(ad_arena *arena);
/* Takes `bytes` of memory, 64-byte aligned, not zeroed, the arena's. NULL when there is no memory (the message is
 * recorded, the arena unchanged). 0 bytes give a valid pointer. */
void *ad_arena_take(ad_arena *arena, size_t bytes);
void *ad_arena_take_zeroed(ad_arena *arena, size_t bytes);
/* Gives back everything taken. After a step that needed more, the next step of the same size allocates nothing. */
void ad_arena_reset(ad_arena *arena);
/* ad_arena_mark gives a point to return to; ad_arena_rewind gives back everything taken after it. */
size_t ad_arena_mark(const ad_arena *arena);
void ad_arena_rewind(ad_arena *arena, size_t mark);
size_t ad_arena_peak(const ad_arena *arena); /* most bytes ever in use at once */

#endif
