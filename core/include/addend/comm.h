/* Ranks, collectives and transfers. One structure describes a collective, which runs on the backend of the world: shm
 * (processes of one machine), mpi (one or more machines) or dry (nothing moves). Every collective carries a signature.
 * If the signatures of a group's ranks differ, every rank of the group gets an error instead of hanging.
 *
 * For users. Only one thread at a time may use a comm, its requests and its groups; only ad_comm_missing may be called
 * by a second thread at the same time. */
#ifndef ADDEND_COMM_H
#define ADDEND_COMM_H
#include "addend/dtype.h"
#include "addend/mesh.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_comm ad_comm;   /* one rank's membership in a world; only one thread at a time may use it */
typedef struct ad_ranks ad_ranks; /* a group given as a list of ranks; see ad_ranks_create */

/* Joins the world in which this process was started by `addend run`, ad_launch, MPI (where built) or, on one host,
 * torchrun. A process that was not started as a rank gets a world of one rank. Blocks until all ranks have joined.
 * AD_INVALID under a launcher whose world cannot be joined (the environment has WORLD_SIZE, but not all variables that
 * torchrun sets), so that no process believes by mistake that it is alone. */
AD_API AD_CHECKED ad_status ad_comm_open(ad_comm **out);
/* Returns 1 if this process was started as a rank of a world (by `addend run`, ad_launch with a program, mpirun, srun
 * or torchrun), and ad_comm_open will join that world. */
AD_API int ad_comm_launched(void);
/* A key-value store through which processes started by another launcher find each other to join one world: PyTorch's
 * store, a folder, sockets. Keys consist of letters, digits and '/', and any process may read them. Each world puts
 * each key once; if one store serves several worlds, a later world may put a key again, which replaces the key's value.
 * `context` is passed to each callback. A callback that fails reports why with ad_fail. */
typedef struct ad_rendezvous {
  size_t size; /* sizeof(ad_rendezvous) */
  void *context;
  ad_status (*put)(void *context, const char *key, const void *value, size_t bytes);
  /* Returns once `key` was put; fails after `seconds`. May be called several times for one key. */
  ad_status (*wait)(void *context, const char *key, int64_t seconds);
  /* Copies the value of `key`, which was put before and must have exactly `bytes` bytes; fails otherwise. */
  ad_status (*get)(void *context, const char *key, void *value, size_t bytes);
  int64_t seconds; /* seconds that a rank waits for another rank to join; 0: 300 */
} ad_rendezvous;
/* Joins a world of `size` processes of this machine as rank `rank`. The processes were started by another launcher than
 * addend's, and each passes a different `rank`. Blocks until all have joined. The processes share memory that has no
 * name, so no file is left when they end. If a process ends without ad_comm_close, every waiting rank gets AD_RANK_DIED
 * within 2 s, and all others at their next call. The other processes of the world read this process's memory if the
 * kernel allows it. AD_INVALID, on all ranks, if a process is on another host or in another container; AD_PEER_FAILED
 * if another process could not join. A rendezvous may serve several worlds one after another (of a job that was
 * restarted, or that closes a comm and joins again), never two at the same time. */
AD_API AD_CHECKED ad_status ad_comm_join(int64_t rank, int64_t size, const ad_rendezvous *rendezvous, ad_comm **out);
/* Opens backend dry: this process acts as rank `rank` of a world of `size`. Collectives check their arguments and
 * return AD_OK immediately; outputs are not written. */
AD_API AD_CHECKED ad_status ad_comm_open_dry(int64_t rank, int64_t size, ad_comm **out);
/* Opens a world of one rank that shares nothing with the world in which this process was started. A check computes its
 * reference, the one process, in such a world. */
AD_API AD_CHECKED ad_status ad_comm_open_alone(ad_comm **out);
/* Leaves the world and frees the comm with all memory that ad_comm_alloc gave. Ranks that still need this rank get
 * AD_RANK_LEFT. NULL allowed. */
