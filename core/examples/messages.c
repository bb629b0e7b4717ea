/* Messages between ranks, without gradients: rows that go to the rank that owns them (all_to_all with counts), a number
 * that goes around a ring (transfers under a tag), and a sum over a group that is a list of ranks. Starts 4 ranks, or
 * joins those that `addend run -n N` or mpirun started. */
#include <stdio.h>
#include <stdlib.h>
#include "addend/array.h"

enum { RANKS = 4, ROWS = 10, WIDTH = 2, TAG = 17 };

/* Row i of rank r has the key r * ROWS + i; the owner of a key is key modulo the number of ranks. */
static int64_t key_of(int64_t rank, size_t i) { return rank * ROWS + (int64_t)i; }

typedef struct rows {
  ad_array kept, received;
  size_t *send_counts, *receive_counts; /* for each rank, the number of rows sent to it or received from it */
} rows;

static void free_rows(ad_comm *comm, rows *r) {
  ad_array_destroy(comm, &r->kept);
  free(r->received.data);
  free(r->send_counts);
  free(r->receive_counts);
}

/* Makes this rank's rows [key, 2 key], those for rank 0 first, and counts them. */
static ad_status make_rows(ad_comm *comm, rows *r) {
  int64_t ranks = ad_comm_size(comm), rank = ad_comm_rank(comm);
  ad_layout own = ad_layout_all(ad_comm_mesh(comm), AD_V);  // each rank has rows of its own
  ad_shape shape = {2, {ROWS, WIDTH}};
  r->send_counts = calloc((size_t)ranks, sizeof *r->send_counts);
  r->receive_counts = calloc((size_t)ranks, sizeof *r->receive_counts);
  if (!r->send_counts || !r->receive_counts) return ad_fail(AD_MEMORY, "no memory for counts of %d ranks", (int)ranks);
  AD_TRY(ad_array_create(comm, AD_F64, &shape, &own, &r->kept));
  size_t at = 0;
  for (int64_t owner = 0; owner < ranks; owner++)
    for (size_t i = 0; i < ROWS; i++)
      if (key_of(rank, i) % ranks == owner) {
        ad_array_set(&r->kept, at * WIDTH, (double)key_of(rank, i));
        ad_array_set(&r->kept, at++ * WIDTH + 1, 2 * (double)key_of(rank, i));
        r->send_counts[owner]++;
      }
  return AD_OK;
}

/* Sends to every rank how many rows it gets from this rank. *count: how many rows this rank gets from all ranks. */
static ad_status exchange_counts(ad_comm *comm, rows *r, size_t *count) {
  int64_t ranks = ad_comm_size(comm), *numbers = calloc(2 * (size_t)ranks, sizeof *numbers);
  if (!numbers) return ad_fail(AD_MEMORY, "no memory for counts of %d ranks", (int)ranks);
  for (int64_t i = 0; i < ranks; i++) numbers[i] = (int64_t)r->send_counts[i];
  ad_collective call = {.size = sizeof call, .op = AD_ALL_TO_ALL, .in = numbers, .out = numbers + ranks, .count = 1};
  call.dtype = AD_I64;
  call.site = AD_HERE;
  ad_status status = ad_comm_run(comm, &call);
  *count = 0;
  for (int64_t i = 0; i < ranks; i++) *count += r->receive_counts[i] = (size_t)numbers[ranks + i];
  free(numbers);
  return status;
}

/* Sends every row to the rank that owns it, and checks that this rank received only rows that it owns. */
static ad_status bring_to_owners(ad_comm *comm, rows *r) {
  int64_t ranks = ad_comm_size(comm), rank = ad_comm_rank(comm);
  size_t count = 0;
  AD_TRY(make_rows(comm, r));
  AD_TRY(exchange_counts(comm, r, &count));
  r->received.data = calloc(count * WIDTH + 1, sizeof(double));
  if (!r->received.data) return ad_fail(AD_MEMORY, "no memory for %d rows", (int)count);
  AD_TRY(ad_array_exchange(comm, &r->kept, AD_AXES_DP, r->send_counts, r->receive_counts, &r->received));
  for (size_t i = 0; i < count; i++) {
    double key = ad_array_get(&r->received, i * WIDTH);
    if ((int64_t)key % ranks != rank || ad_array_get(&r->received, i * WIDTH + 1) != 2 * key)
      return ad_fail(AD_INVALID, "row %d (from 0) was sent to the wrong rank: its key is %g, but this is rank %d",
                     (int)i, key, (int)rank);
  }
  if (!rank) printf("rank 0 owns %d of %d rows\n", (int)count, (int)(ROWS * ranks));
  return AD_OK;
}

