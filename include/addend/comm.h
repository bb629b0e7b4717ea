/* Ranks, collectives and transfers. A collective is described by one structure and runs on whatever engine the rank
 * joined: shm (processes of one machine), mpi (one or more machines), dry (nothing moves). Every collective carries its
 * signature; one that does not match on all ranks of its group is an error on all of them, and nothing ever hangs. */
#ifndef ADDEND_COMM_H
#define ADDEND_COMM_H
#include "addend/dtype.h"
#include "addend/mesh.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_comm ad_comm;   /* one rank's membership of a world; used by one thread at a time */
typedef struct ad_ranks ad_ranks; /* a group that is a list of ranks; see ad_ranks_create */

/* Joins the world that `addend run`, ad_launch, (where built) MPI or, on one host, torchrun started this process in; a
 * process that nobody started as a rank gets a world of its own, of one rank. Blocks until all ranks joined. AD_INVALID
 * under a launcher whose world it cannot join (WORLD_SIZE in the environment, and not all of what torchrun leaves
 * there): nobody is alone unknowingly. */
AD_API AD_CHECKED ad_status ad_comm_open(ad_comm **out);
/* 1: this process was started as a rank of a world (by `addend run`, ad_launch with a program, mpirun, srun or
 * torchrun), and ad_comm_open will join that world. */
AD_API int ad_comm_launched(void);
/* Where processes that anybody started find each other, to join one world: PyTorch's store, a folder, sockets. Keys are
 * words of letters, digits and '/'; a value is put once, and read by any process. `context` is handed to each callback.
 * A callback that fails says why with ad_fail. */
typedef struct ad_rendezvous {
  size_t size; /* sizeof(ad_rendezvous) */
  void *context;
  ad_status (*put)(void *context, const char *key, const void *value, size_t bytes);
  /* Returns once `key` was put; fails after `seconds`. */
  ad_status (*wait)(void *context, const char *key, int64_t seconds);
  /* Copies the value of a key that was put, which has `bytes` bytes; fails where it has another number of them. */
  ad_status (*get)(void *context, const char *key, void *value, size_t bytes);
  int64_t seconds; /* that a rank waits for another to come; 0: 300 */
} ad_rendezvous;
/* Joins a world of `size` processes of this machine as rank `rank`, which nobody of addend's launched; each number is
 * one process's. Blocks until all have joined. They share memory without a name, so that nothing stays behind; where a
 * process ends without ad_comm_close, every rank that waits gets AD_RANK_DIED within 2 s, and others at their next
 * call. Other processes of the world read this one's memory where the kernel lets them. AD_INVALID, on all ranks,
 * where one is on another host or in another container; AD_PEER_FAILED where another could not join. A rendezvous
 * serves one world: its keys are put once. */
AD_API AD_CHECKED ad_status ad_comm_join(int64_t rank, int64_t size, const ad_rendezvous *rendezvous, ad_comm **out);
/* Opens engine dry: this process acts as rank `rank` of a world of `size`. Collectives check their arguments and
 * succeed at once; values are left as they are. */
AD_API AD_CHECKED ad_status ad_comm_open_dry(int64_t rank, int64_t size, ad_comm **out);
/* A world of one rank that shares nothing with the world this process was started in (the reference of a proof). */
AD_API AD_CHECKED ad_status ad_comm_open_alone(ad_comm **out);
/* Leaves the world and frees the comm with all memory it gave. Ranks that still need this one get AD_RANK_LEFT. NULL
 * allowed. */
AD_API void ad_comm_close(ad_comm *comm);
AD_API int64_t ad_comm_rank(const ad_comm *comm);
AD_API int64_t ad_comm_size(const ad_comm *comm);
/* All ranks on one axis: "dp_shard=4". The comm's own, for those who need no other. */
AD_API const ad_mesh *ad_comm_mesh(const ad_comm *comm);
AD_API const char *ad_comm_engine(const ad_comm *comm); /* "shm", "mpi", "dry", ... */
AD_API int ad_comm_is_dry(const ad_comm *comm);         /* values have shapes and layouts only */

/* Memory that all ranks of the node see, 64-byte aligned, zeroed: collectives on buffers in it need no staging copies.
 * AD_MEMORY when there is none left. Freed with ad_comm_free or by ad_comm_close. Local: no rank waits for another. */
AD_API AD_CHECKED ad_status ad_comm_alloc(ad_comm *comm, size_t bytes, void **out);
AD_API void ad_comm_free(ad_comm *comm, void *memory);

