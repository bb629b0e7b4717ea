/* The smallest program on addend: ad_comm_open joins the other ranks that the launcher started, and one call sums a
 * number over all ranks. If it is started without a launcher, the program is the only rank.
 *
 *   addend run -n 3 -- ./example_join        or        mpirun -n 3 ./example_join */
#include <stdio.h>
#include "addend/comm.h"

/* Sums the ranks' numbers (0 + 1 + 2 + ...) over all ranks; every rank gets the sum. */
static ad_status sum_ranks(ad_comm *comm, double *sum) {
  *sum = (double)ad_comm_rank(comm);
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .in = sum, .out = sum, .count = 1, .dtype = AD_F64, .site = AD_HERE};
  return ad_comm_run(comm, &call);
}

int main(void) {
  ad_comm *comm;
  double sum = 0;
  ad_status status = ad_comm_open(&comm);
  if (status) return fprintf(stderr, "%s\n", ad_last_error()), 1;
  status = sum_ranks(comm, &sum);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  if (!status && ad_comm_rank(comm) == 0)
    printf("the numbers of all %d ranks add up to %g\n", (int)ad_comm_size(comm), sum);
  ad_comm_close(comm);
  return status != AD_OK;
}
