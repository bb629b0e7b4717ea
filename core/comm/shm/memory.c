/* Each rank's own region of the shared memory file: a first-fit list of blocks, which is kept in private memory.
 * Pages are made when a block is allocated, so that lack of memory is an error here and not a signal later. */
#include "comm/shm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "base/memory.h"
#include "base/process.h"

struct shm_block {
  shm_block *next;  // the next block by address; begins where this one ends
  uint64_t start, bytes;
  int used;
  int dirty;  // 1: was used before, so it may not be zero
};

// Memory that several ranks share. It is in the region of the rank that made it, and is kept until all ranks have freed
// it.
struct shm_shared {
  shm_shared *next;
  void *memory;
  _Atomic uint32_t *holders;  // in the shared file: how many ranks have not freed the memory yet
  int owned;                  // 1: this rank made it
  int freed;                  // 1: this rank has freed it; other ranks may still use it
};

static const uint64_t unit = 64, large = 2u << 20;  // bytes: alignment of small blocks, and of large ones

static uint64_t region_start(const shm_world *world) {
  return world->control->regions_start + world->rank * world->control->region_bytes;
}

uint64_t ad_shm_offset(const shm_world *world, const void *memory, size_t bytes) {
  uint64_t offset = (uint64_t)((const char *)memory - world->base);
  if (!bytes || (const char *)memory < world->base) return 0;
  return offset >= world->control->regions_start && offset + bytes <= world->control->file_bytes ? offset : 0;
}

static ad_status first_block(shm_world *world) {
  if (world->blocks) return AD_OK;
  AD_TRY(ad_new(1, &world->blocks));
  world->blocks->start = region_start(world);
  world->blocks->bytes = world->control->region_bytes;
  return AD_OK;
}

/* ---- making pages of this rank's region ---- */

static ad_status no_room(size_t bytes, const char *why) {
  return ad_fail(AD_MEMORY, "the %zu bytes of memory that ranks share cannot be allocated, because %s", bytes, why);
}

// Reserves memory before its pages are made. The kernel grants more memory than it has, and kills some process when
// memory runs out. So a large request is first compared with the memory left, minus the bytes of pages that ranks are
// about to make and have not made yet (`promised`).
static ad_status promise(shm_world *world, uint64_t bytes) {
  ad_memory_room room;
  ad_process_memory_room("", &room);
  uint64_t others = atomic_fetch_add(&world->control->promised, bytes), available = room.left;
  if (others <= available && bytes <= available - others) return AD_OK;
  atomic_fetch_sub(&world->control->promised, bytes);
  char why[224];
  snprintf(why, sizeof why,
           "the machine or this process's control group has only %" PRIu64 " bytes left, of which %" PRIu64
           " bytes are promised to other ranks",
           available, others);
  return no_room(bytes, why);
}

// Makes the pages of a piece of the shared memory file. Returns 0 if the kernel has no memory for them.
static int make_piece(const shm_world *world, uint64_t start, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (!madvise(ad_shm_at(world, start), bytes, MADV_POPULATE_WRITE)) return 1;
#endif
  return !fallocate(world->fd, 0, (off_t)start, (off_t)bytes);
}

// Makes the pages piece by piece. While a piece is made, its bytes count twice, as promised and as used; small pieces
// keep this error small. A block this large starts at the beginning of a page.
static ad_status make_many_pages(shm_world *world, uint64_t start, uint64_t bytes) {
  uint64_t made = 0, next = 0, piece = 64u << 20;
  AD_TRY(promise(world, bytes));
  madvise(ad_shm_at(world, start), bytes, MADV_HUGEPAGE);
  for (; made < bytes; made += next) {
    next = bytes - made < piece ? bytes - made : piece;
    if (!make_piece(world, start + made, next)) break;
    atomic_fetch_sub(&world->control->promised, next);
  }
  if (made == bytes) return AD_OK;
  ad_status status = no_room(bytes, strerror(errno));
  atomic_fetch_sub(&world->control->promised, bytes - made);
  uint64_t touched = made + next == bytes ? bytes - 4096 : made + next;  // the last page may be the next block's too
  (void)fallocate(world->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)touched);
  return status;
}

