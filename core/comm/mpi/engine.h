/* Engine mpi as the functions that comm.c calls. */
#ifndef COMM_MPI_ENGINE_H
#define COMM_MPI_ENGINE_H
#include "comm/engine.h"

extern const ad_engine ad_engine_mpi;

#endif
