/* Saves checkpoints while training continues: the work of each rank's thread, and the phases that all ranks begin and
 * end together. checkpoint_snapshot.c and checkpoint_index.c make the contents, checkpoint_folder.c renames folders. */
#include "addend/checkpoint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "comm/agree.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_format.h"
#include "checkpoint/checkpoint_index.h"
#include "checkpoint/checkpoint_snapshot.h"
#include "files/file.h"
#include "base/unfinished.h"

/* The work of a checkpoint in flight. SHARDS: every rank writes its shard. INDEX: the first rank writes the index and
 * gives the folder its name. */
typedef enum phase { IDLE, SHARDS, INDEX } phase;

struct ad_checkpointer {
  ad_comm *comm;
  ad_group group; /* all ranks of the mesh */
  char *folder;
  char token[AD_TOKEN_SIZE]; /* in the names of unfinished checkpoints; the same on all ranks */
  int64_t keep, step;
  phase phase;
  int runs; /* 1: a thread was started and must be joined */
  pthread_t thread;
  atomic_int done;
  ad_snapshot snapshot;
  json_t *index; /* the contents of index.json; only on the first rank */
  // Results of the thread. They are read after the thread was joined.
  ad_status status;
  char message[AD_MESSAGE_MAX], warning[AD_MESSAGE_MAX];
  ad_file_sum sum;
};

static int is_first(const ad_checkpointer *c) { return ad_group_index(&c->group, ad_comm_rank(c->comm)) == 0; }

/* ---- writing files, in the thread ---- */

/* Makes the folder, and writes this rank's shard if the rank has any pieces. */
static ad_status write_shard_in(ad_checkpointer *c, const char *folder) {
  char name[AD_SHARD_NAME_SIZE], *path;
  ad_shard_name(ad_comm_rank(c->comm), name, sizeof name);
  AD_TRY(ad_folder_make(folder));
  if (!c->snapshot.count) return AD_OK;
  AD_TRY(ad_path_in(folder, name, &path));
  ad_status status = ad_snapshot_write(&c->snapshot, path, c->step, &c->sum.bytes, &c->sum.checksum);
  ad_release(path);
  return status;
}

static ad_status write_shard(ad_checkpointer *c) {
  char *folder;
  AD_TRY(ad_checkpoint_path(c->folder, c->step, c->token, &folder));
  ad_status status = write_shard_in(c, folder);
  ad_release(folder);
  return status;
}

/* Writes the index, then gives the complete checkpoint its name. */
static ad_status write_index_in(ad_checkpointer *c, const char *folder) {
  char *path;
  AD_TRY(ad_path_in(folder, "index.json", &path));
  ad_status status = ad_index_write(c->index, path);
  if (!status) status = ad_folder_sync(folder);
  if (!status) status = ad_checkpoint_place(c->folder, c->step, c->token);
  ad_release(path);
  return status;
}

static ad_status write_index(ad_checkpointer *c) {
  char *folder;
  AD_TRY(ad_checkpoint_path(c->folder, c->step, c->token, &folder));
  ad_status status = write_index_in(c, folder);
  ad_release(folder);
  // Old checkpoints that cannot be removed are only a warning, because the new one is complete.
  if (!status && ad_checkpoint_remove_older(c->folder, c->step, c->keep))
    snprintf(c->warning, sizeof c->warning, "%s", ad_last_error());
  return status;
}

static void *work(void *context) {
  ad_checkpointer *c = context;
  c->status = c->phase == SHARDS ? write_shard(c) : write_index(c);
  if (c->status) snprintf(c->message, sizeof c->message, "%s", ad_last_error());
  atomic_store(&c->done, 1);
  return NULL;
}

/* ---- starting and ending the phases of a save, on all ranks together ---- */

static ad_status start_thread(ad_checkpointer *c) {
  c->status = AD_OK;
  c->warning[0] = 0;
  atomic_store(&c->done, 0);
  int reason = pthread_create(&c->thread, NULL, work, c);
  if (reason)
    return ad_fail(AD_SYSTEM, "the thread that writes checkpoints cannot be started (%s); raise ulimit -u",
                   strerror(reason));
  c->runs = 1;
  return AD_OK;
}

