/* Ranks and collectives. A collective is described by one structure and runs on whatever engine the rank joined: shm
 * (processes of one machine), mpi (one or more machines), dry (nothing moves). Every collective carries its signature;
 * one that does not match on all ranks of its group is an error on all of them, and nothing ever hangs. */
#ifndef ADDEND_COMM_H
#define ADDEND_COMM_H
#include "addend/dtype.h"
#include "addend/mesh.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_comm ad_comm; /* one rank's membership of a world; used by one thread at a time */

/* Joins the world that `addend run`, ad_launch or (where built) MPI started this process in; alone, a world of one
 * rank. Blocks until all ranks joined. */
AD_API AD_CHECKED ad_status ad_comm_open(ad_comm **out);
/* 1: something started this process as a rank of a world (`addend run`, ad_launch with a program, mpirun, srun), which
 * ad_comm_open will join. */
AD_API int ad_comm_launched(void);
/* Engine dry: this process acts as `rank` of `size`; collectives check their arguments and succeed, values are left as
 * they are. */
AD_API AD_CHECKED ad_status ad_comm_open_dry(int64_t rank, int64_t size, ad_comm **out);
/* The same where every `ranks_per_node` consecutive ranks share a node; 0: all do. */
AD_API AD_CHECKED ad_status ad_comm_open_dry_nodes(int64_t rank, int64_t size, int64_t ranks_per_node, ad_comm **out);
/* A world of one rank that shares nothing with the world this process was started in (the reference of a proof). */
AD_API AD_CHECKED ad_status ad_comm_open_alone(ad_comm **out);
/* Leaves. Ranks that wait for this one get AD_RANK_LEFT. NULL allowed. */
AD_API void ad_comm_close(ad_comm *comm);
AD_API int64_t ad_comm_rank(const ad_comm *comm);
AD_API int64_t ad_comm_size(const ad_comm *comm);
AD_API const char *ad_comm_engine(const ad_comm *comm); /* "shm", "mpi", "dry", ... */

/* Memory that all ranks of the node see, 64-byte aligned, zeroed: collectives on it copy nothing that need not move.
 * AD_MEMORY when it is out. Freed with ad_comm_free or by ad_comm_close. Local: no rank waits for another. */
AD_API AD_CHECKED ad_status ad_comm_alloc(ad_comm *comm, size_t bytes, void **out);
AD_API void ad_comm_free(ad_comm *comm, void *memory);

/* Memory that all members of `group` see as one block, zeroed: each gets its own address of it. Collective. AD_INVALID
 * unless ad_comm_shares says that they can. Each member frees it; the memory goes with the last. */
AD_API AD_CHECKED ad_status ad_comm_alloc_shared(ad_comm *comm, const ad_group *group, size_t bytes, const char *site,
                                                 void **out);
AD_API int ad_comm_shares(const ad_comm *comm, const ad_group *group); /* all members are on one node */

typedef enum ad_collective_op {
  AD_ALL_REDUCE,     /* in, out: count elements */
  AD_REDUCE_SCATTER, /* in: the blocks of all members one after another; out: the own block */
  AD_ALL_GATHER,     /* in: the own block; out: the blocks of all members */
  AD_ALL_TO_ALL,     /* in: a block for each member; out: a block from each member */
  AD_BROADCAST,      /* in of `root` (others: ignored); out: count elements */
  AD_BARRIER,        /* nothing */
  AD_EXCHANGE        /* batched send/receive: see ad_message */
} ad_collective_op;

/* One message of a batched exchange. The group's other members post the other side; sends and receives between two
 * ranks pair in order. */
typedef struct ad_message {
  int64_t peer;     /* index in the group */
  const void *send; /* one of send and receive is NULL */
  void *receive;
  size_t count;
} ad_message;

/* A part of a whole that is cut by rows: member i of g holds rows [floor(i*rows/g), floor((i+1)*rows/g)). */
typedef struct ad_segment {
  int64_t rows;
  size_t row; /* elements of one row */
} ad_segment;

