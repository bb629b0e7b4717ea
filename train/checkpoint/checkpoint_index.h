/* index.json: which slice of which value is in which file. Its first bytes are the xxhash64 of the rest. */
#ifndef CHECKPOINT_CHECKPOINT_INDEX_H
#define CHECKPOINT_CHECKPOINT_INDEX_H
#include <jansson.h>
#include "addend/checkpoint.h"
#include "array/part.h"
#include "files/output.h"

/* 1 if `rank` writes a piece of this value: it holds a part of the value, and is the first of the ranks that hold this
 * part. */
int ad_piece_is_written(const ad_array *array, int64_t rank);
/* Prints the name of a rank's file: "rank-R.safetensors". */
void ad_shard_name(int64_t rank, char *buffer, size_t size);

/* ---- writing index.json ---- */

/* Makes the index, without the files' sizes and checksums, which are not known yet. The layouts say which rank writes
 * which piece. Release with json_decref. */
AD_CHECKED ad_status ad_index_describe(const ad_group *group, const ad_checkpoint_state *state, json_t **out);
/* Adds the files' sizes and checksums; sums[i] belongs to the file of member i of the group. */
AD_CHECKED ad_status ad_index_add_sums(json_t *index, const ad_file_sum *sums);
/* Writes the index to `path`; returns when it is on disk. */
AD_CHECKED ad_status ad_index_write(const json_t *index, const char *path);

/* ---- reading index.json ---- */

/* Reads an index. AD_IO if the file is missing, garbled or of another version. Release with json_decref. */
AD_CHECKED ad_status ad_index_read(const char *path, json_t **out);
size_t ad_index_file_count(const json_t *index);
/* Gives file number i of the index. Its name is a plain one, which cannot lead out of the folder; AD_IO for any other.
 */
AD_CHECKED ad_status ad_index_file(const json_t *index, size_t i, const char **name, ad_file_sum *out);
/* Compares the index with a state. AD_INVALID names values that are missing from the checkpoint, additional, or of
 * another shape. */
AD_CHECKED ad_status ad_index_match(const json_t *index, const ad_checkpoint_state *state);
/* AD_IO unless the index says that it was written after `step` steps, as its folder's name does. */
AD_CHECKED ad_status ad_index_check_step(const json_t *index, int64_t step);
/* AD_IO unless the index says as many ranks as the mesh has that it names. */
AD_CHECKED ad_status ad_index_check_ranks(const json_t *index);
/* AD_IO unless the index gives this value the dtype that its file has. */
AD_CHECKED ad_status ad_index_check_dtype(const json_t *index, const char *name, ad_dtype dtype);
/* Asks state->judge about the facts in the index, and returns its answer. */
AD_CHECKED ad_status ad_index_judge(const json_t *index, const ad_checkpoint_state *state);
/* Sets the state's step and numbers from the index. */
AD_CHECKED ad_status ad_index_numbers(const json_t *index, ad_checkpoint_state *state);
/* The list of a value's pieces; and which elements one of the pieces has, and in which file. */
const json_t *ad_index_pieces(const json_t *index, const char *name);
AD_CHECKED ad_status ad_index_piece(const json_t *index, const json_t *piece, const ad_shape *shape, ad_part *part,
                                    size_t *file);

#endif