static void join_thread(ad_checkpointer *c) {
  if (c->runs) pthread_join(c->thread, NULL);
  c->runs = 0;
}

// Begins the next phase. A rank without work in this phase is done immediately. If a rank's thread cannot start, the
// rank is done with an error, on which all ranks then agree.
static void begin_phase(ad_checkpointer *c, phase next, int takes_part) {
  c->phase = next;
  atomic_store(&c->done, 1);
  c->status = AD_OK;
  if (!takes_part || !start_thread(c)) return;
  c->status = AD_SYSTEM;
  snprintf(c->message, sizeof c->message, "%s", ad_last_error());
  atomic_store(&c->done, 1);
}

static void end_work(ad_checkpointer *c) {
  json_decref(c->index);
  c->index = NULL;
  c->phase = IDLE;
}

// Waits for this rank's thread and returns the status of the phase, which is the same on all ranks. All ranks must call
// this.
static ad_status agree_on_phase(ad_checkpointer *c) {
  join_thread(c);
  ad_status own = c->status ? ad_fail(c->status, "%s", c->message) : AD_OK;
  return ad_agree(c->comm, &c->group, own, AD_HERE);
}

static ad_status remove_incomplete(const ad_checkpointer *c) {
  char *folder;
  if (!is_first(c)) return AD_OK;
  AD_TRY(ad_checkpoint_path(c->folder, c->step, c->token, &folder));
  ad_status status = ad_folder_remove(folder);
  ad_release(folder);
  return status;
}

static void copy_message(char *message, size_t size, const char *before) {
  snprintf(message, size, "%s%s", before, ad_last_error());
}

// Gives up the checkpoint. The error states which files were really removed, because a removal may fail, too. All ranks
// call this after all have stopped writing.
static ad_status give_up(ad_checkpointer *c, ad_status status) {
  char message[AD_MESSAGE_MAX], removal[AD_MESSAGE_MAX / 2] = "its unfinished files were removed";
  copy_message(message, sizeof message, "");
  end_work(c);
  if (ad_agree(c->comm, &c->group, remove_incomplete(c), AD_HERE))
    copy_message(removal, sizeof removal, "its unfinished files could not be removed: ");
  return ad_fail(status, "the checkpoint of step %lld was not written (%s); %s. Nothing else in %s was changed",
                 (long long)c->step, message, removal, c->folder);
}

// Gathers the sizes and checksums of all ranks' files, and adds them to the index on the first rank.
static ad_status gather_sums(ad_checkpointer *c, ad_file_sum *sums) {
  int64_t own[2] = {c->sum.bytes, (int64_t)c->sum.checksum};
  _Static_assert(sizeof own == sizeof *sums, "a file's sum travels as two numbers");
  ad_collective gather = {.size = sizeof gather,
                          .op = AD_ALL_GATHER,
                          .group = c->group,
                          .in = own,
                          .out = sums,
                          .count = 2,
                          .dtype = AD_I64,
                          .site = AD_HERE};
  AD_TRY(ad_comm_run(c->comm, &gather));
  return c->index ? ad_index_add_sums(c->index, sums) : AD_OK;
}

static ad_status complete_index(ad_checkpointer *c) {
  ad_file_sum *sums;
  AD_TRY(ad_new((size_t)ad_group_size(&c->group), &sums));
  ad_status status = gather_sums(c, sums);
  ad_release(sums);
  return status;
}

// Ends the phase on all ranks, and begins the next one or completes the checkpoint.
static ad_status advance(ad_checkpointer *c) {
  ad_status status = agree_on_phase(c);
  if (status) return give_up(c, status);
  if (c->phase == SHARDS) {
    status = complete_index(c);
    if (status) return status;
    begin_phase(c, INDEX, is_first(c));
    return AD_OK;
  }
  if (c->warning[0]) ad_log(AD_LOG_WARNING, "%s", c->warning);
  end_work(c);
  return AD_OK;
}

