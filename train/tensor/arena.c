/* Arenas as lists of chunks; the memory of a chunk comes from base/memory.h. */
#include "tensor/arena.h"

#include <stdint.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"

#if defined(AD_SANITIZED_ADDRESS)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(from, bytes) ((void)(from), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(from, bytes) ((void)(from), (void)(bytes))
#endif

enum { ALIGNMENT = 64 };

typedef struct chunk {
  struct chunk *next, *previous;
  char *data;              // aligned to ALIGNMENT, inside this chunk's allocation
  size_t size, used;       // multiples of ALIGNMENT
  size_t used_in_earlier;  // sum of `used` of all chunks before this one; set when the chunk becomes the current one
} chunk;

struct ad_arena {
  chunk *first, *current;  // both NULL if there is no chunk; chunks after `current` are empty
  size_t peak;
};

/* Returns the bytes that are taken now. */
static size_t in_use(const ad_arena *arena) {
  return arena->current ? arena->current->used_in_earlier + arena->current->used : 0;
}

// Rounds up to a multiple of ALIGNMENT. Returns 0 if the sum of the result and a chunk's header overflows a size_t.
static int round_up(size_t bytes, size_t *out) {
  if (bytes > SIZE_MAX / 2) return 0;
  *out = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return 1;
}

// Takes back a chunk's memory from `used` on. Under the address sanitizer that memory is poisoned, as is the padding
// after each piece. Memory that was never taken is poisoned already, and chunks are large, so that only the part in use
// is poisoned again.
static void give_back_to(chunk *c, size_t used) {
  ASAN_POISON_MEMORY_REGION(c->data + used, c->used - used);
  c->used = used;
}

static ad_status new_chunk(size_t size, chunk **out) {
  void *memory;
  AD_TRY(ad_new_bytes(1, sizeof(chunk) + ALIGNMENT + size, &memory));
  chunk *made = memory;
  made->data = (char *)(((uintptr_t)(made + 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  made->size = size;
  ad_prefer_huge_pages(made->data, size);
  ASAN_POISON_MEMORY_REGION(made->data, size);
  *out = made;
  return AD_OK;
}

static void insert_after_current(ad_arena *arena, chunk *made) {
  chunk *before = arena->current;
  made->previous = before;
  made->next = before ? before->next : arena->first;
  if (made->next) made->next->previous = made;
  if (before) before->next = made;
  if (!before) arena->first = arena->current = made;
}

static void release_chunks(ad_arena *arena) {
  for (chunk *each = arena->first, *next; each; each = next) {
    next = each->next;
    ad_release(each);
  }
  arena->first = arena->current = NULL;
}

ad_status ad_arena_create(size_t first_bytes, ad_arena **out) {
  size_t size;
  if (!round_up(first_bytes, &size)) return ad_fail(AD_MEMORY, "no memory for an arena of %zu bytes", first_bytes);
  ad_arena *arena;
  AD_TRY(ad_new(1, &arena));
  chunk *first;
  ad_status status = new_chunk(size, &first);
  if (status) {
    ad_release(arena);
    return status;
  }
  insert_after_current(arena, first);
  *out = arena;
  return AD_OK;
}

void ad_arena_destroy(ad_arena *arena) {
  if (!arena) return;
  release_chunks(arena);
  ad_release(arena);
}

// Finds or makes a chunk after the current one with room for `size` bytes. Each new chunk has twice the size of the
// last, so that a step makes few of them.
static ad_status next_chunk(ad_arena *arena, size_t size, chunk **out) {
  chunk *next = arena->current ? arena->current->next : arena->first;
  if (!next || next->size < size) {
    size_t doubled = 2 * in_use(arena);
    AD_TRY(new_chunk(size > doubled ? size : doubled, &next));
    insert_after_current(arena, next);
  }
  *out = next;
  return AD_OK;
}

static void *take_from_current(ad_arena *arena, size_t bytes, size_t size) {
  void *taken = arena->current->data + arena->current->used;
  ASAN_UNPOISON_MEMORY_REGION(taken, bytes);
  arena->current->used += size;
  if (in_use(arena) > arena->peak) arena->peak = in_use(arena);
  return taken;
}

void *ad_arena_take(ad_arena *arena, size_t bytes) {
  size_t size;
  if (!round_up(bytes ? bytes : 1, &size)) {
    ad_fail(AD_MEMORY, "no memory for %zu bytes in an arena", bytes);
    return NULL;
  }
  if (!arena->current || arena->current->size - arena->current->used < size) {
    size_t used = in_use(arena);
    chunk *next;
    if (next_chunk(arena, size, &next)) return NULL;
    next->used_in_earlier = used;
    arena->current = next;
  }
  return take_from_current(arena, bytes, size);
}

void *ad_arena_take_zeroed(ad_arena *arena, size_t bytes) {
  void *taken = ad_arena_take(arena, bytes);
  return taken ? memset(taken, 0, bytes) : NULL;
}

void ad_arena_reset(ad_arena *arena) {
  ad_arena_rewind(arena, 0);
  if (!arena->first || !arena->first->next) return;
  // Replaces the chunks by one of the peak size, so that the next step finds all its memory in one chunk. If that
  // allocation fails, the arena is empty and takes chunks again when it needs them.
  release_chunks(arena);
  chunk *whole;
  if (!new_chunk(arena->peak, &whole)) insert_after_current(arena, whole);
}

size_t ad_arena_mark(const ad_arena *arena) { return in_use(arena); }

void ad_arena_rewind(ad_arena *arena, size_t mark) {
  chunk *current = arena->current;
  for (; current && current->previous && mark <= current->used_in_earlier; current = current->previous)
    give_back_to(current, 0);
  arena->current = current;
  if (current) give_back_to(current, mark - current->used_in_earlier);
}

size_t ad_arena_peak(const ad_arena *arena) { return arena->peak; }