/* What to do. Zero fields mean the default. Memory is the caller's and must stay until the collective is complete. */
typedef struct ad_collective {
  ad_collective_op op;
  ad_group group; /* this rank's group; must contain the rank */
  const void
      *in; /* may equal out (all_reduce), or be the own block inside out or in (all_gather, reduce_scatter): in place */
  void *out;
  size_t count; /* elements: of the whole value (all_reduce, broadcast), of each block if `counts` is NULL */
  const size_t
      *counts; /* reduce_scatter, all_gather: elements of each member's block; all_to_all: of each block sent */
  const size_t *receive_counts; /* all_to_all with counts: of each block received */
  const ad_message *messages;   /* exchange */
  size_t message_count;
  ad_dtype dtype;      /* on the wire */
  ad_dtype accumulate; /* sums form in it, in group order; 0: f64 for f64, f32 for the other floats, integers in
                          themselves */
  ad_reduction reduction;
  ad_dtype
      out_dtype; /* reductions: what the outputs are written in, rounded once from the accumulate dtype; 0: dtype */
  int in_scale, out_scale; /* sums: inputs are values times 2^-in_scale, outputs are written times 2^-out_scale (law 8);
                              equal on all ranks */
  int adds; /* reduce_scatter: the sum is added to what stands at out (in out_dtype, which is the accumulate dtype) */
  const ad_segment
      *segments; /* reduce_scatter, all_gather: the whole is these one after another, each cut by rows; a member's block
                  * is its parts one after another. `count` and `counts` are then not read */
  size_t segment_count;
  int past_caches;  /* 1: one of many calls whose outputs together are larger than caches and not read before all of
                       them are written. A hint; ranks may differ */
  int64_t root;     /* broadcast: index in the group */
  const char *site; /* AD_HERE of the caller; part of the signature's message, not of the match */
} ad_collective;

/* Runs it to its end. On AD_MISMATCH, AD_RANK_DIED, AD_RANK_LEFT, AD_CYCLE, AD_PEER_FAILED the outputs are undefined,
 * every rank of the world gets an error, and the comm can only be closed. */
AD_API AD_CHECKED ad_status ad_comm_run(ad_comm *comm, const ad_collective *collective);
/* Starts it and returns; *collective is copied, its arrays counts/messages too. At most 64 are under way at once (more:
 * waits for the oldest). Bytes may move whenever any rank of the group is inside a call. */
typedef struct ad_request {
  uint64_t id; /* 0: none; waiting for it succeeds */
} ad_request;
AD_API AD_CHECKED ad_status ad_comm_post(ad_comm *comm, const ad_collective *collective, ad_request *out);
AD_API AD_CHECKED ad_status ad_comm_test(ad_comm *comm, ad_request *request, int *done);
AD_API AD_CHECKED ad_status ad_comm_wait(ad_comm *comm, ad_request *request); /* sets request->id to 0 */
AD_API AD_CHECKED ad_status ad_comm_barrier(ad_comm *comm, const ad_group *group, const char *site);

/* Tells every rank of the world that this one failed: their next call, or the one they wait in, returns AD_PEER_FAILED
 * with this text; `status` is what ad_launch_result shows of it. The first failure of a world is kept. */
AD_API void ad_comm_fail(ad_comm *comm, ad_status status, const char *message);
/* AD_OK, or the error that some rank reported, without waiting. */
AD_API AD_CHECKED ad_status ad_comm_health(ad_comm *comm);
/* The last 256 collectives of this rank, oldest first, one line each with sequence number, operation, count, dtype,
 * group, site, state and time. Also written to the folder ADDEND_FLIGHT_DIR (if set) as flight-RANK.txt with every
 * communication error. Caller frees the text with free(). */
AD_API AD_CHECKED ad_status ad_comm_flight_record(const ad_comm *comm, char **out);
/* Bytes that this rank has read and written in collectives so far. */
AD_API uint64_t ad_comm_bytes(const ad_comm *comm);

/* Starting ranks on this machine: forks `ranks` processes that share one nameless memory file, runs `function` in each
 * (or execs argv, whose ad_comm_open then joins), waits for all, and ends the rest 2 s after the first failure. Ranks
 * die with the launcher. Ctrl-C and SIGTERM are passed on. */
typedef struct ad_launch_options {
  size_t size; /* sizeof(ad_launch_options) */
  int64_t ranks;
  int (*function)(ad_comm *comm, void *context); /* its value is the rank's exit status; comm is closed afterwards */
  void *context;
  char *const *argv;        /* instead of function: a program and its arguments */
  int64_t patience_seconds; /* how long ranks may take to end after a request to stop; 0: 10 */
} ad_launch_options;
typedef struct ad_launch_result {
  ad_status status; /* of the first error of any rank: AD_TYPE if a rank's model was refused, AD_MISMATCH, ...; AD_OK if
                       none was reported */
  int exit_status;  /* the first failing rank's exit status; 128+signal if it died; 0 */
  int64_t rank;     /* that rank, or -1 */
  int signal;       /* that ended it, or 0 */
  char message[2048]; /* the first error that a rank reported or the death that was seen; "" if none */
} ad_launch_result;
/* AD_OK when all ranks returned 0; AD_RANK_DIED, AD_PEER_FAILED or AD_INTERRUPTED with *out filled otherwise; AD_SYSTEM
 * or AD_MEMORY if they could not be started. */
AD_API AD_CHECKED ad_status ad_launch(const ad_launch_options *options, ad_launch_result *out);

#if defined(__cplusplus)
}
#endif
#endif