AD_API void ad_comm_close(ad_comm *comm);
AD_API int64_t ad_comm_rank(const ad_comm *comm);
AD_API int64_t ad_comm_size(const ad_comm *comm);
/* A mesh with all ranks on one axis, "dp_shard=4", for callers that have no mesh. Owned by the comm. */
AD_API const ad_mesh *ad_comm_mesh(const ad_comm *comm);
AD_API const char *ad_comm_backend(const ad_comm *comm); /* "shm", "mpi", "dry", ... */
/* returns 1 on backend dry, where values have shapes and layouts but no data; else 0 */
AD_API int ad_comm_is_dry(const ad_comm *comm);

/* Allocates zeroed memory, aligned to 64 bytes, that all ranks of the node can read: collectives on buffers in it need
 * no staging copies. AD_MEMORY if none is left. Free it with ad_comm_free, or let ad_comm_close free it. Local: no rank
 * waits for another. */
AD_API AD_CHECKED ad_status ad_comm_alloc(ad_comm *comm, size_t bytes, void **out);
AD_API void ad_comm_free(ad_comm *comm, void *memory);

typedef enum ad_collective_op {
  AD_ALL_REDUCE,     /* in, out: count elements */
  AD_REDUCE_SCATTER, /* in: the blocks of all members, one after another; out: this rank's block, reduced */
  AD_ALL_GATHER,     /* in: this rank's block; out: the blocks of all members */
  AD_ALL_TO_ALL,     /* in: a block for each member; out: a block from each member */
  AD_BROADCAST,      /* in: count elements, read on `root` only; out: count elements */
  AD_BARRIER,        /* no values: complete when all members have called it */
  AD_EXCHANGE        /* batched send/receive: see ad_message */
} ad_collective_op;

/* One message of a batched exchange: this rank's send to a peer, or its receive from a peer. The peer's exchange must
 * contain the matching receive or send. Between two ranks the first send matches the first receive, the second the
 * second, and so on. Each receive needs its own memory, which no other message of the exchange uses; several sends may
 * read the same memory. */
typedef struct ad_message {
  int64_t peer;     /* index of the peer in the group; may be this rank itself */
  const void *send; /* one of send and receive is NULL */
  void *receive;
  size_t count;
} ad_message;

/* One value of a packed array. If it is sharded by rows, member i of g members holds rows [floor(i*rows/g),
 * floor((i+1)*rows/g)). */
typedef struct ad_segment {
  int64_t rows;
  size_t row; /* number of elements in one row */
} ad_segment;

/* Describes a collective that sums leaves, the parts of a batch whose gradients are computed one by one (train.leaves).
 * The batch has `leaves` leaves, and member i of the group submits the sums of leaves starts[i] to starts[i + 1] - 1.
 * All members pass the same `leaves` and `starts`.
 *
 * Leaves are summed by an aligned tree. Its nodes are the leaves k 2^j to (k + 1) 2^j - 1, cut off at the last leaf;
 * the sum of a node is the sum of its two halves. So the result has the same bits however the leaves are divided among
 * members. A member's leaves are one node or several: the fewest nodes, in ascending order. */
typedef struct ad_leaf_ranges {
  int64_t leaves;
  const int64_t *starts; /* [number of members + 1]; may not decrease */
} ad_leaf_ranges;

/* Describes one collective. Zero fields mean the defaults. The caller owns all memory. The memory of `in`, `out` and of
 * the messages must stay valid until the collective is complete; the arrays counts, receive_counts, messages, segments
 * and those of `ranges` are copied. */