// Sets *done to 1 if the threads of all ranks are done.
static ad_status all_done(ad_checkpointer *c, int32_t *done) {
  *done = atomic_load(&c->done);
  ad_collective reduce = {.size = sizeof reduce,
                          .op = AD_ALL_REDUCE,
                          .group = c->group,
                          .in = done,
                          .out = done,
                          .count = 1,
                          .dtype = AD_I32,
                          .reduction = AD_MIN,
                          .site = AD_HERE};
  return ad_comm_run(c->comm, &reduce);
}

ad_status ad_checkpointer_poll(ad_checkpointer *c) {
  AD_NEED_AS("checkpointer", c);
  int32_t done = 0;
  if (c->phase == IDLE) return AD_OK;
  AD_TRY(all_done(c, &done));
  return done ? advance(c) : AD_OK;
}

ad_status ad_checkpointer_finish(ad_checkpointer *c) {
  AD_NEED_AS("checkpointer", c);
  while (c->phase != IDLE) AD_TRY(advance(c));
  return AD_OK;
}

/* ---- beginning to save ---- */

static ad_status prepare(ad_checkpointer *c, const ad_checkpoint_state *state) {
  AD_TRY(ad_snapshot_take(&c->snapshot, c->comm, state));
  return is_first(c) ? ad_index_describe(&c->group, state, &c->index) : AD_OK;
}

ad_status ad_checkpointer_save(ad_checkpointer *c, const ad_checkpoint_state *given) {
  ad_checkpoint_state own, *state = &own;
  AD_NEED_AS("checkpointer, state", c, given);
  AD_TRY(ad_options_take(&own, sizeof own, given, "ad_checkpoint_state"));
  AD_TRY(ad_checkpoint_check_state(__func__, state));
  if (ad_comm_is_dry(c->comm)) return AD_OK;
  AD_TRY(ad_checkpointer_finish(c));
  c->step = state->step;
  c->sum = (ad_file_sum){0};
  ad_status status = ad_agree(c->comm, &c->group, prepare(c, state), AD_HERE);
  if (status) {
    end_work(c);
    return status;
  }
  begin_phase(c, SHARDS, 1);
  return AD_OK;
}

/* ---- creating and destroying a checkpointer ---- */

static ad_status prepare_folder(const ad_checkpointer *c) {
  if (!is_first(c)) return AD_OK;
  AD_TRY(ad_folder_check_no_link(c->folder));
  AD_TRY(ad_folder_make(c->folder));
  return ad_checkpoint_clean(c->folder);
}

/* Draws the token on the first rank, and sends it to all ranks. */
static ad_status draw_token(ad_checkpointer *c) {
  int64_t bits = is_first(c) ? ad_token_bits() : 0;
  AD_TRY(ad_share_first(c->comm, &c->group, &bits, 1, AD_HERE));
  ad_token_print(bits, c->token);
  return AD_OK;
}

ad_status ad_checkpointer_create(ad_comm *comm, const ad_mesh *mesh, const char *folder, int64_t keep,
                                 ad_checkpointer **out) {
  AD_NEED(comm, mesh, folder, out);
  ad_checkpointer *c;
  if (keep < 1 || keep >= AD_CHECKPOINTS_LISTED)
    return ad_fail(AD_INVALID,
                   "the number of checkpoints to keep is %lld, but must be from 1 to %d; set `keep` to such a number",
                   (long long)keep, AD_CHECKPOINTS_LISTED - 1);
  AD_TRY(ad_new(1, &c));
  c->comm = comm;
  c->group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  c->keep = keep;
  ad_status status = ad_copy_string(folder, &c->folder);
  if (!status && !ad_comm_is_dry(comm)) status = ad_agree(comm, &c->group, prepare_folder(c), AD_HERE);
  if (!status && !ad_comm_is_dry(comm)) status = draw_token(c);
  if (status) {
    ad_checkpointer_destroy(c);
    return status;
  }
  *out = c;
  return AD_OK;
}

void ad_checkpointer_destroy(ad_checkpointer *c) {
  if (!c) return;
  join_thread(c);
  end_work(c);
  ad_snapshot_clear(&c->snapshot);
  ad_release(c->folder);
  ad_release(c);
}
