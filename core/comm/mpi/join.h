/* Joining a world that an MPI launcher started. */
#ifndef COMM_MPI_JOIN_H
#define COMM_MPI_JOIN_H
#include "addend/comm.h"
#include "comm/mpi/transport.h"
#include "base/error.h"

/* Opens the world of the launcher that started this process. */
ad_status ad_mpi_open(ad_comm **out) AD_CHECKED;

/* ---- in launcher.c: which launcher started the process, and its MPI ---- */

/* Loads the module for the launcher that started this process. */
ad_status ad_mpi_load(const ad_mpi_transport **out) AD_CHECKED;
/* Returns 1 if an MPI launcher started this process as a rank. */
int ad_mpi_launched(void);
/* Returns AD_INVALID if the launcher started several ranks but MPI found only one (`joined`): the loaded MPI is then
 * another implementation than the launcher's. */
ad_status ad_mpi_check_ranks(const ad_mpi_transport *transport, int64_t joined) AD_CHECKED;

#endif
