/* index.json: which file contains which slice of which value. It begins with the xxhash64 of the rest. */
#ifndef CHECKPOINT_CHECKPOINT_INDEX_H
#define CHECKPOINT_CHECKPOINT_INDEX_H
#include <jansson.h>
#include "addend/checkpoint.h"
#include "array/part.h"
#include "files/output.h"

/* Returns 1 if `rank` writes a piece of this value: it has a part of the value, and is the first of the ranks with
 * the same part. */
int ad_piece_is_written(const ad_array *array, int64_t rank);
/* Prints the name of a rank's file: "rank-R.safetensors". */
void ad_shard_name(int64_t rank, char *buffer, size_t size);

/* ---- writing index.json ---- */

/* Makes the index, still without the files' sizes and checksums. The layouts determine which rank writes which
 * piece. Release with json_decref. */
AD_CHECKED ad_status ad_index_describe(const ad_group *group, const ad_checkpoint_state *state, json_t **out);
/* Adds the files' sizes and checksums; sums[i] belongs to the file of member i of the group. */
AD_CHECKED ad_status ad_index_add_sums(json_t *index, const ad_file_sum *sums);
/* Writes the index to `path`; returns when it is on disk. */
AD_CHECKED ad_status ad_index_write(const json_t *index, const char *path);

/* ---- reading index.json ---- */

/* Reads an index. AD_IO if the file is missing, garbled or of another version. Release with json_decref. */
AD_CHECKED ad_status ad_index_read(const char *path, json_t **out);
size_t ad_index_file_count(const json_t *index);
/* Returns file number i of the index. AD_IO for a name that is not plain: it could lead out of the folder. */
AD_CHECKED ad_status ad_index_file(const json_t *index, size_t i, const char **name, ad_file_sum *out);
/* Compares the index with a state. AD_INVALID names values that are missing from the checkpoint, are only in the
 * checkpoint, or have another shape. */
AD_CHECKED ad_status ad_index_match(const json_t *index, const ad_checkpoint_state *state);
/* AD_IO unless the index contains the step `step`, as its folder's name does. */
AD_CHECKED ad_status ad_index_check_step(const json_t *index, int64_t step);
/* AD_IO unless the number of ranks in the index is that of the mesh in the index. */
AD_CHECKED ad_status ad_index_check_ranks(const json_t *index);
/* AD_IO unless this value has the same dtype in the index as in its file. */
AD_CHECKED ad_status ad_index_check_dtype(const json_t *index, const char *name, ad_dtype dtype);
/* Calls state->judge with the facts in the index, and returns its status. */
AD_CHECKED ad_status ad_index_judge(const json_t *index, const ad_checkpoint_state *state);
/* Sets the state's step and numbers from the index. */
AD_CHECKED ad_status ad_index_numbers(const json_t *index, ad_checkpoint_state *state);
/* Two functions: the list of a value's pieces; then, for one piece, its elements and its file. */
const json_t *ad_index_pieces(const json_t *index, const char *name);
AD_CHECKED ad_status ad_index_piece(const json_t *index, const json_t *piece, const ad_shape *shape, ad_part *part,
                                    size_t *file);

#endif