/* Sends a number around the ring: each rank adds its own number and sends the sum to the next rank. The first rank gets
 * the total. */
static ad_status go_around(ad_comm *comm, double *sum) {
  int64_t ranks = ad_comm_size(comm), rank = ad_comm_rank(comm), source = rank;
  ad_transfer from = {
      .size = sizeof from, .peer = AD_ANY_SOURCE, .tag = TAG, .receive = sum, .count = 1, .dtype = AD_F64};
  ad_transfer to = {
      .size = sizeof to, .peer = (rank + 1) % ranks, .tag = TAG, .send = sum, .count = 1, .dtype = AD_F64};
  *sum = 0;
  if (rank) AD_TRY(ad_comm_transfer(comm, &from, &source));
  *sum += (double)rank;
  AD_TRY(ad_comm_transfer(comm, &to, NULL));
  if (!rank) AD_TRY(ad_comm_transfer(comm, &from, &source));
  if (source != (rank + ranks - 1) % ranks && ranks > 1)
    return ad_fail(AD_INVALID, "the number came from rank %d, but must come from this rank's neighbour", (int)source);
  return AD_OK;
}

/* Sums over the ranks with an even number, in descending order: a group that no axis of a mesh describes. */
static ad_status sum_of_even(ad_comm *comm, double *sum) {
  int64_t members[1024], count = 0, rank = ad_comm_rank(comm);
  ad_ranks *even;
  *sum = (double)rank;
  if (rank % 2 || ad_comm_size(comm) > 2048) return AD_OK;
  for (int64_t r = (ad_comm_size(comm) - 1) / 2 * 2; r >= 0; r -= 2) members[count++] = r;
  AD_TRY(ad_ranks_create(comm, members, count, &even));
  ad_collective call = {.size = sizeof call, .op = AD_ALL_REDUCE, .in = sum, .out = sum, .count = 1, .dtype = AD_F64};
  call.ranks = even;
  call.site = AD_HERE;
  ad_status status = ad_comm_run(comm, &call);
  if (!status && !rank)
    printf("%d even ranks, from %d to %d; rank 0 is number %d of them; their sum is %g\n", (int)ad_ranks_count(even),
           (int)ad_ranks_rank(even, 0), (int)ad_ranks_rank(even, count - 1), (int)ad_ranks_index(even, rank), *sum);
  ad_ranks_release(even);
  return status;
}

static ad_status run(ad_comm *comm, rows *r) {
  double sum;
  AD_TRY(bring_to_owners(comm, r));
  AD_TRY(ad_comm_health(comm));  // fails if another rank has failed in the meantime
  AD_TRY(go_around(comm, &sum));
  if (!ad_comm_rank(comm)) printf("around the ring: %g\n", sum);
  AD_TRY(sum_of_even(comm, &sum));
  if (!ad_comm_rank(comm)) printf("collectives moved bytes: %s\n", ad_comm_bytes(comm) ? "yes" : "no");
  return AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  rows r = {0};
  ad_status status = run(comm, &r);
  if (status)
    fprintf(stderr, "rank %d failed (%s): %s\n", (int)ad_comm_rank(comm), ad_status_sentence(status), ad_last_error());
  free_rows(comm, &r);
  return status != AD_OK;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = on_each_rank, .joins = 1};
  ad_launch_result result = {.size = sizeof result};
  if (ad_launch(&options, &result) == AD_OK) return 0;
  return fprintf(stderr, "%s\n", ad_last_error()), 1;
}