/* One block of memory that all members of `group` see, zeroed; each member gets its own address of it. All members call
 * it. AD_INVALID unless ad_comm_shares says that they can. Each member frees it; the memory goes with the last. */
#define ad_comm_alloc_shared(...) ad_comm_alloc_shared_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_alloc_shared_at(ad_comm *comm, const ad_group *group, size_t bytes, void **out,
                                                    const char *site);
/* 1: the members of `group` can see the same memory, because they are all on one node. Local. */
AD_API int ad_comm_shares(const ad_comm *comm, const ad_group *group);

typedef enum ad_collective_op {
  AD_ALL_REDUCE,     /* in, out: count elements */
  AD_REDUCE_SCATTER, /* in: the blocks of all members one after another; out: the own block */
  AD_ALL_GATHER,     /* in: the own block; out: the blocks of all members */
  AD_ALL_TO_ALL,     /* in: a block for each member; out: a block from each member */
  AD_BROADCAST,      /* in: count elements, read on `root` only; out: count elements */
  AD_BARRIER,        /* no values: complete when all members have called it */
  AD_EXCHANGE        /* batched send/receive: see ad_message */
} ad_collective_op;

/* One message of a batched exchange: this rank's send to a peer, or its receive from one. The peer's own exchange holds
 * the other side. Between two ranks the first send belongs to the first receive, and so on. What is received lands in
 * memory of its own, apart from that of every other message of the exchange; several may be sent from one. */
typedef struct ad_message {
  int64_t peer;     /* its index in the group; may be this rank's own */
  const void *send; /* one of send and receive is NULL */
  void *receive;
  size_t count;
} ad_message;

/* A part of a whole that is cut by rows: member i of g holds rows [floor(i*rows/g), floor((i+1)*rows/g)). */
typedef struct ad_segment {
  int64_t rows;
  size_t row; /* elements of one row */
} ad_segment;

/* What to do. Zero fields mean the default. All memory is the caller's. What `in`, `out` and messages point to must
 * stay until the collective is complete; the arrays counts, receive_counts, messages and segments are copied. */
typedef struct ad_collective {
  size_t size; /* sizeof(ad_collective) */
  ad_collective_op op;
  ad_group group; /* this rank's group; must contain the rank. Without a mesh: all ranks of the world */
  /* In place: `in` may equal `out` (all_reduce, broadcast), be the own block inside `out` (all_gather), or have `out`
   * as the own block inside it (reduce_scatter). They overlap in no other way. */
  const void *in;
  void *out;
  size_t count; /* elements: of the whole value (all_reduce, broadcast), of each block if `counts` is NULL */
  /* Elements of blocks that differ. reduce_scatter, all_gather: of each member's block; all_to_all: of the block sent
   * to each member, with `receive_counts` for the block received from each. */
  const size_t *counts;
  const size_t *receive_counts;
  const ad_message *messages; /* exchange */
  size_t message_count;
  ad_dtype dtype; /* of the inputs, and of the outputs of operations that do not reduce */
  /* Results form in it, in the order of one tree over the group (docs/laws.md, law 10). 0: f64 for f64, f32 for the
   * other floats, the dtype itself for integers and bool, which take no other. */
  ad_dtype accumulate;
  ad_reduction reduction; /* AD_INVALID: one that the dtype does not have */
  /* The outputs' dtype of a reduction, rounded to once from the accumulate dtype. 0: dtype, which integers and bool
   * keep. */
  ad_dtype out_dtype;
  /* Of sums: the inputs are values times 2^-in_scale, the outputs are written times 2^-out_scale (law 8). The same on
   * all ranks. */
  int in_scale, out_scale;
  /* 1, reduce_scatter only: the sum is added to what stands in `out`, whose dtype is then the accumulate dtype. */
  int adds;
  /* reduce_scatter, all_gather: the whole is these segments one after another, each cut by rows, and a member's block
   * is its parts of them one after another. `counts` must then be NULL, and `count` is not read. NULL: one whole. */
  const ad_segment *segments;
  size_t segment_count;
  int64_t root; /* broadcast: index in the group */
  /* For messages, of a call that is made for somebody else: where he stands; NULL: the line of the call itself. Calls
   * from different sites match. */
  const char *site;
  const ad_ranks *ranks; /* the group as a list, instead of `group`: both is AD_INVALID */
} ad_collective;

