/* The memory of values and gradients. A tape takes this memory from its own arena, where the memory of consumed
 * gradients is used again, or from a pool of several tapes. A tape that uses a pool also gives back values that no
 * later call of backward reads. */
#include "array/array.h"
#include "base/memory.h"
#include "tensor/tape.h"

/* ---- taking and giving back blocks ---- */

size_t ad_memory_peak(const tape_memory *memory, int dry) {
  if (!dry) return ad_arena_peak(memory->arena);
  size_t used = ad_arena_mark(memory->arena) + memory->dry_used;
  return used > memory->dry_peak ? used : memory->dry_peak;
}

void ad_memory_note_peak(tape_memory *memory, int dry) {
  if (dry) memory->dry_peak = ad_memory_peak(memory, dry);
}

ad_status ad_memory_take(tape_memory *memory, int dry, size_t bytes, void **out) {
  void *taken = NULL;
  if (dry) {
    memory->dry_used += ((bytes ? bytes : 1) + 63) / 64 * 64;  // rounded up as the arena rounds
    ad_memory_note_peak(memory, dry);
  } else if (!(taken = ad_arena_take(memory->arena, bytes))) {
    return AD_MEMORY;
  }
  *out = taken;
  return AD_OK;
}

// Returns the size of a block. In a pool sizes are rounded up by less than 1/16, so values of slightly different sizes
// (of uneven microbatches, or the rows of an expert) can use each other's memory.
static size_t block_size(const tape_memory *memory, size_t bytes) {
  size_t step = 64;
  if (!memory->is_shared) return bytes;
  while (step < bytes / 32) step *= 2;
  return (bytes + step - 1) / step * step;
}

// Records that the tape uses the pool's memory, until the tape's reset.
static void share_values(ad_tape *tape) {
  if (!tape->values->is_shared || tape->has_shared) return;
  tape->has_shared = 1;
  tape->values->tapes++;
}

ad_status ad_block_take(ad_tape *tape, size_t bytes, void **out) {
  tape_memory *memory = tape->values;
  size_t size = block_size(memory, bytes);
  share_values(tape);
  for (spare **at = &memory->spares; *at; at = &(*at)->next) {
    spare *found = *at;
    if (found->bytes != size) continue;
    *at = found->next;
    found->next = memory->records;
    memory->records = found;
    *out = found->data;
    return AD_OK;
  }
  return ad_memory_take(memory, tape->dry, size, out);
}

ad_status ad_block_give(ad_tape *tape, size_t bytes, void *data) {
  tape_memory *memory = tape->values;
  spare *record = memory->records;
  if (record)
    memory->records = record->next;
  else if (!(record = ad_arena_take(memory->arena, sizeof *record)))
    return AD_MEMORY;
  *record = (spare){memory->spares, block_size(memory, bytes), data};
  memory->spares = record;
  return AD_OK;
}

ad_status ad_value_take(ad_tape *tape, size_t bytes, void **out) {
  int gives_back = tape->values->is_shared || tape->options.recompute_count;
  return gives_back ? ad_block_take(tape, bytes, out) : ad_tape_take(tape, bytes, out);
}

/* ---- which values backward still reads ---- */

/* Returns 1 if this walk computes the operand's gradient. */
static int fills_gradient_of(tape_walk walk, const ad_tensor *operand) {
  return operand->carries && (walk == WALK_WHOLE || (walk == WALK_INPUTS) == operand->reached);
}

uint64_t ad_walk_fills(tape_walk walk, const ad_tensor *out) {
  uint64_t filled = 0;
  for (int i = 0; i < out->operand_count; i++) filled |= (uint64_t)fills_gradient_of(walk, out->operand[i]) << i;
  return filled;
}

ad_tensor *ad_value_owner(ad_tensor *value) {
  while (value->shares_value) value = value->operand[0];
  return value;
}

void ad_tape_lend(ad_tensor *value) { ad_value_owner(value)->is_lent = 1; }

// Returns 1 if the second walk (WALK_WEIGHTS) will still call backward of `out`.
static int is_to_come(const ad_tensor *out) {
  return out->op && (out->waits || (!out->reached && (out->uses || out->takes_shares)));
}

void ad_need_for_weights(ad_tensor *out) {
  if (!is_to_come(out)) return;
  uint64_t unread = ad_operation_unread(out->op, ad_walk_fills(WALK_WEIGHTS, out));
  for (int i = 0; i < out->operand_count; i++)
    if (!(unread >> i & 1)) ad_value_owner(out->operand[i])->is_needed = 1;
  if (!ad_operation_is_linear(out->op)) ad_value_owner(out)->is_needed = 1;
  out->needs_saved = 1;
}

/* Marks what an operation needs that may run again in the second walk. */
static void need_to_run(ad_tensor *out) {
  for (int i = 0; i < out->operand_count; i++) ad_value_owner(out->operand[i])->is_needed = 1;
  ad_value_owner(out)->is_needed = out->needs_saved = 1;
}

static void find_needed(const ad_tape *tape) {
  for (ad_tensor *each = tape->last; each; each = each->previous) each->is_needed = each->needs_saved = 0;
  for (ad_tensor *each = tape->last; each && tape->defers_weights; each = each->previous) {
    ad_need_for_weights(each);
    if (each->layer && !each->layer->is_over) need_to_run(each);
  }
}

