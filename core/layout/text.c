/* Reads and prints layout strings such as "dp=R tp=S1". */
#include "base/error.h"
#include "base/text.h"
#include "layout/nest.h"
#include "layout/type.h"
#include "mesh/object.h"
#include "mesh/words.h"
#include "mesh/mesh.h"

/* Reads a type such as "R", "S0" or "S1z". Returns 0 if the word is not a type. */
static int read_type(ad_word word, ad_type *out) {
  for (int type = AD_R; type <= AD_P; type++)
    if (word.length == 1 && word.data[0] == "RIVP"[type]) return *out = (ad_type)type, 1;
  int zigzag = word.length == 3 && word.data[2] == 'z';
  if (word.length != 2 + (size_t)zigzag || word.data[0] != 'S') return 0;
  int dim = word.data[1] - '0';
  if (dim < 0 || dim >= AD_DIMS_MAX) return 0;
  *out = zigzag ? AD_S_ZIGZAG(dim) : AD_S(dim);
  return 1;
}

static ad_status unknown_axis(const char *text, ad_word name) {
  char known[128];
  return ad_fail(
      AD_INVALID,
      "layout \"%.120s\": there is no axis `%.*s`; the axes are %s, and dp for dp_replicate and dp_shard together",
      text, ad_word_shown(name), name.data, ad_axes_known(known, sizeof known));
}

/* Reads one word "axis=type" into *layout. *named is the set of axes that were read before; the word's axes are
 * added. */
static ad_status read_word(const char *text, ad_word word, ad_axes *named, ad_layout *layout) {
  ad_word name, value;
  ad_type type;
  char repeated[128];
  if (!ad_word_split(word, &name, &value))
    return ad_fail(AD_INVALID, "layout \"%.120s\": `%.*s` is not of the form AXIS=TYPE; write, for example, tp=S0",
                   text, ad_word_shown(word), word.data);
  ad_axes axes = ad_word_axes(name);
  if (!axes) return unknown_axis(text, name);
  if (*named & axes)
    return ad_fail(AD_INVALID, "layout \"%.120s\": `%s` is named twice; name each axis once", text,
                   ad_axes_print(*named & axes, repeated, sizeof repeated));
  if (!read_type(value, &type))
    return ad_fail(AD_INVALID, "layout \"%.120s\": `%.*s` has type `%.*s`; write R, I, V, P, S0 to S%d, or S0z to S%dz",
                   text, ad_word_shown(name), name.data, ad_word_shown(value), value.data, AD_DIMS_MAX - 1,
                   AD_DIMS_MAX - 1);
  *named |= axes;
  /* one axis after another, so that dp_replicate shards outside dp_shard in any mesh */
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (axes & AD_AXES(axis)) ad_layout_set(layout, AD_AXES(axis), type);
  return AD_OK;
}

ad_status ad_layout_parse(const ad_mesh *mesh, const char *text, ad_layout *out) {
  AD_NEED(mesh, text, out);
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_axes named = 0;
  ad_word word;
  char absent[128];
  for (const char *cursor = text; ad_word_next(&cursor, " \t\n", &word);)
    AD_TRY(read_word(text, word, &named, &layout));
  ad_axes missing = ad_mesh_large(mesh) & ~named;
  if (missing)
    return ad_fail(AD_INVALID,
                   "layout \"%.120s\" gives no type on `%s`; name every axis of mesh \"%s\" that is larger than 1",
                   text, ad_axes_print(missing, absent, sizeof absent), ad_mesh_text(mesh));
  *out = layout;
  return AD_OK;
}

const char *ad_layout_print(const ad_layout *layout, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  int printed[AD_DIMS_MAX] = {0}; /* for each dimension: number of its sharding axes printed so far */
  for (int i = 0; i < AD_AXIS_COUNT; i++) {
    ad_axis axis = layout->mesh->order[i];
    int dim = ad_type_dim(layout->type[axis]);
    if (i >= layout->mesh->named_count && layout->type[axis] == AD_R) continue;
    if (dim >= 0) axis = ad_layout_sharded_at(layout, dim, printed[dim]++);
    ad_text_add(&text, "%s%s=", text.used ? " " : "", ad_axis_name(axis));
    if (dim >= 0)
      ad_text_add(&text, "S%d%s", dim, ad_type_is_zigzag(layout->type[axis]) ? "z" : "");
    else
      ad_text_add(&text, "%c", "RIVP"[layout->type[axis] & 3]);
  }
  return buffer;
}