static ad_status make_pages(shm_world *world, const shm_block *block) {
  uint64_t page = 4096, start = block->start / page * page;
  uint64_t bytes = (block->start + block->bytes + page - 1) / page * page - start;
  if (bytes >= large) return make_many_pages(world, start, bytes);
  return make_piece(world, start, bytes) ? AD_OK : no_room(block->bytes, strerror(errno));
}

/* ---- allocating and freeing blocks ---- */

// Splits `block` at `start`; *out is the part that begins there.
static ad_status cut(shm_block *block, uint64_t start, shm_block **out) {
  if (start == block->start) {
    *out = block;
    return AD_OK;
  }
  shm_block *rest;
  AD_TRY(ad_new(1, &rest));
  *rest = (shm_block){block->next, start, block->start + block->bytes - start, 0, block->dirty};
  block->bytes = start - block->start;
  block->next = rest;
  *out = rest;
  return AD_OK;
}

static uint64_t aligned(uint64_t start, uint64_t bytes) {
  uint64_t to = bytes >= large ? large : unit;
  return (start + to - 1) / to * to;
}

static shm_block *find_room(shm_world *world, uint64_t bytes) {
  for (shm_block *block = world->blocks; block; block = block->next) {
    uint64_t lost = aligned(block->start, bytes) - block->start;
    if (!block->used && block->bytes >= lost && block->bytes - lost >= bytes) return block;
  }
  return NULL;
}

// Joins free blocks that are adjacent.
static void join_free(shm_world *world) {
  shm_block *block = world->blocks, *next;
  while (block && (next = block->next)) {
    // A block that was never used is known to be zero; it is not joined with a used block.
    if (block->used || next->used || block->dirty != next->dirty) {
      block = next;
      continue;
    }
    block->bytes += next->bytes;
    block->next = next->next;
    ad_release(next);
  }
}

// Takes a block of `bytes` bytes out of a free one, and makes its pages.
static ad_status take_block(shm_world *world, uint64_t bytes, shm_block **out) {
  shm_block *block, *rest;
  AD_TRY(first_block(world));
  block = find_room(world, bytes);
  if (!block) return no_room(bytes, "the rank's part of the shared memory is full");
  AD_TRY(cut(block, aligned(block->start, bytes), &block));
  if (block->bytes > bytes) AD_TRY(cut(block, block->start + bytes, &rest));
  if (!block->dirty) AD_TRY(make_pages(world, block));
  block->used = 1;
  *out = block;
  return AD_OK;
}

static void free_block(shm_world *world, const void *memory) {
  uint64_t start = (uint64_t)((const char *)memory - world->base);
  for (shm_block *block = world->blocks; block; block = block->next)
    if (block->used && block->start == start) {
      block->used = 0;
      block->dirty = 1;
      join_free(world);
      return;
    }
}

// Frees the memory that this rank made and that all its holders have freed, and the records of memory that other ranks
// made and that this rank has freed.
static void sweep_shared(shm_world *world) {
  for (shm_shared **link = &world->shared; *link;) {
    shm_shared *shared = *link;
    if (!shared->freed || (shared->owned && atomic_load_explicit(shared->holders, memory_order_acquire))) {
      link = &shared->next;
      continue;
    }
    if (shared->owned) {
      free_block(world, shared->memory);
      free_block(world, (const void *)shared->holders);
    }
    *link = shared->next;
    ad_release(shared);
  }
}

ad_status ad_shm_alloc(shm_world *world, size_t bytes, void **out) {
  shm_block *block = NULL;
  if (bytes > world->control->region_bytes) return no_room(bytes, "one rank cannot hold as much");
  sweep_shared(world);
  uint64_t rounded = bytes ? (bytes + unit - 1) / unit * unit : unit;
  ad_status status = take_block(world, rounded, &block);
  if (status) {
    join_free(world);
    return status;
  }
  void *memory = ad_shm_at(world, block->start);
  if (block->dirty) memset(memory, 0, block->bytes);
  *out = memory;
  return AD_OK;
}