/* Runs a collective to its end. On AD_MISMATCH, AD_RANK_DIED, AD_RANK_LEFT, AD_CYCLE, AD_PEER_FAILED the outputs are
 * undefined, every rank of the world gets an error, and the comm can only be closed. */
#define ad_comm_run(...) ad_comm_run_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_run_at(ad_comm *comm, const ad_collective *collective, const char *site);
/* A collective or a transfer under way. */
typedef struct ad_request {
  uint64_t id;    /* 0: none; waiting for it succeeds */
  int64_t source; /* of a receive that is complete: the peer it came from; else -1 */
} ad_request;
/* Starts a collective and returns; *collective and its arrays are copied. A rank has at most 64 under way: one more
 * waits for the oldest. Bytes may move whenever any rank of the group is inside a call. The errors of ad_comm_run. */
#define ad_comm_post(...) ad_comm_post_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_post_at(ad_comm *comm, const ad_collective *collective, ad_request *out,
                                            const char *site);
/* Of a collective or of a transfer. *done = 1: it is complete, and request->id is 0 from now on. Never waits. */
AD_API AD_CHECKED ad_status ad_comm_test(ad_comm *comm, ad_request *request, int *done);
/* Returns when it is complete; request->id is then 0. */
AD_API AD_CHECKED ad_status ad_comm_wait(ad_comm *comm, ad_request *request);
/* Returns when every member of the group has called it. */
#define ad_comm_barrier(...) ad_comm_barrier_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_barrier_at(ad_comm *comm, const ad_group *group, const char *site);

/* ---- one rank to another ---- */

enum { AD_ANY_SOURCE = -1 };
/* One rank's send to a peer, or its receive from one; the peer makes the other side. Zero fields mean the default.
 *
 * Between two ranks, on one group, under one tag, the first send belongs to the first receive, and so on, in whatever
 * order both ranks post what they have and whichever of them is first. A receive from AD_ANY_SOURCE belongs to the
 * message that arrived first of those that no earlier receive wanted. Count and dtype of both sides must agree, or else
 * every rank of the world gets AD_MISMATCH with both sites.
 *
 * A send is complete when its memory may be used again: once it was received, or copied away. Two ranks that both send
 * first and then receive come through as long as there is memory for copies. What was sent completely before its rank
 * left the world is received; a message that nobody receives is no error. */
typedef struct ad_transfer {
  size_t size;           /* sizeof(ad_transfer) */
  const ad_ranks *ranks; /* `peer` is an index in it; NULL: it is a rank of the world */
  int64_t peer;          /* to whom, from whom; may be this rank itself. A receive: AD_ANY_SOURCE */
  int64_t tag;           /* any number */
  const void *send; /* one of send and receive is NULL; with count 0 both may be, and `receives` says which it is */
  void *receive;
  int receives; /* 1: a receive; 0: a send, unless `receive` is given */
  size_t count; /* elements, the same on both sides */
  ad_dtype dtype;
  const char *site; /* as in ad_collective */
} ad_transfer;
/* Runs one side of a transfer to its end. *source, unless NULL: of a receive the peer it came from, of a send -1. On
 * AD_MISMATCH, AD_RANK_DIED, AD_RANK_LEFT (a rank waits for a message that the peer did not send before it left),
 * AD_CYCLE, AD_PEER_FAILED what was to be received is undefined, and the comm can only be closed. AD_INVALID,
 * AD_MEMORY: nothing was begun. */
#define ad_comm_transfer(...) ad_comm_transfer_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_transfer_at(ad_comm *comm, const ad_transfer *transfer, int64_t *source,
                                                const char *site);
/* Starts one side of a transfer and returns; *transfer is copied, the memory it points to must stay until the request
 * is complete (ad_comm_test, ad_comm_wait). Any number may be under way. */
#define ad_comm_post_transfer(...) ad_comm_post_transfer_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_post_transfer_at(ad_comm *comm, const ad_transfer *transfer, ad_request *out,
                                                     const char *site);

/* ---- groups that are lists ---- */

/* Makes a group of `count` ranks of the world, this one among them, in the order in which they stand: members are
 * numbered by it. The list is copied. All members call it with the same list, and those of one list in the same order;
 * none waits for another. Each call makes a new group: two groups of the same ranks have two sequences of collectives
 * and of transfers. Its memory is used again when all members have released it, so that groups may be made and released
 * without end. AD_INVALID: a rank is not in the world or in the list twice, or this rank is not in it. AD_MEMORY. */