typedef struct ad_collective {
  size_t size; /* sizeof(ad_collective) */
  ad_collective_op op;
  ad_group group; /* the group, which must contain this rank; if its field `mesh` is NULL: all ranks of the world */
  /* `in` and `out` may overlap only in these ways: they are equal (all_reduce, broadcast), `in` is this rank's block
   * inside `out` (all_gather), or `out` is this rank's block inside `in` (reduce_scatter). */
  const void *in;
  void *out;
  /* number of elements: of the full value (all_reduce, broadcast), or of each block if `counts` is NULL */
  size_t count;
  /* Number of elements of each block, if the blocks have different sizes: of each member's block (reduce_scatter,
   * all_gather), or of the block that this rank sends to each member (all_to_all; `receive_counts` then has the sizes
   * of the blocks that this rank receives). */
  const size_t *counts;
  const size_t *receive_counts;
  const ad_message *messages; /* for AD_EXCHANGE */
  size_t message_count;
  ad_dtype dtype; /* dtype of the inputs, and of the outputs of operations that do not reduce */
  /* The dtype in which results accumulate, in the order of one tree over the group (core/docs/laws.md, law 10). 0: f64
   * for f64, f32 for the other floats. Integers and bool always use their own dtype. */
  ad_dtype accumulate;
  ad_reduction reduction; /* AD_INVALID if the dtype does not have this reduction */
  /* The dtype of a reduction's outputs, which are rounded once from the accumulate dtype. 0: `dtype`. Integers and bool
   * always keep their own dtype. */
  ad_dtype out_dtype;
  /* For sums: the inputs hold values times 2^-in_scale and the outputs are written times 2^-out_scale (law 8). All
   * ranks have the same scales. */
  int in_scale, out_scale;
  /* 1: the sum is added to the contents of `out`, which then has the accumulate dtype. reduce_scatter only. */
  int adds;
  /* For reduce_scatter and all_gather of a packed array: the full value consists of these segments one after another,
   * each sharded by rows; a member's block consists of its rows of each segment, one after another. `counts` must then
   * be NULL, and `count` is ignored. NULL if the value is not packed. */
  const ad_segment *segments;
  size_t segment_count;
  int64_t root; /* broadcast: index of the sender in the group */
  /* The call site that messages name, for a library that runs collectives for its own callers; NULL: the line of this
   * call. Ranks may have different sites. */
  const char *site;
  const ad_ranks *ranks; /* the group as a list of ranks, instead of `group`; AD_INVALID if both are set */
  /* For sums of floats by all_reduce and reduce_scatter. If not NULL, values are summed by the aligned tree over leaves
   * (see ad_leaf_ranges); inputs, sums and outputs then have one dtype and no scale. `in` has one value for each node
   * of this rank's leaves, one after another; `out` gets one value for each node of all members' leaves together. `in`
   * and `out` must be memory of ad_comm_alloc, unless each member's leaves are one node and all members' leaves
   * together are one node. NULL: each member has one value, and values are summed by law 10's tree over members. */
  const ad_leaf_ranges *ranges;
} ad_collective;

/* Runs a collective until it is complete. After AD_MISMATCH, AD_RANK_DIED, AD_RANK_LEFT, AD_CYCLE or AD_PEER_FAILED the
 * outputs are undefined, every rank of the world gets an error, and the comm can only be closed. */
#define ad_comm_run(...) ad_comm_run_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_run_at(ad_comm *comm, const ad_collective *collective, const char *site);
/* A posted collective or transfer. */
typedef struct ad_request {
  uint64_t id;    /* 0: no request; ad_comm_wait returns AD_OK immediately */
  int64_t source; /* for a completed receive, the peer that sent; otherwise -1 */
} ad_request;
/* Starts a collective and returns; *collective and its arrays are copied. A rank has at most 64 collectives in flight:
 * posting one more waits for the oldest. Bytes only move while ranks of the group are inside a call of this library.
 * Same errors as ad_comm_run. */
#define ad_comm_post(...) ad_comm_post_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_post_at(ad_comm *comm, const ad_collective *collective, ad_request *out,
                                            const char *site);
/* Tests whether a collective or a transfer is complete: if it is, *done is 1 and request->id becomes 0. Never waits. */
AD_API AD_CHECKED ad_status ad_comm_test(ad_comm *comm, ad_request *request, int *done);
/* Waits until the collective or transfer is complete; request->id is then 0. */
AD_API AD_CHECKED ad_status ad_comm_wait(ad_comm *comm, ad_request *request);
/* Returns when every member of the group has called this function. */
#define ad_comm_barrier(...) ad_comm_barrier_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_barrier_at(ad_comm *comm, const ad_group *group, const char *site);

/* ---- transfers: messages from one rank to another ---- */

