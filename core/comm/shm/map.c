/* Maps the pages of peers' large buffers before they are read. In each step, chance decides which rank works on
 * which chunk and so reads which page. Every reader therefore maps the whole buffer before its first use: then no later
 * step has to map new pages, and the memory that the kernel counts for each rank is the same in every run. Small
 * buffers are not mapped in advance. */
#include <sys/mman.h>
#include "base/memory.h"
#include "comm/shm/memory.h"
#include "comm/shm/parts.h"

// Bytes of a piece of the shared memory file; a bit for each piece records whether it is mapped. Large blocks start at
// multiples of this number.
static const uint64_t granule = 2u << 20;

ad_status ad_shm_map_begin(shm_world *world) {
  return ad_new(world->control->file_bytes / granule / 64 + 1, &world->mapped);
}

void ad_shm_map_end(shm_world *world) { ad_release(world->mapped); }

static int is_first_time(shm_world *world, uint64_t number) {
  uint64_t *word = &world->mapped[number / 64], bit = 1ull << number % 64;
  int first = !(*word & bit);
  *word |= bit;
  return first;
}

// Maps the pages of part of the shared memory file. If the kernel cannot do that (before Linux 5.14), each page is
// mapped when it is first read.
static void map_pages(const shm_world *world, uint64_t start, uint64_t end) {
#ifdef MADV_POPULATE_READ
  const uint64_t page = 4096;
  start = start / page * page;
  madvise(ad_shm_at(world, start), (end - start + page - 1) / page * page, MADV_POPULATE_READ);
#endif
}

void ad_shm_map_shared(const shm_world *world, const void *memory, size_t bytes) {
  uint64_t start = (uint64_t)((const char *)memory - world->base);
  map_pages(world, start, start + bytes);
}

// Maps those pieces of a large buffer that are not mapped yet.
static void map_buffer(shm_world *world, uint64_t start, uint64_t bytes) {
  uint64_t end = start + bytes, next;
  if (bytes < granule || end > world->control->file_bytes) return;
  for (uint64_t at = start; at < end; at = next) {
    next = (at / granule + 1) * granule;
    if (is_first_time(world, at / granule)) map_pages(world, at, next < end ? next : end);
  }
}

void ad_shm_map_buffers(shm_world *world, const shm_call *c) {
  const ad_call *call = c->call;
  size_t value = ad_call_addend(call) * call->element;
  if (!call->operation->reduces || value < granule) return;
  for (uint32_t i = 0; i < c->channel->members; i++) {
    const shm_slot *slot = ad_shm_slot(c, i);
    size_t outputs = ad_call_results(call) * ad_call_result_size(call, i);
    map_buffer(world, slot->offer.in, ad_call_addends(call, i) * value);
    map_buffer(world, slot->offer.out, outputs * call->out_element);
  }
}
