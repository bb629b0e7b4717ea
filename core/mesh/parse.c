/* Reads a mesh string into the fields of a mesh; allocates nothing. */
#include <ctype.h>
#include <inttypes.h>
#include <string.h>
#include "base/error.h"
#include "base/text.h"
#include "mesh/object.h"
#include "mesh/words.h"

/* Reads a decimal number from 1 to AD_MESH_RANKS_MAX. Returns 0 if the word is no such number. */
static int64_t read_size(ad_word word) {
  int64_t value = 0;
  for (size_t i = 0; i < word.length; i++) {
    if (!isdigit((unsigned char)word.data[i])) return 0;
    value = value * 10 + (word.data[i] - '0');
    if (value > AD_MESH_RANKS_MAX) return 0;
  }
  return value;
}

static ad_status unknown_axis(const char *text, ad_word name) {
  char known[128];
  return ad_fail(AD_INVALID, "mesh \"%.80s\": there is no axis `%.*s`; the axes are %s, and dp for dp_shard", text,
                 ad_word_shown(name), name.data, ad_axes_known(known, sizeof known));
}

/* Reads one word "axis=size" and appends the axis to the mesh. */
static ad_status add_axis(const char *text, ad_word word, ad_mesh *mesh) {
  ad_word name, value;
  if (!ad_word_split(word, &name, &value))
    return ad_fail(AD_INVALID, "mesh \"%.80s\": `%.*s` is not of the form AXIS=SIZE; write, for example, tp=2", text,
                   ad_word_shown(word), word.data);
  ad_axes axes = ad_word_axes(name);
  if (!axes) return unknown_axis(text, name);
  ad_axis axis = axes == AD_AXES_DP ? AD_DP_SHARD : (ad_axis)__builtin_ctz(axes);
  int64_t size = read_size(value);
  if (mesh->named & AD_AXES(axis))
    return ad_fail(AD_INVALID, "mesh \"%.80s\": `%s` is named twice; name each axis once", text, ad_axis_name(axis));
  if (!size)
    return ad_fail(AD_INVALID, "mesh \"%.80s\": `%s` has size `%.*s`; write a whole number from 1 to 2^40", text,
                   ad_axis_name(axis), ad_word_shown(value), value.data);
  if (size > AD_MESH_RANKS_MAX / mesh->size)
    return ad_fail(AD_INVALID,
                   "mesh \"%.80s\": %" PRId64 " times `%s`=%" PRId64
                   " is more than 2^40 ranks, the most that a mesh can have; choose smaller sizes",
                   text, mesh->size, ad_axis_name(axis), size);
  mesh->named |= AD_AXES(axis);
  mesh->order[mesh->named_count++] = axis;
  mesh->axis_size[axis] = size;
  mesh->size *= size;
  return AD_OK;
}

/* Fills the fields that follow from the named axes: the order of all other axes, the strides, and the normalised
 * text. */
static void complete(ad_mesh *mesh) {
  int count = mesh->named_count;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (!(mesh->named & AD_AXES(axis))) mesh->order[count++] = (ad_axis)axis;
  int64_t stride = 1;
  for (int i = AD_AXIS_COUNT - 1; i >= 0; i--) {
    mesh->stride[mesh->order[i]] = stride;
    stride *= mesh->axis_size[mesh->order[i]];
  }
  ad_text text = ad_text_on(mesh->text, sizeof mesh->text);
  for (int i = 0; i < mesh->named_count; i++)
    ad_text_add(&text, "%s%s=%" PRId64, i ? " " : "", ad_axis_name(mesh->order[i]), mesh->axis_size[mesh->order[i]]);
}

ad_status ad_mesh_parse(const char *text, int64_t first_rank, ad_mesh *out) {
  ad_mesh mesh = {.first_rank = first_rank, .size = 1};
  ad_word word;
  if (first_rank < 0 || first_rank > AD_MESH_RANKS_MAX)
    return ad_fail(AD_INVALID, "mesh \"%.80s\": the first rank is %" PRId64 ", but must be from 0 to 2^40", text,
                   first_rank);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) mesh.axis_size[axis] = 1;
  for (const char *cursor = text; ad_word_next(&cursor, " \t\n", &word);) AD_TRY(add_axis(text, word, &mesh));
  complete(&mesh);
  mesh.head = mesh.size;
  *out = mesh;
  return AD_OK;
}
