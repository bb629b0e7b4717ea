/* Allocation, with a counter with which tests make any single allocation fail. The memory pools of tapes are in
 * train/tensor/arena.c. */
#include "base/memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/error.h"

static atomic_long allocations_made;
// number of the allocation that will fail, in the count of allocations_made; 0: none
static atomic_long failing_allocation;

long ad_memory_fail_at(long n) {
  atomic_store(&failing_allocation, 0);
  long made = atomic_exchange(&allocations_made, 0);
  atomic_store(&failing_allocation, n);
  return made;
}

int ad_memory_may(void) {
  long number = atomic_fetch_add(&allocations_made, 1) + 1;
  return number != atomic_load_explicit(&failing_allocation, memory_order_relaxed);
}

static ad_status no_memory(size_t count, size_t size) {
  ad_fail(AD_MEMORY, "no memory for %zu elements of %zu bytes each", count, size);
  return AD_MEMORY;
}

// `place` is the address of a pointer of any type, so the pointer is written as bytes
static void set_pointer(void *place, void *value) { memcpy(place, &value, sizeof value); }

// Sets *out to count * size, but at least 1, so that an allocation of 0 bytes has an address, too. Returns 0 if the
// product overflows.
static int allocation_size(size_t count, size_t size, size_t *out) {
  if (__builtin_mul_overflow(count, size, out)) return 0;
  *out += !*out;
  return 1;
}

ad_status ad_new_bytes(size_t count, size_t size, void **out) {
  AD_NEED(out);
  size_t bytes;
  void *memory = allocation_size(count, size, &bytes) && ad_memory_may() ? calloc(1, bytes) : NULL;
  if (!memory) return no_memory(count, size);
  set_pointer(out, memory);
  return AD_OK;
}

ad_status ad_new_unset_bytes(size_t count, size_t size, void **out) {
  size_t bytes;
  void *memory = allocation_size(count, size, &bytes) && ad_memory_may() ? malloc(bytes) : NULL;
  if (!memory) return no_memory(count, size);
  set_pointer(out, memory);
  return AD_OK;
}

ad_status ad_grow_bytes(void **array, size_t old_count, size_t count, size_t size) {
  void *old;
  memcpy(&old, array, sizeof old);
  if (old && count <= old_count) return AD_OK;
  size_t bytes, kept = old ? old_count * size : 0;
  char *memory = allocation_size(count, size, &bytes) && ad_memory_may() ? realloc(old, bytes) : NULL;
  if (!memory) return no_memory(count, size);
  memset(memory + kept, 0, bytes - kept);
  set_pointer(array, memory);
  return AD_OK;
}

ad_status ad_make_room(char **memory, size_t *held, size_t bytes) {
  if (*memory && bytes <= *held) return AD_OK;
  ad_release(*memory);
  *memory = NULL;
  *held = 0;
  AD_TRY(ad_new(bytes, memory));
  *held = bytes;
  return AD_OK;
}

ad_status ad_copy_string(const char *text, char **out) {
  size_t size = strlen(text) + 1;
  char *copy;
  AD_TRY(ad_new(size, &copy));
  memcpy(copy, text, size);
  *out = copy;
  return AD_OK;
}

void ad_release(void *pointer) { free(pointer); }

ad_status ad_memory_try(const char *what, size_t mebibytes) {
  size_t bytes = mebibytes << 20;
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return ad_fail(AD_MEMORY,
                   "no memory for %s: this process cannot get the %zu MiB of address space that are needed (%s); raise "
                   "ulimit -v and ulimit -d",
                   what, mebibytes, strerror(errno));
  munmap(memory, bytes);
  return AD_OK;
}

void ad_prefer_huge_pages(void *memory, size_t bytes) {
  const uintptr_t page = (uintptr_t)2 << 20, at = (uintptr_t)memory;
  uintptr_t start = (at + page - 1) / page * page, end = (at + bytes) / page * page;
  if (start < end) (void)madvise((char *)memory + (start - at), end - start, MADV_HUGEPAGE);
}
