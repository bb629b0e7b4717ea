/* The schema of recipes: one table of keys that reading, --set, checking and printing walk. */
#ifndef RECIPE_SCHEMA_H
#define RECIPE_SCHEMA_H
#include "addend/recipe.h"
#include "base/text.h"

typedef enum ad_key_kind {
  AD_KEY_INTEGER,   /* int64_t */
  AD_KEY_NUMBER,    /* double */
  AD_KEY_BOOLEAN,   /* int */
  AD_KEY_TEXT,      /* char *, owned */
  AD_KEY_DTYPE,     /* ad_dtype; `word` stands for 0 */
  AD_KEY_GRADIENT,  /* ad_dtype, and int at `second`: `word` stands for 0, "raw" sets the int */
  AD_KEY_SYNC,      /* ad_sync */
  AD_KEY_OVERRIDES, /* ad_recipe_override *, owned, its size_t count at `second`: a map from patterns to the keys of
                       `precision` that are in an ad_contract */
  AD_KEY_LATER      /* known, but not available in this version; nothing is stored */
} ad_key_kind;

typedef struct ad_key {
  const char *path; /* "train.lr" */
  ad_key_kind kind;
  int list;                  /* a list of such values, owned; its size_t count at `second` */
  size_t offset, second;     /* into ad_recipe */
  double least, most;        /* of a number, or of each in a list */
  int open_least, open_most; /* 1: the limit itself is refused */
  const char *fallback;      /* as it would be written; NULL: the key must be given; "" on a list: empty */
  const char *word;
  const char *help;
} ad_key;

#define AD_LATER_WORDS "is not available yet in this version; leave it out"

enum { AD_KEYS_MAX = 64 };
const ad_key *ad_schema(size_t *count);
const ad_key *ad_schema_find(const char *path); /* NULL if there is none */
int ad_schema_is_section(const char *path);     /* some key starts with "path." */
int ad_key_is_contract(const ad_key *key);      /* lies in precision.contract: an override may have it too */
const char *ad_key_name(const ad_key *key);     /* "lr" */
size_t ad_key_element_size(const ad_key *key);  /* bytes of one element of a list */
/* "did you mean train.lr?", or the keys that `section` ("" the outermost) has. */
void ad_schema_suggest(const char *section, const char *unknown, ad_text *out);
/* Adds ".name" to a path as --set writes it, in quotes where the name has dots. */
void ad_path_add(ad_text *path, const char *name);

extern const char *const ad_sync_names[]; /* by ad_sync */
enum { AD_SYNC_COUNT = AD_SYNC_ALL + 1 };

#endif