#define ad_ranks_create(...) ad_ranks_create_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_ranks_create_at(ad_comm *comm, const int64_t *ranks, int64_t count, ad_ranks **out,
                                               const char *site);
/* NULL allowed. What is under way on the group goes on to its end. Waits for nobody; also after ad_comm_close. */
AD_API void ad_ranks_release(ad_ranks *ranks);
AD_API int64_t ad_ranks_count(const ad_ranks *ranks);
AD_API int64_t ad_ranks_rank(const ad_ranks *ranks, int64_t index); /* -1, and ad_last_error: no such member */
AD_API int64_t ad_ranks_index(const ad_ranks *ranks, int64_t rank); /* -1: not in the list */

/* Tells every rank of the world that this one failed: the call they wait in, or else their next one, returns
 * AD_PEER_FAILED with `message`. `status` is this rank's reason, which ad_launch_result reports. Only the first failure
 * of a world is kept. The message is given with the rank's number, unless it is ad_last_error() of a call that failed
 * on all ranks alike; NULL or "": the status's sentence. */
AD_API void ad_comm_fail(ad_comm *comm, ad_status status, const char *message);
/* AD_OK, or the error of the world, if there is one. Never waits. */
AD_API AD_CHECKED ad_status ad_comm_health(ad_comm *comm);
/* The last 256 collectives and transfers of this rank, oldest first, one line each with sequence number, operation,
 * count, dtype, group, site, state and time. Also written to the folder ADDEND_FLIGHT_DIR (if set) as flight-RANK.txt
 * with every communication error. Caller frees the text with free(). */
AD_API AD_CHECKED ad_status ad_comm_flight_record(const ad_comm *comm, char **out);
/* Bytes that this rank has read and written in collectives so far. */
AD_API uint64_t ad_comm_bytes(const ad_comm *comm);

/* Starting ranks on this machine: forks `ranks` processes that share one nameless memory file, runs `function` in each
 * (or execs argv, whose ad_comm_open then joins), waits for all, and ends the rest 2 s after the first failure. Ranks
 * die with the launcher. Ctrl-C, SIGTERM and SIGHUP are passed on, and ranks that then do not move for 30 s are ended;
 * the message names those for whom the others waited. A second one and SIGQUIT end all at once. SIGUSR1 is passed on
 * and ends nothing here. AD_INVALID in a process that is a rank itself, under a launcher whose world cannot be joined,
 * and, with `function`, in a process that has other threads: forked ranks could hang on their locks (`addend run` and
 * `argv` start programs anew). */
typedef struct ad_launch_options {
  size_t size; /* sizeof(ad_launch_options) */
  int64_t ranks;
  /* Runs in each rank; what it returns is the rank's exit status. It does not close comm. One that gives up says why
   * with ad_comm_fail: *out then has its message. */
  int (*function)(ad_comm *comm, void *context);
  void *context;
  char *const *argv; /* instead of function: a program and its arguments */
  /* 1, with `function`: a process that was started as a rank already (ad_comm_launched) joins that world and runs it
   * there, whatever `ranks` says; *out is then of this rank alone. 0: AD_INVALID there. */
  int joins;
  int64_t patience_seconds; /* how long ranks may take to end after a request to stop; 0: 10 */
} ad_launch_options;
typedef struct ad_launch_result {
  size_t size; /* sizeof(ad_launch_result) */
  /* Of the first error that any rank reported: AD_TYPE if a rank's model was refused, AD_MISMATCH, ...; AD_OK: none. */
  ad_status status;
  int exit_status;    /* of the first rank that failed, 128 + signal if it died; 0: none failed */
  int64_t rank;       /* the first rank that failed, or -1 */
  int signal;         /* the signal that ended it, or 0 */
  char message[2048]; /* the first error that a rank reported, or the death that the launcher saw; "": none */
  int64_t joined;     /* how many ranks joined; 0 where no process of a program called ad_comm_open */
} ad_launch_result;
/* AD_OK when all ranks returned 0; AD_RANK_DIED, AD_PEER_FAILED or AD_INTERRUPTED with *out filled otherwise; AD_SYSTEM
 * or AD_MEMORY if they could not be started. */
AD_API AD_CHECKED ad_status ad_launch(const ad_launch_options *options, ad_launch_result *out);

#if defined(__cplusplus)
}
#endif
#endif
