/* Keys that are lists of maps, each with a pattern of parameter names and what it gives the parameters that it is the
 * first to match: `groups` and `shard.groups`. */
#ifndef RECIPE_ENTRIES_H
#define RECIPE_ENTRIES_H
#include "recipe/patterns.h"

/* How the struct of every kind of entry begins. */
typedef struct ad_entry {
  char *pattern; /* the value of the key `match`, which every entry has */
  int gives;     /* flags of the keys that the entry gives */
} ad_entry;

typedef struct ad_entry_kind {
  const char *path;   /* the key that has the list: "groups" */
  const ad_key *keys; /* the keys of an entry, in the order in which they are printed; the first is `match` */
  const int *flags;   /* for each key, its flag in ad_entry.gives; 0: every entry gives it */
  size_t key_count;
  size_t size;         /* sizeof the struct of an entry */
  size_t most;         /* the most entries */
  const char *example; /* an entry, and the names of the keys, for messages */
  const char *names;
} ad_entry_kind;

enum { AD_ENTRY_PATH_SIZE = 96 };
/* Writes "groups[1].decay", or "groups[1]" if `name` is NULL, and returns buffer. */
const char *ad_entry_path(const ad_entry_kind *kind, size_t index, const char *name, char buffer[AD_ENTRY_PATH_SIZE]);
int ad_entry_gives(const ad_entry_kind *kind, const void *entry,
                   size_t key); /* returns 1 if the entry gives this key */
/* Reads the list into *list, which the recipe owns, even if *good becomes 0 because there were errors. */
AD_CHECKED ad_status ad_entries_read(ad_reading *reading, const ad_entry_kind *kind, const ad_node *node, void **list,
                                     size_t *count, int *good);
/* Adds an error about every entry that only has a pattern and excepts no parameter from a later entry. `names`: what the
 * entry could give. */
void ad_entries_check_gives(ad_reading *reading, const ad_program *program, const ad_entry_kind *kind,
                            ad_patterns patterns, const char *names);

#endif
