/* Memory that buckets use one after another (from ZeRO 2 on). A bucket has N elements; after a reduce_scatter over s
 * ranks, N / s are left. If every microbatch is sent, the memory of the N elements is needed only from the bucket's
 * first gradient until all ranks have read it. Therefore buckets of one key share slots: one slot is filled while
 * another is summed.
 *
 * The choice of a slot depends on which buckets were launched, never on which sums are complete. Therefore every rank,
 * and backend dry, chooses the same slot. */
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "reduce/reducer.h"

enum {
  LEAST = 2
}; /* least number of slots in a window: one to fill and one to sum; each further bucket that is filled adds one */

/* ---- which buckets share slots ---- */

static size_t bytes_of_bucket(const ad_bucket *bucket) { return ad_array_bytes(&bucket->sent); }

static ad_window *window_of(ad_reducer *reducer, const ad_bucket *bucket) {
  return &reducer->windows[bucket->turn.window];
}

/* Returns the size of the slot that a bucket needs: the window's usual size, or the bucket's own size if that is larger
 * (a single parameter may exceed bucket_bytes). */
static size_t slot_bytes(const ad_window *window, const ad_bucket *bucket) {
  size_t bytes = bytes_of_bucket(bucket);
  return bytes < window->usual_bytes ? window->usual_bytes : bytes;
}

static int is_usual(const ad_reducer *reducer, const ad_bucket *bucket) {
  return bytes_of_bucket(bucket) <= ad_bucket_group(reducer, bucket)->bucket_bytes;
}

/* Gives the bucket the window of an earlier bucket with the same key, or a new window if there is none. */
static ad_status join_window(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  for (size_t i = 0; i < index && bucket->turn.window < 0; i++)
    if (ad_bucket_keys_are_identical(&reducer->buckets[i].key, &bucket->key))
      bucket->turn.window = reducer->buckets[i].turn.window;
  if (bucket->turn.window < 0) {
    AD_TRY(ad_grow(&reducer->windows, reducer->window_count, reducer->window_count + 1));
    bucket->turn.window = (int)reducer->window_count++;
  }
  ad_window *window = window_of(reducer, bucket);
  if (is_usual(reducer, bucket) && bytes_of_bucket(bucket) > window->usual_bytes)
    window->usual_bytes = bytes_of_bucket(bucket);
  return AD_OK;
}

/* Returns 1 if LEAST slots take less memory than a buffer for each bucket of the window, else 0. */
static int saves(const ad_reducer *reducer, int window) {
  size_t all = 0, largest = 0;
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    const ad_bucket *bucket = &reducer->buckets[i];
    if (bucket->turn.window != window) continue;
    all += bytes_of_bucket(bucket);
    if (bytes_of_bucket(bucket) > largest) largest = bytes_of_bucket(bucket);
  }
  return all > LEAST * largest;
}

static void leave_window(ad_reducer *reducer, int window) {
  for (size_t i = 0; i < reducer->bucket_count; i++)
    if (reducer->buckets[i].turn.window == window) reducer->buckets[i].turn.window = -1;
}

ad_status ad_slots_build(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    reducer->buckets[i].turn.window = -1;
    reducer->buckets[i].turn.slot = AD_NO_SLOT;
    const ad_bucket_key *key = &reducer->buckets[i].key;
    int reuses = ad_bucket_group(reducer, &reducer->buckets[i])->reuses;
    int shares = reuses && key->scatters && key->early && !key->lasting;
    if (shares) AD_TRY(join_window(reducer, i));
  }
  for (int w = 0; w < (int)reducer->window_count; w++)
    if (!saves(reducer, w)) leave_window(reducer, w);
  return AD_OK;
}

void ad_slots_release(ad_reducer *reducer) {
  for (size_t w = 0; w < reducer->window_count; w++) {
    ad_window *window = &reducer->windows[w];
    for (size_t i = 0; i < window->count; i++) ad_comm_free(reducer->comm, window->slots[i].memory);
    ad_release(window->slots);
  }
  ad_release(reducer->windows);
}

/* ---- taking a slot for a bucket ---- */

static void point_to(ad_bucket *bucket, void *memory) {
  bucket->sent.data = memory;
  if (ad_bucket_is_one_array(bucket)) bucket->partial.data = memory;
  if (bucket->stack.levels) bucket->stack.memory = memory;
}

/* Takes the slot from its bucket: pointers into a slot are valid only until the bucket in it is sent. On backend
 * hostile the slot is overwritten, to expose callers that still use such a pointer. */
static void give_up(ad_reducer *reducer, ad_window *window, size_t slot) {
  ad_bucket *holder = &reducer->buckets[window->slots[slot].holder];
  point_to(holder, NULL);
  holder->turn.slot = AD_NO_SLOT;
  if (window->slots[slot].memory && !strcmp(ad_comm_backend(reducer->comm), "hostile"))
    memset(window->slots[slot].memory, 0xff, window->slots[slot].bytes);
}

