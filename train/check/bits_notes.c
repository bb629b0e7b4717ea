/* The notes that all ranks of one run make for the check for bits, in memory that the ranks share with the process that
 * started them. */
#include "check/bits_notes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/memory.h"

static size_t head_bytes(int64_t ranks) { return sizeof(ad_bits_notes) + (size_t)ranks * sizeof(ad_bits_rank); }

static ad_bits_note *notes_of(const ad_bits_notes *notes, int64_t rank) {
  char *first = (char *)(uintptr_t)notes + head_bytes(notes->ranks);
  return (ad_bits_note *)(void *)first + (size_t)rank * notes->room;
}

/* Reserves address space for `room` notes on each rank; the kernel allocates a page only when notes are written
 * there. */
ad_status ad_bits_notes_create(int64_t ranks, size_t room, ad_bits_notes **out) {
  size_t bytes = head_bytes(ranks) + (size_t)ranks * room * sizeof(ad_bits_note);
  ad_bits_notes *notes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (notes == MAP_FAILED)
    return ad_fail(AD_MEMORY, "no memory for %zu hashes on each of %lld ranks", room, (long long)ranks);
  *notes = (ad_bits_notes){bytes, ranks, room};
  *out = notes;
  return AD_OK;
}

void ad_bits_notes_destroy(ad_bits_notes *notes) {
  if (notes) munmap(notes, notes->bytes);
}

void ad_bits_begin(ad_bits_notes *notes, int64_t rank, int64_t place) { notes->rank[rank] = (ad_bits_rank){place, 0}; }

ad_status ad_bits_add(ad_bits_notes *notes, int64_t rank, const ad_bits_note *note) {
  ad_bits_rank *of = &notes->rank[rank];
  if (of->count == notes->room)
    return ad_fail(AD_MEMORY, "rank %lld has more than %zu hashes to note", (long long)rank, notes->room);
  notes_of(notes, rank)[of->count++] = *note;
  return AD_OK;
}

/* Sends `words` to rank 0; on rank 0, receives them from `peer`. */
static ad_status bring(ad_comm *comm, int64_t peer, void *words, size_t bytes) {
  int receives = ad_comm_rank(comm) == 0;
  ad_transfer transfer = {.size = sizeof transfer,
                          .peer = peer,
                          .send = receives ? NULL : words,
                          .receive = receives ? words : NULL,
                          .receives = receives,
                          .count = bytes / sizeof(int64_t),
                          .dtype = AD_I64};
  return ad_comm_transfer(comm, &transfer, NULL);
}

ad_status ad_bits_gather(ad_comm *comm, ad_bits_notes *notes) {
  _Static_assert(sizeof(ad_bits_rank) % sizeof(int64_t) == 0, "notes travel as words");
  _Static_assert(sizeof(ad_bits_note) % sizeof(int64_t) == 0, "notes travel as words");
  int64_t own = ad_comm_rank(comm);
  if (own >= notes->ranks) return AD_OK;
  for (int64_t rank = own ? own : 1; rank < (own ? own + 1 : notes->ranks); rank++) {
    int64_t peer = own ? 0 : rank;
    AD_TRY(bring(comm, peer, &notes->rank[rank], sizeof notes->rank[rank]));
    AD_TRY(bring(comm, peer, notes_of(notes, rank), notes->rank[rank].count * sizeof(ad_bits_note)));
  }
  return AD_OK;
}

/* ---- sorting the notes of all ranks ---- */

static int compare_numbers(int64_t a, int64_t b) { return (a > b) - (a < b); }

int ad_bits_order(const void *a, const void *b) {
  const ad_bits_listed *x = a, *y = b;
  const ad_bits_note *p = &x->note, *q = &y->note;
  const int64_t keys[][2] = {{p->step, q->step},
                             {p->kind, q->kind},
                             {p->node.count, q->node.count},
                             {p->beyond, q->beyond},
                             {p->of, q->of},
                             {p->part, q->part},
                             {p->node.first, q->node.first},
                             {x->place, y->place},
                             {p->of_shard, q->of_shard}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (keys[i][0] != keys[i][1]) return compare_numbers(keys[i][0], keys[i][1]);
  return 0;
}

/* Compares two notes for sorting. Among notes of the same array or number, results of collectives come after the
 * others. */
static int order_ranks(const void *a, const void *b) {
  const ad_bits_listed *x = a, *y = b;
  int order = ad_bits_order(a, b);
  if (!order) order = compare_numbers(x->note.over != 0, y->note.over != 0);
  return order ? order : compare_numbers(x->rank, y->rank);
}

ad_status ad_bits_list_create(const ad_bits_notes *notes, ad_bits_list *out) {
  size_t count = 0;
  for (int64_t rank = 0; rank < notes->ranks; rank++) count += notes->rank[rank].count;
  AD_TRY(ad_new(count, &out->list));
  out->count = 0;
  for (int64_t rank = 0; rank < notes->ranks; rank++)
    for (size_t i = 0; i < notes->rank[rank].count; i++)
      out->list[out->count++] = (ad_bits_listed){notes_of(notes, rank)[i], rank, notes->rank[rank].place};
  if (count) qsort(out->list, count, sizeof *out->list, order_ranks);
  return AD_OK;
}

void ad_bits_list_release(ad_bits_list *list) { ad_release(list->list); }

const ad_bits_listed *ad_bits_list_find(const ad_bits_list *list, const ad_bits_listed *like) {
  return list->count ? bsearch(like, list->list, list->count, sizeof *like, ad_bits_order) : NULL;
}

const ad_bits_listed *ad_bits_list_find_shard(const ad_bits_list *list, const ad_bits_listed *like) {
  ad_bits_listed shard = *like;
  shard.note.of_shard = like->note.shard;
  return ad_bits_list_find(list, &shard);
}
