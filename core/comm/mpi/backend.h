/* Declares backend mpi, the table of functions that comm.c calls. */
#ifndef COMM_MPI_BACKEND_H
#define COMM_MPI_BACKEND_H
#include "comm/backend.h"

extern const ad_backend ad_backend_mpi;

#endif
