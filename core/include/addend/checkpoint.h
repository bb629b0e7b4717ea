/* Distributed checkpoints: named arrays of which each rank has a part. All ranks write them; any other mesh, layout or
 * number of ranks can read them. Checkpoints know arrays, not models.
 *
 * For users. Only one thread at a time may use a checkpointer and its comm. The checkpointer writes files on a thread
 * of its own, which calls none of the user's functions.
 *
 * FOLDER/step-N/ is a complete checkpoint after N steps. It contains:
 *   rank-R.safetensors   the pieces that rank R wrote
 *   index.json           which slice of which value is in which file, and every file's xxhash64
 * Every distinct element is written once: by the first rank along the axes on which the value is R or I. While a
 * checkpoint is being written its folder is named step-N.TOKEN.tmp, with a random TOKEN; the folder gets its final name
 * when everything in it is on disk. All ranks must see the same file system. */
#ifndef ADDEND_CHECKPOINT_H
#define ADDEND_CHECKPOINT_H
#include "addend/array.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_checkpoint_value {
  const char *name; /* unique among the values of a checkpoint */
  ad_array *array;  /* R, I or S on every axis; saving only reads it */
} ad_checkpoint_value;

typedef struct ad_checkpoint_number {
  const char *name;
  int64_t value; /* saving writes the first rank's value; loading fills it on all ranks */
} ad_checkpoint_number;

/* A key and a text about the origin of the values; saved in the index. */
typedef struct ad_checkpoint_fact {
  const char *key, *value;
} ad_checkpoint_fact;

/* The values to save or to load: the same list on all ranks. */
typedef struct ad_checkpoint_state {
  size_t size;  /* sizeof(ad_checkpoint_state) */
  int64_t step; /* number of training steps taken so far; loading fills it */
  const ad_checkpoint_value *values;
  size_t value_count;
  ad_checkpoint_number *numbers;
  size_t number_count;
  const char *text;                /* a text for people (the recipe), kept in the index and never loaded; NULL: none */
  const ad_checkpoint_fact *facts; /* keys and texts to save; saving writes those of the first rank */
  size_t fact_count;
  /* Loading calls `judge` on every rank with the facts of an undamaged checkpoint, before it reads the checkpoint's
   * values. A status other than AD_OK ends the loading. NULL: every checkpoint is accepted. */
  ad_status (*judge)(void *context, const ad_checkpoint_fact *facts, size_t count);
  void *context;
  int some; /* 1: loading fills the listed values and ignores other values of the checkpoint */
  /* Loading calls it with the name of each value of the checkpoint that is not listed. Returns 1 if the value may be
   * left over; for other values loading fails. NULL: none may. Called with `context`. */
  int (*unwanted)(void *context, const char *name);
} ad_checkpoint_state;

typedef struct ad_checkpointer ad_checkpointer;
/* Makes the folder, and removes the files that an interrupted write left in it. When a new checkpoint is complete,
 * the last `keep` complete ones stay and older ones are removed. Collective over the mesh's ranks, as are all
 * functions here. Borrows comm and mesh. AD_IO; AD_INVALID if keep is below 1. */
AD_API AD_CHECKED ad_status ad_checkpointer_create(ad_comm *comm, const ad_mesh *mesh, const char *folder, int64_t keep,
                                                   ad_checkpointer **out);
/* Waits until this rank's thread has finished writing. A checkpoint that is not yet complete stays incomplete. NULL
 * allowed. */
AD_API void ad_checkpointer_destroy(ad_checkpointer *checkpointer);
/* Copies the values and returns; a thread on each rank writes the copies to disk. First waits for an earlier write
 * that is still in flight. AD_TYPE for a value that is P or V; otherwise the errors of ad_checkpointer_poll. */
AD_API AD_CHECKED ad_status ad_checkpointer_save(ad_checkpointer *checkpointer, const ad_checkpoint_state *state);
/* Call it between steps: completes a write when all ranks have finished their part, and never waits for the disk.
 * Takes one small collective while a write is in flight, none otherwise. AD_IO on all ranks, naming the path, if a
 * write failed: earlier checkpoints are untouched, the message says whether the failed checkpoint's files could be
 * removed, and the next save may succeed. */
AD_API AD_CHECKED ad_status ad_checkpointer_poll(ad_checkpointer *checkpointer);
/* Like ad_checkpointer_poll, but waits until the write is complete on disk. */
AD_API AD_CHECKED ad_status ad_checkpointer_finish(ad_checkpointer *checkpointer);

/* Loads the newest usable checkpoint in the folder. Each rank verifies its share of the files (every byte is read by
 * one rank), then reads the slices for its parts of the values, converting dtypes. A damaged checkpoint is skipped
 * with a warning about the damage. AD_IO if no checkpoint is usable: the message names each with its reason.
 * AD_INVALID if names, shapes or numbers differ from those of `state`. After an error the values are undefined. */
AD_API AD_CHECKED ad_status ad_checkpoint_load(ad_comm *comm, const ad_mesh *mesh, const char *folder,
                                               ad_checkpoint_state *state);

#if defined(__cplusplus)
}
#endif
#endif
