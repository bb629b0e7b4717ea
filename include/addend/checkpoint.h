/* Distributed checkpoints: named arrays that ranks hold parts of, written by all of them and read back onto any other
 * mesh, layout or number of ranks. Knows arrays, not models.
 *
 * FOLDER/step-N/ is a complete checkpoint after N steps: rank-R.safetensors with the pieces that rank R wrote, and
 * index.json, which says which slice of which value is in which file, with every file's xxhash64. Every distinct
 * element is written once: by the rank that is first on the axes on which the value is R or I. A folder that is still
 * being written is named step-N.TOKEN.tmp, TOKEN drawn by chance; it gets its name when all of it is on disk. Ranks
 * share the folder's file system.
 */
#ifndef ADDEND_CHECKPOINT_H
#define ADDEND_CHECKPOINT_H
#include "addend/array.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_checkpoint_value {
  const char *name; /* unique */
  ad_array *array;  /* R, I or cut on every axis; saving only reads it */
} ad_checkpoint_value;

typedef struct ad_checkpoint_number {
  const char *name;
  int64_t value; /* saving writes the first rank's; loading fills it on all ranks */
} ad_checkpoint_number;

/* What the values came from, as words: kept in the index with them. */
typedef struct ad_checkpoint_fact {
  const char *key, *value;
} ad_checkpoint_fact;

/* What is saved and loaded: the same list on all ranks. */
typedef struct ad_checkpoint_state {
  size_t size;  /* sizeof(ad_checkpoint_state) */
  int64_t step; /* how many training steps were taken; loading fills it */
  const ad_checkpoint_value *values;
  size_t value_count;
  ad_checkpoint_number *numbers;
  size_t number_count;
  const char *text;                /* kept in the index for people (the recipe); NULL: none. Not loaded */
  const ad_checkpoint_fact *facts; /* saving writes the first rank's */
  size_t fact_count;
  /* Called in loading, on every rank, with the facts of a checkpoint that is whole, before its values are read: what it
   * returns other than AD_OK ends the loading. NULL: any will do. */
  ad_status (*judge)(void *context, const ad_checkpoint_fact *facts, size_t count);
  void *context;
  int some; /* 1: loading passes over values of the checkpoint that are not listed, and fills these */
} ad_checkpoint_state;

typedef struct ad_checkpointer ad_checkpointer;
/* Makes the folder, and removes what an interrupted write left in it. `keep`: complete checkpoints that stay; older
 * ones are removed when a new one is complete. Collective over the mesh's ranks, as are all functions here. Borrows
 * comm and mesh. AD_IO; AD_INVALID if keep is below 1. */
AD_API AD_CHECKED ad_status ad_checkpointer_create(ad_comm *comm, const ad_mesh *mesh, const char *folder, int64_t keep,
                                                   ad_checkpointer **out);
/* Waits for this rank's own writing; a checkpoint that is not finished stays incomplete. NULL allowed. */
AD_API void ad_checkpointer_destroy(ad_checkpointer *checkpointer);
/* Copies the values and returns; a thread of each rank writes them. An earlier write that is not finished is waited for
 * first. AD_TYPE for a value that is P or V; the errors of ad_checkpointer_poll. */
AD_API AD_CHECKED ad_status ad_checkpointer_save(ad_checkpointer *checkpointer, const ad_checkpoint_state *state);
/* To be called between steps: moves a write on when all ranks are through with their part of it, and never waits for
 * the disk; one small collective while a write is under way, none otherwise. AD_IO on all ranks, naming the path, when
 * a write failed: earlier checkpoints were not touched, the message says whether what there was of this one could be
 * removed, and the next save may succeed. */
AD_API AD_CHECKED ad_status ad_checkpointer_poll(ad_checkpointer *checkpointer);
/* As ad_checkpointer_poll, but waits until the write is complete on disk. */
AD_API AD_CHECKED ad_status ad_checkpointer_finish(ad_checkpointer *checkpointer);

/* Loads the newest usable checkpoint of the folder. Each rank verifies its share of the files (every byte is read once
 * by one rank), then reads the slices that its parts of the values need; dtypes are converted. One that is damaged is
 * passed over with a warning that says what is wrong with it. AD_IO if none is usable, naming each with its reason;
 * AD_INVALID if names, shapes or numbers are not those of `state`. After an error the values are undefined. */
AD_API AD_CHECKED ad_status ad_checkpoint_load(ad_comm *comm, const ad_mesh *mesh, const char *folder,
                                               ad_checkpoint_state *state);

#if defined(__cplusplus)
}
#endif
#endif
