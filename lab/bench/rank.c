/* The program of one measured rank of addend with backend mpi, started by an MPI launcher: mpirun -n N bench_rank
 * ADDRESS. */
#include <stdio.h>

#include "library.h"

int main(int argc, char **argv) {
  ad_comm *comm;
  if (argc != 2) return 2;
  if (ad_comm_open(&comm)) return fprintf(stderr, "%s: %s\n", argv[0], ad_last_error()), 1;
  int status = bench_library_rank(comm, argv[1], &bench_small, 0);
  ad_comm_close(comm);
  return status;
}
