/* Backend dry: nothing moves. One process acts as any rank of any world, to check types and to plan. Calls leave values
 * unchanged. */
#include <stdint.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/dry.h"
#include "comm/backend.h"
#include "mesh/group.h"

// The header before each piece of memory. All headers form a ring, so that dry_close can free all memory.
typedef struct dry_block {
  struct dry_block *next, *previous;
  uint64_t padding[6];  // the header has 64 bytes, so that the caller's memory stays aligned
} dry_block;

typedef struct dry_world {
  dry_block blocks;  // head of the ring; has no memory
  ad_status failed;
  int64_t ranks_per_node;  // 0: all ranks share one node
  const ad_comm *like;     // the comm that decides which ranks share memory; NULL: the ranks of one node share memory
} dry_world;

enum { ALIGNMENT = 64 };

ad_status ad_comm_open_dry(int64_t rank, int64_t size, ad_comm **out) {
  return ad_comm_open_dry_nodes(rank, size, 0, out);
}

static ad_status open_dry(int64_t rank, int64_t size, int64_t ranks_per_node, const ad_comm *like, ad_comm **out) {
  dry_world *world;
  AD_TRY(ad_new(1, &world));
  world->ranks_per_node = ranks_per_node;
  world->like = like;
  world->blocks.next = world->blocks.previous = &world->blocks;
  return ad_comm_create(&ad_backend_dry, world, rank, size, out);
}

ad_status ad_comm_open_dry_nodes(int64_t rank, int64_t size, int64_t ranks_per_node, ad_comm **out) {
  if (!out)
    return ad_fail(AD_INVALID,
                   "no communicator was opened, because `out` is NULL; pass the address of an ad_comm pointer");
  if (size < 1 || rank < 0 || rank >= size)
    return ad_fail(AD_INVALID, "rank %lld is not in a world of %lld rank%s; pass a rank from 0 to size - 1",
                   (long long)rank, (long long)size, ad_plural(size));
  if (ranks_per_node < 0)
    return ad_fail(AD_INVALID, "`ranks_per_node` is %lld, but must be at least 1, or 0 if all ranks are on one node",
                   (long long)ranks_per_node);
  return open_dry(rank, size, ranks_per_node, NULL, out);
}

ad_status ad_comm_open_dry_like(const ad_comm *like, ad_comm **out) {
  return open_dry(ad_comm_rank(like), ad_comm_size(like), 0, like, out);
}

// Allocates zeroed memory, 64-byte aligned, after its header, and inserts the header in the ring.
static ad_status dry_alloc(void *world, size_t bytes, void **out) {
  dry_world *dry = world;
  char *memory;
  if (bytes > SIZE_MAX / 2) return ad_fail(AD_MEMORY, "no memory for %zu bytes of an ad_comm", bytes);
  size_t whole = (bytes / ALIGNMENT + 1) * ALIGNMENT;  // at least 64 bytes, as in every backend
  AD_TRY(ad_new(whole + sizeof(dry_block) + ALIGNMENT + sizeof(void *), &memory));
  // The allocated memory has, one after the other: the pointer that must be freed, the header, the caller's memory.
  uintptr_t start = ((uintptr_t)memory + sizeof(void *) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  dry_block *block = (dry_block *)start;
  ((void **)start)[-1] = memory;
  block->next = dry->blocks.next;
  block->previous = &dry->blocks;
  block->next->previous = block->previous->next = block;
  *out = block + 1;
  return AD_OK;
}

static void release_block(dry_block *block) {
  block->next->previous = block->previous;
  block->previous->next = block->next;
  ad_release(((void **)block)[-1]);
}

static void dry_free(void *world, void *memory) {
  dry_world *dry = world;
  for (dry_block *block = dry->blocks.next; block != &dry->blocks; block = block->next)
    if (memory == block + 1) {
      release_block(block);
      return;
    }
}

static ad_status dry_health(void *world) { return ((dry_world *)world)->failed; }

// Posts a call, which is complete immediately. A receive from any source gets the group's first rank as its sender.
static ad_status dry_post(void *world, ad_call *call) {
  if (ad_op_is_transfer(call->op))
    call->source = call->peer == AD_ANY_SOURCE ? ad_shape_rank(&call->shape, 0) : call->peer;
  return dry_health(world);
}

static ad_status dry_test(void *world, ad_call *call, int *done) {
  *done = 1;
  return dry_health(world);
}

static ad_status dry_wait(void *world, ad_call *call) { return dry_health(world); }

static void dry_fail(void *world, ad_status cause, const char *message) {
  ((dry_world *)world)->failed = ad_fail(AD_PEER_FAILED, "%s", message);
}

static void dry_close(void *world) {
  dry_world *dry = world;
  while (dry->blocks.next != &dry->blocks) release_block(dry->blocks.next);
  ad_release(dry);
}

// Returns 1 if the group is on one node: a node has consecutive ranks, so this is decided by the group's first and last
// rank.
static int dry_shares(void *world, const ad_group_shape *shape) {
  const dry_world *dry = world;
  if (dry->like) return ad_comm_shares_shape(dry->like, shape);
  int64_t last = shape->base;
  for (int i = 0; i < shape->count; i++) last += (shape->size[i] - 1) * shape->stride[i];
  return !dry->ranks_per_node || shape->base / dry->ranks_per_node == last / dry->ranks_per_node;
}

static ad_status dry_share(void *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out) {
  return dry_alloc(world, bytes, out);
}

static ad_status dry_attach(void *world, size_t bytes, const ad_shared_token *token, void **out) {
  return dry_alloc(world, bytes, out);
}

const ad_backend ad_backend_dry = {
    .name = "dry",
    .alloc = dry_alloc,
    .free = dry_free,
    .shares = dry_shares,
    .share = dry_share,
    .attach = dry_attach,
    .post = dry_post,
    .test = dry_test,
    .wait = dry_wait,
    .fail = dry_fail,
    .health = dry_health,
    .close = dry_close,
};
