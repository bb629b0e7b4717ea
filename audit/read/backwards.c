/* Counts how many backward passes each rank ran: one for each of its addend files that has a tensor. */
#include "read/backwards.h"

#include "base/memory.h"
#include "base/text.h"

/* Returns the first of the ranks with the largest count below `limit`, or -1 if no count is below `limit`. */
static int64_t next_below(const int64_t *counts, int64_t world, int64_t limit) {
  int64_t found = -1;
  for (int64_t rank = 0; rank < world; rank++)
    if (counts[rank] < limit && (found < 0 || counts[rank] > counts[found])) found = rank;
  return found;
}

/* Prints how many ranks have each count, as "3 on ranks 0 and 1, 2 on rank 2", and returns the number of different
 * counts. `same` is scratch memory with one byte for each rank. */
static int print_counts(const ad_dump *dump, const int64_t *counts, unsigned char *same, char *out, size_t size) {
  ad_text text = ad_text_on(out, size);
  int64_t world = dump->mesh.world, rank = next_below(counts, world, INT64_MAX);
  int different = 0;
  for (; rank >= 0; rank = next_below(counts, world, counts[rank]), different++) {
    char ranks[160];
    for (int64_t other = 0; other < world; other++) same[other] = counts[other] == counts[rank];
    ad_text_add(&text, "%s%lld on %s", different ? ", " : "", (long long)counts[rank],
                ad_dump_ranks_print(&dump->mesh, same, ranks, sizeof ranks));
  }
  return different;
}

ad_status ad_backwards_report(const ad_dump *dump, json_t *messages) {
  char text[512];
  int64_t *counts;
  unsigned char *same;
  AD_TRY(ad_new((size_t)dump->mesh.world, &counts));
  ad_status status = ad_new((size_t)dump->mesh.world, &same);
  for (int64_t rank = 0; rank < dump->mesh.world; rank++)
    for (int64_t m = 0; m < dump->microbatches; m++)
      counts[rank] += ad_safetensors_count(dump->addends[rank * dump->microbatches + m]->tensors) > 0;
  if (!status && print_counts(dump, counts, same, text, sizeof text) > 1)
    json_array_append_new(messages, json_sprintf("ranks ran different numbers of backwards: %s", text));
  ad_release(counts);
  if (!status) ad_release(same);
  return status;
}