static int is_shared(const shm_shared *shared, const void *memory) {
  return shared->memory == memory && !shared->freed;
}

void ad_shm_free(shm_world *world, void *memory) {
  shm_shared *shared = world->shared;
  while (shared && !is_shared(shared, memory)) shared = shared->next;
  if (!shared) {
    free_block(world, memory);
    return;
  }
  shared->freed = 1;
  atomic_fetch_sub_explicit(shared->holders, 1, memory_order_acq_rel);
  sweep_shared(world);
}

// Records that this rank is a holder of memory that it shares with other ranks. `owned` is 1 if this rank made the
// memory.
static ad_status hold(shm_world *world, void *memory, _Atomic uint32_t *holders, int owned) {
  shm_shared *shared;
  AD_TRY(ad_new(1, &shared));
  *shared = (shm_shared){world->shared, memory, holders, owned, 0};
  world->shared = shared;
  return AD_OK;
}

ad_status ad_shm_share(shm_world *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out) {
  void *memory = NULL, *count = NULL;
  AD_TRY(ad_shm_alloc(world, bytes, &memory));
  ad_status status = ad_shm_alloc(world, sizeof holders, &count);
  if (!status) status = hold(world, memory, count, 1);
  if (status) {
    free_block(world, memory);
    if (count) free_block(world, count);
    return status;
  }
  atomic_store_explicit((_Atomic uint32_t *)count, holders, memory_order_release);
  *token = (ad_shared_token){(uint64_t)((char *)memory - world->base), (uint64_t)((char *)count - world->base)};
  *out = memory;
  return AD_OK;
}

ad_status ad_shm_attach(shm_world *world, size_t bytes, const ad_shared_token *token, void **out) {
  void *memory = ad_shm_at(world, token->memory);
  _Atomic uint32_t *holders = ad_shm_at(world, token->holders);
  ad_status status = hold(world, memory, holders, 0);
  if (status) {
    atomic_fetch_sub_explicit(holders, 1, memory_order_acq_rel);
    return status;
  }
  ad_shm_map_shared(world, memory, bytes);
  *out = memory;
  return AD_OK;
}

/* ---- staging buffers ---- */

ad_status ad_shm_take_staging(shm_world *world, void **out) {
  if (!world->staging_count) return ad_shm_alloc(world, SHM_STAGING, out);
  *out = world->stagings[--world->staging_count];
  return AD_OK;
}

void ad_shm_give_staging(shm_world *world, void *staging) {
  if (staging) world->stagings[world->staging_count++] = staging;
}

// Moves those kept staging buffers that no member reads any more to the free ones.
void ad_shm_look_at_kept(shm_world *world) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < world->kept_count; i++) {
    shm_kept *kept = &world->kept[i];
    if (ad_shm_consumed(kept->channel, kept->sequence))
      ad_shm_give_staging(world, kept->staging);
    else
      world->kept[left++] = *kept;
  }
  world->kept_count = left;
}

ad_status ad_shm_keep_staging(shm_world *world, const shm_call *c, void **out) {
  *out = NULL;
  ad_shm_look_at_kept(world);
  if (world->kept_count == SHM_KEPT) return AD_OK;
  AD_TRY(ad_shm_take_staging(world, out));
  world->kept[world->kept_count++] = (shm_kept){c->channel, c->sequence, *out};
  return AD_OK;
}

void ad_shm_free_all(shm_world *world) {
  while (world->shared) {
    shm_shared *next = world->shared->next;
    if (!world->shared->freed) atomic_fetch_sub_explicit(world->shared->holders, 1, memory_order_acq_rel);
    ad_release(world->shared);
    world->shared = next;
  }
  while (world->blocks) {
    shm_block *next = world->blocks->next;
    ad_release(world->blocks);
    world->blocks = next;
  }
}