enum { AD_ANY_SOURCE = -1 };
/* One rank's send to a peer, or its receive from a peer; the peer calls with the matching receive or send. Zero fields
 * mean the defaults.
 *
 * Between two ranks, in one group, with one tag, the first send matches the first receive, the second the second, and
 * so on, whichever side is posted first. A receive from AD_ANY_SOURCE takes the first message that arrived and matches
 * no earlier receive. Count and dtype of both sides must agree; otherwise every rank of the world gets AD_MISMATCH with
 * both call sites.
 *
 * A send is complete when the sender may reuse the memory: once the message was received or copied away. Two ranks that
 * both send first and then receive succeed as long as there is memory for the copies. A message whose send completed
 * before its rank left the world is still received. A message that is never received is no error. */
typedef struct ad_transfer {
  size_t size;           /* sizeof(ad_transfer) */
  const ad_ranks *ranks; /* `peer` is an index in this list; NULL: `peer` is a rank of the world */
  int64_t peer;          /* the other rank, which may be this rank itself. A receive may have AD_ANY_SOURCE */
  int64_t tag;           /* any number; must be the same on both sides */
  /* One of send and receive is NULL. With count 0 both may be NULL, and `receives` says which side this is. */
  const void *send;
  void *receive;
  int receives; /* 1: this is a receive; 0: a send, unless `receive` is given */
  size_t count; /* elements, the same on both sides */
  ad_dtype dtype;
  const char *site; /* as in ad_collective */
} ad_transfer;
/* Runs one side of a transfer until it is complete. *source (unless NULL) becomes the peer that sent if this is a
 * receive, and -1 if it is a send. After AD_MISMATCH, AD_RANK_DIED, AD_RANK_LEFT (the peer left before it sent the
 * message), AD_CYCLE or AD_PEER_FAILED the received data is undefined, and the comm can only be closed. After
 * AD_INVALID or AD_MEMORY nothing was started. */
#define ad_comm_transfer(...) ad_comm_transfer_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_transfer_at(ad_comm *comm, const ad_transfer *transfer, int64_t *source,
                                                const char *site);
/* Starts one side of a transfer and returns. *transfer is copied; the memory to send or to receive into must stay valid
 * until the request is complete (ad_comm_test, ad_comm_wait). Any number of transfers may be in flight. */
#define ad_comm_post_transfer(...) ad_comm_post_transfer_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_comm_post_transfer_at(ad_comm *comm, const ad_transfer *transfer, ad_request *out,
                                                     const char *site);

/* ---- groups given as lists of ranks ---- */

/* Makes a group of `count` ranks of the world, which must contain this rank. Member i of the group is ranks[i]. The
 * list is copied. All members make this call with the same list, and all make their calls with one list in the same
 * order. No member waits for another. Each call makes a new group: two groups of the same ranks have two separate
 * sequences of collectives and of transfers. The memory of a group is reused once all members have released it, so a
 * program may make and release any number of groups. AD_INVALID: a rank is not in the world or is twice in the list, or
 * this rank is not in the list. AD_MEMORY. */
#define ad_ranks_create(...) ad_ranks_create_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_ranks_create_at(ad_comm *comm, const int64_t *ranks, int64_t count, ad_ranks **out,
                                               const char *site);
/* Releases the group. Operations in flight on the group still complete. Waits for no rank; may be called after
 * ad_comm_close. NULL allowed. */
AD_API void ad_ranks_release(ad_ranks *ranks);
AD_API int64_t ad_ranks_count(const ad_ranks *ranks);
/* Returns the rank of the member with this index; -1, with a message in ad_last_error(), if there is no such member. */
AD_API int64_t ad_ranks_rank(const ad_ranks *ranks, int64_t index);
/* Returns the index of the member that is `rank`; -1 if `rank` is not in the list. */
AD_API int64_t ad_ranks_index(const ad_ranks *ranks, int64_t rank);

/* Reports to every rank of the world that this rank failed: the call in which a rank waits, or its next call, returns
 * AD_PEER_FAILED with `message`. `status` is the reason; ad_launch_result has it. Only the first failure of a world is
 * kept. The message is shown with this rank's number, unless it is the ad_last_error() of a call that failed on all
 * ranks in the same way. If `message` is NULL or "", it is the general sentence of the status. */