static void take_slot(ad_reducer *reducer, size_t index, size_t slot) {
  ad_bucket *bucket = &reducer->buckets[index];
  ad_window *window = window_of(reducer, bucket);
  window->slots[slot].holder = index;
  bucket->turn.slot = slot;
  bucket->turn.is_sent_off = 0;
  bucket->turn.claim = window->claims++;
  point_to(bucket, window->slots[slot].memory);
}

void ad_slot_send_off(ad_reducer *reducer, ad_bucket *bucket) {
  bucket->turn.is_sent_off = 1;
  bucket->turn.launch = reducer->launches++;
  if (bucket->turn.window < 0) return;
  size_t since = (size_t)(window_of(reducer, bucket)->claims - bucket->turn.claim - 1);
  if (since > bucket->turn.overtaken) bucket->turn.overtaken = since;
}

/* The slots of a window that are large enough for a bucket. */
typedef struct fitting {
  size_t count;
  size_t sent_off; /* number of these slots whose bucket was launched */
  size_t oldest;   /* the slot whose bucket was launched first; AD_NO_SLOT: no bucket was launched */
} fitting;

static fitting look_for_slots(const ad_reducer *reducer, const ad_window *window, size_t bytes) {
  fitting seen = {.oldest = AD_NO_SLOT};
  for (size_t i = 0; i < window->count; i++) {
    const ad_bucket *holder = &reducer->buckets[window->slots[i].holder];
    if (window->slots[i].bytes < bytes) continue;
    seen.count++;
    if (!holder->turn.is_sent_off) continue;
    int is_older =
        !seen.sent_off++ || holder->turn.launch < reducer->buckets[window->slots[seen.oldest].holder].turn.launch;
    if (is_older) seen.oldest = i;
  }
  return seen;
}

static ad_status refuse_window(const ad_reducer *reducer, const ad_window *window, size_t index, size_t needed) {
  const ad_bucket *open = &reducer->buckets[window->slots[0].holder];
  return ad_fail(
      AD_INVALID,
      "the gradient of `%s` came while %zu buckets of its kind, among them the bucket of `%s`, still waited for "
      "gradients, so the window %zu of its group is too small; set `window` to at least %zu, or to 0",
      reducer->buckets[index].members.names[0], needed - 1, open->members.names[0],
      ad_bucket_group(reducer, open)->window, needed);
}

static ad_status add_slot(ad_reducer *reducer, ad_window *window, size_t bytes, size_t holder) {
  AD_TRY(ad_grow(&window->slots, window->count, window->count + 1));
  ad_slot *slot = &window->slots[window->count];
  *slot = (ad_slot){.bytes = bytes, .holder = holder};
  if (!ad_comm_is_dry(reducer->comm)) AD_TRY(ad_comm_alloc(reducer->comm, bytes, &slot->memory));
  window->count++;
  return AD_OK;
}

/* Finds a slot for the bucket: the slot whose bucket was launched first, or a new slot. On backend dry a window that is
 * too small grows, so that a plan can report the size that is needed. */
static ad_status find_slot(ad_reducer *reducer, size_t index, size_t *out) {
  ad_bucket *bucket = &reducer->buckets[index];
  ad_window *window = window_of(reducer, bucket);
  ad_reduced_group *group = &reducer->groups[bucket->key.group];
  size_t bytes = slot_bytes(window, bucket), wanted = group->window;
  fitting seen = look_for_slots(reducer, window, bytes);
  int is_full = wanted ? seen.count >= wanted : seen.sent_off >= LEAST;
  *out = seen.oldest;
  if (is_full && seen.sent_off) return AD_OK;
  if (is_full && !ad_comm_is_dry(reducer->comm)) return refuse_window(reducer, window, index, seen.count + 1);
  if (is_full && seen.count + 1 > group->needed) group->needed = seen.count + 1;
  *out = window->count;
  return add_slot(reducer, window, bytes, index);
}

ad_status ad_slot_claim(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  size_t slot = bucket->turn.slot;
  if (bucket->turn.window < 0 || (slot != AD_NO_SLOT && !bucket->turn.is_sent_off)) return AD_OK;
  if (slot == AD_NO_SLOT) AD_TRY(find_slot(reducer, index, &slot));
  ad_window *window = window_of(reducer, bucket);
  size_t holder = window->slots[slot].holder;
  AD_TRY(ad_bucket_settle(reducer, holder));
  if (holder != index) give_up(reducer, window, slot);
  take_slot(reducer, index, slot);
  return AD_OK;
}

/* ---- asking whether a pointer lies in a slot ---- */

static int lies_in(const ad_slot *slot, const void *data) {
  const char *at = data, *begin = slot->memory;
  return begin && at >= begin && at < begin + slot->bytes;
}

int ad_slots_have(const ad_reducer *reducer, const void *data) {
  for (size_t w = 0; w < reducer->window_count; w++)
    for (size_t i = 0; i < reducer->windows[w].count; i++)
      if (lies_in(&reducer->windows[w].slots[i], data)) return 1;
  return 0;
}

size_t ad_slots_bytes(const ad_reducer *reducer) {
  size_t bytes = 0;
  for (size_t w = 0; w < reducer->window_count; w++)
    for (size_t i = 0; i < reducer->windows[w].count; i++) bytes += reducer->windows[w].slots[i].bytes;
  return bytes;
}