/* ---- giving memory back before the reset ---- */

ad_status ad_value_give(ad_tape *tape, ad_tensor *of) {
  if (!of->has_value) return AD_OK;
  of->has_value = 0;
  return ad_block_give(tape, ad_array_bytes(&of->array), of->array.data);
}

ad_status ad_saved_give(ad_tape *tape, ad_tensor *of) {
  if (!of->has_saved) return AD_OK;
  of->has_saved = 0;
  return ad_block_give(tape, of->op->saved(of), of->saved);
}

static int is_dropped(const ad_tensor *owner) { return owner->op && !owner->is_needed && !owner->is_lent; }

ad_status ad_tape_drop(ad_tape *tape) {
  if (!tape->values->is_shared) return AD_OK;
  find_needed(tape);
  for (ad_tensor *each = tape->last; each; each = each->previous) {
    int drops = is_dropped(ad_value_owner(each));
    if (drops && !each->shares_value) AD_TRY(ad_value_give(tape, each));
    if (drops) each->array.data = NULL;
    if (!each->needs_saved) AD_TRY(ad_saved_give(tape, each));
  }
  return AD_OK;
}

/* ---- giving values back that no backward reads, while a tape records ---- */

/* Marks the values between the two tensors that a backward will read, because an operation on them has a gradient. */
static void find_read(const ad_tensor *first, ad_tensor *last) {
  for (ad_tensor *each = last->previous; each && each != first; each = each->previous) each->is_needed = 0;
  for (ad_tensor *each = last->previous; each && each != first; each = each->previous)
    for (int i = 0; each->carries && i < each->operand_count; i++) ad_value_owner(each->operand[i])->is_needed = 1;
}

static int is_spent(const ad_tensor *owner) {
  return owner->op && owner->is_frozen && !owner->carries && !owner->is_needed && !owner->is_lent &&
         owner->array.shape.ndim;
}

void ad_forget(const ad_tensor *first, ad_tensor *last) {
  if (!last || !ad_tape_owns(last->tape, last) || last->carries || !last->tape->values->is_shared) return;
  const ad_tensor *kept = ad_value_owner(last);
  find_read(first, last);
  for (ad_tensor *each = last->previous; each && each != first; each = each->previous) {
    if (each->shares_value || each == kept || !is_spent(each)) continue;
    ad_status status = ad_value_give(last->tape, each);
    if (status) ad_tape_fail(last->tape, status);
    each->is_forgotten = 1;
  }
  for (ad_tensor *each = last->previous; each && each != first; each = each->previous) {
    if (!ad_value_owner(each)->is_forgotten) continue;
    each->is_forgotten = 1;
    each->array.data = NULL;
  }
}

/* ---- giving memory back at the reset ---- */

// Gives a gradient's memory back. After a failure in the middle of a call, two gradients may have the same memory; so a
// failed tape gives no gradients back, and their memory stays taken until the pool is empty.
static ad_status give_gradient(ad_tape *tape, ad_tensor *of) {
  size_t bytes = ad_array_bytes(&of->grad);
  int has = of->has_grad || of->waits;
  if (tape->status) return AD_OK;
  if (of->has_earlier) AD_TRY(ad_block_give(tape, bytes, of->earlier));
  return has ? ad_block_give(tape, bytes, of->grad.data) : AD_OK;
}

static ad_status give_all_of(ad_tape *tape, ad_tensor *of) {
  AD_TRY(ad_value_give(tape, of));
  AD_TRY(ad_saved_give(tape, of));
  return give_gradient(tape, of);
}

// Ends the tape's use of the pool. When the last tape leaves, the pool's arena is reset.
static void leave(ad_tape *tape) {
  tape_memory *memory = tape->values;
  tape->has_shared = 0;
  if (--memory->tapes) return;
  ad_memory_note_peak(memory, tape->dry);
  ad_arena_reset(memory->arena);
  memory->spares = memory->records = NULL;
  memory->dry_used = 0;
}

void ad_tape_give_all(ad_tape *tape) {
  if (!tape->has_shared) return;
  ad_status status = AD_OK;
  for (ad_tensor *each = tape->last; each && !status; each = each->previous) status = give_all_of(tape, each);
  // if there is no memory for a record of a block, the blocks that were not given back stay taken until the pool is
  // empty
  leave(tape);
}

/* ---- pools of memory that several tapes share ---- */

struct ad_tape_pool {
  tape_memory memory;
  int dry;
};

ad_status ad_tape_pool_create(int dry, ad_tape_pool **out) {
  ad_tape_pool *pool;
  AD_TRY(ad_new(1, &pool));
  ad_status status = ad_arena_create(0, &pool->memory.arena);
  if (status) {
    ad_release(pool);
    return status;
  }
  pool->memory.is_shared = 1;
  pool->dry = dry;
  *out = pool;
  return AD_OK;
}

void ad_tape_pool_destroy(ad_tape_pool *pool) {
  if (!pool) return;
  ad_arena_destroy(pool->memory.arena);
  ad_release(pool);
}

size_t ad_tape_pool_peak_bytes(const ad_tape_pool *pool) { return pool ? ad_memory_peak(&pool->memory, pool->dry) : 0; }

void ad_tape_share(ad_tape *tape, ad_tape_pool *pool) { tape->values = &pool->memory; }