AD_API void ad_comm_fail(ad_comm *comm, ad_status status, const char *message);
/* *out: a text about the ranks that this rank waits for in its present call, and about ranks that are stopped
 * (SIGSTOP). For each of these ranks it has the process, what the process does, and its last call in this world. *out
 * is "" if that is not known (only backend shm knows). For the message of a timeout: a thread other than the waiting
 * one may call this function, as long as no thread closes the comm. The caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_comm_missing(const ad_comm *comm, char **out);
/* Returns AD_OK, or the error of the world if a rank has failed. Never waits. */
AD_API AD_CHECKED ad_status ad_comm_health(ad_comm *comm);
/* The flight recorder: the last 256 collectives and transfers of this rank, oldest first, one line each with sequence
 * number, operation, count, dtype, group, call site, state and time. With every communication error it is also written
 * to flight-RANK.txt in the folder ADDEND_FLIGHT_DIR, if that is set. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_comm_flight_recorder(const ad_comm *comm, char **out);
/* Returns the number of bytes that this rank has read and written in collectives since it joined the world. */
AD_API uint64_t ad_comm_bytes(const ad_comm *comm);

/* Starts ranks on this machine: forks `ranks` processes that share one memory file without a name, runs `function` in
 * each (or executes argv, a program whose ad_comm_open joins the world), waits for all, and ends the remaining ranks 2
 * s after the first failure. Ranks are killed if the launcher dies.
 *
 * Signals: the launcher passes Ctrl-C, SIGTERM and SIGHUP on to the ranks; if the ranks then make no progress for 30 s,
 * it ends them, and the message names the ranks for which the others waited. A second such signal, and SIGQUIT, end all
 * ranks immediately. SIGUSR1 is passed on and does not end the launcher.
 *
 * AD_INVALID if this process is a rank itself, or was started under a launcher whose world cannot be joined. With
 * `function`, also AD_INVALID if this process has other threads: forked ranks could hang on locks that those threads
 * hold (with argv, and with `addend run`, programs start afresh). */
typedef struct ad_launch_options {
  size_t size; /* sizeof(ad_launch_options) */
  int64_t ranks;
  /* Runs in each rank; its return value is the rank's exit status. It must not close comm. A rank that fails reports
   * why with ad_comm_fail, and ad_launch_result has that message. */
  int (*function)(ad_comm *comm, void *context);
  void *context;
  char *const *argv; /* a program and its arguments, which are executed instead of `function` */
  /* Only with `function`, and if this process was already started as a rank (ad_comm_launched). 1: the process joins
   * that world and runs `function` there, `ranks` is ignored, and *out describes this rank alone. 0: AD_INVALID. */
  int joins;
  int64_t patience_seconds; /* seconds that ranks may take to end after a request to stop; 0: 10 */
} ad_launch_options;
typedef struct ad_launch_result {
  size_t size; /* sizeof(ad_launch_result) */
  /* status of the first error that any rank reported (AD_TYPE if a rank's model was refused, AD_MISMATCH, ...); AD_OK
   * if none */
  ad_status status;
  int exit_status;    /* exit status of the first rank that failed, 128 + signal if it died; 0: no rank failed */
  int64_t rank;       /* the first rank that failed; -1: none */
  int signal;         /* the signal that ended that rank; 0: none */
  char message[2048]; /* the first error that a rank reported, or how a rank died as the launcher saw it; "": none */
  int64_t joined; /* number of ranks that joined the world; 0 if `argv` is a program that never called ad_comm_open */
} ad_launch_result;
/* Starts the ranks and waits for them. AD_OK if all ranks returned 0; otherwise AD_RANK_DIED, AD_PEER_FAILED or
 * AD_INTERRUPTED, with *out filled; AD_SYSTEM or AD_MEMORY if the ranks could not be started. */
AD_API AD_CHECKED ad_status ad_launch(const ad_launch_options *options, ad_launch_result *out);

#if defined(__cplusplus)
}
#endif
#endif
